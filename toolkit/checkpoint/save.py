"""Writes a checkpoint: each rank its own share, in parallel; whole or not at all."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import timedelta
from itertools import count
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit import watch
from toolkit.checkpoint.files import ABOUT, INDEX, MANIFEST, TensorFile, ordered, record, sync_folder, write_json
from toolkit.checkpoint.randomness import random_state
from toolkit.checkpoint.reader import parse
from toolkit.engines import Engine, scaler
from toolkit.engines import state as optimizer_state
from toolkit.engines.ranks import every_rank, on_rank_0
from toolkit.errors import UserError, fault

MEET_SECONDS = 45.0  # for all ranks to call save
_calls = count()


def save(
    engine: Engine,
    folder: str | Path,
    about: dict[str, Any] | None = None,
    extras: Callable[[Path], None] = lambda _: None,
) -> str | None:
    """Write the engine's state as checkpoint `folder`. Collective.

    `fit` does it by itself; in a loop of your own `toolkit.save` and `toolkit.load` are all that is needed.

    Args:
        about: what oneloop.json says beside the parameters; the updates so far where it is left out.
        extras: called on rank 0 with the folder, to add small files of its own.

    Returns:
        None, or why it could not be written (disk full, no permission), the same on every rank; then nothing is left
        of it and the earlier checkpoints are as they were.

    Raises:
        UserError: other ranks did not call it within 45 s: they are named.
    """
    folder = Path(folder)
    _meet(engine, folder)
    engine.sync_buffers()
    temporary = folder.with_name(f".{folder.name}.tmp")
    if problem := on_rank_0(lambda: _tried(lambda: _make(temporary))):
        return problem
    rank, size = engine.setup.rank, engine.setup.world_size
    part = f"{rank + 1:05d}-of-{size:05d}.safetensors"
    written, problem = _write_share(engine, temporary, part)
    shares = every_rank((written, problem))
    problems = [f"rank {rank}: {problem}" for rank, (_, problem) in enumerate(shares) if problem]
    if problems:
        on_rank_0(lambda: shutil.rmtree(temporary, ignore_errors=True))
        return problems[0]
    files = {name: entry for written, _ in shares for name, entry in written.items()}
    about = about or {"step": engine.updates, "updates": engine.updates, "setup": engine.setup.as_dict()}
    about = {"loss_scaler": scaler.kept(engine.scaler)} | about
    about |= {"parameters": _parameters(engine.layout())}
    about |= {"optimizer": optimizer_state.optimizer_kind(engine.torch_optimizer)}
    writers = engine.writers()
    weight_map = {name: f"model-{writers[name] + 1:05d}-of-{size:05d}.safetensors" for name in engine.layout()}
    total = sum(t.itemsize * torch.Size(shape).numel() for t, shape, _ in engine.layout().values())
    return on_rank_0(lambda: _tried(lambda: _seal(temporary, folder, files, about, weight_map, total, extras)))


def write_alone(
    folder: Path, weights: Iterable[tuple[str, Tensor]], optimizer: Iterable[tuple[str, Tensor]], about: dict[str, Any]
) -> None:
    """Write a checkpoint from tensors at hand, in one process, in the same format.

    Args:
        weights: (name, whole tensor) of parameters and buffers.
        optimizer: (`NAME/STATE/START` or `NAME/step`, tensor).
        about: all that oneloop.json says; `parameters` is added where it is missing.

    Raises:
        OSError: the disk does not take it; nothing is left of it.
    """
    tensors, states = dict(weights), dict(optimizer)
    temporary = folder.with_name(f".{folder.name}.tmp")
    _make(temporary)
    try:
        part = "00001-of-00001.safetensors"
        files = {
            f"model-{part}": _write(temporary / f"model-{part}", tensors),
            f"optimizer-{part}": _write(temporary / f"optimizer-{part}", states),
        }
        stepped = {parse(key)[0] for key in states}
        shapes = {name: (tensor.dtype, tuple(tensor.shape), name in stepped) for name, tensor in tensors.items()}
        about = {"parameters": _parameters(shapes)} | about
        total = sum(tensor.nbytes for tensor in tensors.values())
        _seal(temporary, folder, files, about, dict.fromkeys(tensors, f"model-{part}"), total, lambda _: None)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _meet(engine: Engine, folder: Path) -> None:
    """Every rank is here, or the missing ones are named: a save on one rank would wait in its first collective."""
    if engine.setup.world_size == 1:
        return
    store = watch.store()
    call = f"{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{next(_calls)}"
    keys = [f"oneloop/save/{call}/{rank}" for rank in range(engine.setup.world_size)]
    store.set(keys[engine.setup.rank], "here")
    end = time.monotonic() + MEET_SECONDS
    try:
        store.wait(keys, timedelta(seconds=MEET_SECONDS))
    except (dist.DistError, RuntimeError):
        if time.monotonic() < end:
            raise  # the store is gone
        missing = ", ".join(str(rank) for rank, key in enumerate(keys) if not store.check([key]))
        reason = f"rank {engine.setup.rank} saves, and within {MEET_SECONDS:.0f} s rank {missing} did not"
        raise UserError(fault("save", str(folder), reason, "call it on every rank, not under a rank test")) from None


def _write_share(engine: Engine, folder: Path, part: str) -> tuple[dict[str, Any], str | None]:
    """This rank's weights, optimizer state and random state: ({file: size and hash}, what went wrong)."""
    rank, layout, writers = engine.setup.rank, engine.layout(), engine.writers()
    pieces = dict(optimizer_state.pieces(engine.torch_optimizer, engine.slots()))
    written: dict[str, Any] = {}
    problem: str | None = None

    weights = TensorFile(
        folder / f"model-{part}", [(name, *layout[name][:2]) for name in layout if writers[name] == rank]
    )
    # Where weights are gathered every rank passes through all of them in one order, also after a write that failed.
    every = ordered({name: dtype for name, (dtype, *_) in layout.items()})
    for name in every if engine.gathers else weights.keys:
        tensor = engine.local(name)
        if writers[name] == rank:
            assert tensor is not None
            weights.write(name, tensor)
    for name, content in (("model", weights), ("optimizer", pieces), ("random", random_state(engine.device))):
        try:
            path = folder / f"{name}-{part}"
            written[path.name] = content.close() if isinstance(content, TensorFile) else _write(path, content)
        except OSError as error:
            problem = problem or str(error)
    return written, problem


def _write(path: Path, tensors: dict[str, Tensor]) -> dict[str, Any]:
    file = TensorFile(path, [(key, tensor.dtype, tensor.shape) for key, tensor in tensors.items()])
    for key in file.keys:
        file.write(key, tensors[key])
    return file.close()


def _make(temporary: Path) -> None:
    shutil.rmtree(temporary, ignore_errors=True)  # left by a save that was killed
    temporary.mkdir(parents=True)


def _seal(
    temporary: Path,
    folder: Path,
    files: dict[str, Any],
    about: dict[str, Any],
    weight_map: dict[str, str],
    total_size: int,
    extras: Callable[[Path], None],
) -> None:
    """Add the JSON files, the manifest last, and give the folder its name."""
    try:
        try:
            extras(temporary)
        except Exception as error:  # the tokenizers library has no OSError for a disk that is full
            raise OSError(str(error)) from error
        write_json(temporary / INDEX, {"metadata": {"total_size": total_size}, "weight_map": weight_map})
        write_json(temporary / ABOUT, {"format": 1} | about)
        absent = [name for name in files if not (temporary / name).is_file()]
        if absent:
            raise FileNotFoundError(f"{absent[0]} is not in {temporary}: all hosts must write to one shared folder")
        small = {path.name: record(path) for path in sorted(temporary.iterdir()) if path.name not in files}
        write_json(temporary / MANIFEST, {"format": 1, "files": files | small})
        sync_folder(temporary)
        temporary.rename(folder)
        sync_folder(folder.parent)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _parameters(layout: dict[str, tuple[torch.dtype, tuple[int, ...], bool]]) -> dict[str, Any]:
    return {
        name: {"shape": list(shape), "dtype": str(dtype).removeprefix("torch."), "trained": trained}
        for name, (dtype, shape, trained) in layout.items()
    }


def _tried(work: Callable[[], None]) -> str | None:
    try:
        work()
    except OSError as error:
        return str(error)
    return None
