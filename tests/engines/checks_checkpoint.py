"""Checkpoints of several ranks: what each writes, what all find damaged, and what comes back."""

from __future__ import annotations

import errno
import json
import os
import shutil
import sys
import tempfile
from argparse import Namespace
from itertools import count
from pathlib import Path
from typing import Any

import small
import torch
from safetensors.torch import load_file
from small import ALL, ALONE, RANK, THREE, WORLD, eval_loader, prepare, train_loader
from torch import Tensor, nn

import toolkit
from toolkit.arguments import parse_arguments
from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint import save as saving
from toolkit.checkpoint.files import MANIFEST, TensorFile
from toolkit.checkpoint.keep import Checkpoints
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.resume import choose, resume
from toolkit.data.loader import TrainLoader
from toolkit.engines import Engine
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError
from toolkit.models import cross_entropy

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
TOTAL = 1000  # steps of a schedule that never ends


class Mixed(nn.Module):
    """A head tied to the embedding, a frozen layer, BatchNorm: what exports tend to lose. 11 keys, 2 of one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.norm = nn.BatchNorm1d(6)
        self.hidden = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        for layer in self.pipeline_layers():
            ids = layer(ids)
        return ids

    def pipeline_layers(self) -> list[nn.Module]:
        return [self.embedding, self.frozen, self.norm, self.hidden, self.head]


ROWS = [(torch.tensor(n % 12), (5 * n + n // 12) % 12) for n in range(24)]
# What DDP at this number of ranks wrote, and the losses that followed there.
of_ddp: tuple[Path, list[float]] | None = None


def saved(strategy: str) -> dict[str, Any]:
    """Three steps, a save, two more; the save in a new engine, and the same two steps there."""
    global of_ddp
    engine = _mixed(strategy)
    folder = _folder()
    loader = train_loader(engine, ROWS, drop_last=True)
    at = Position()
    _train(engine, loader, at, 3)
    checkpoints = _checkpoints(engine, folder, loader)
    own = [buffer.flatten().tolist() for buffer in engine.owned_buffers()]
    checkpoints.save(at)
    shared = [buffer.flatten().tolist() for buffer in engine.owned_buffers()]
    live = dict(engine.named_state())
    before = engine.evaluate(eval_loader(engine, ROWS, 4))
    lost = _train(engine, loader, at, 2)
    after = small.weights(engine)
    engine.close()

    checkpoint = Checkpoint(folder / "checkpoints" / "step-000003")
    held = {name: checkpoint.weight(name) for name in checkpoint.names}
    engine = _mixed(strategy)
    again = resume(engine, checkpoint, loader.sampler, TOTAL)
    restored = dict(engine.named_state())
    tied = engine.local("embedding.weight")
    result = {
        "names": list(held),
        "keys": list(Mixed().state_dict()),
        "odd": [name for name, tensor in held.items() if not torch.equal(tensor, live[name])],
        "back": [name for name, tensor in held.items() if not torch.equal(tensor, restored[name])],
        "dtypes": {name: str(tensor.dtype) for name, tensor in held.items()},
        "empty": [name for name, tensor in held.items() if tensor.numel() == 0],
        "trained": [name for name, told in checkpoint.about["parameters"].items() if told["trained"]],
        "faults": checkpoint.faults(),
        "states": {name: sorted(checkpoint.states(name)) for name in held},
        "updates": {name: checkpoint.updates_of(name) for name in held},
        "sizes": {name: entry["size"] for name, entry in checkpoint.files.items()},
        "pieces": _pieces(checkpoint),
        "own": own,
        "shared": shared,
        "scores": [before, engine.evaluate(eval_loader(engine, ROWS, 4))],
        "position": [again.step, again.epoch, again.index, again.samples, engine.updates],
        "tied": None if tied is None else tied.flatten().tolist(),
        "losses": [lost, _train(engine, loader, again, 2)],
        "ends": small.weights(engine) == after,
        "tied_end": None if tied is None else engine.local("embedding.weight").flatten().tolist(),  # type: ignore[union-attr]
    }
    engine.close()
    if strategy == "ddp":
        of_ddp = (checkpoint.folder, lost)
    elif of_ddp and strategy.startswith("zero"):  # a pipeline's BatchNorm sees the whole batch: other losses
        engine = _mixed(strategy)
        at = resume(engine, Checkpoint(of_ddp[0]), loader.sampler, TOTAL)
        result["of_ddp"] = [of_ddp[1], _train(engine, loader, at, 2)]
        engine.close()
    return result


def half_written(strategy: str) -> dict[str, Any]:
    """Rank 0 calls save alone; then one rank's disk is full at each of its writes in turn; then all is well."""

    def model_fn() -> nn.Module:
        return small.Chain(*(nn.Linear(12, 12) for _ in range(6)))

    engine = prepare(strategy, model_fn, cross_entropy, _adamw, train_batch_size=12)
    folder = _folder()
    loader = train_loader(engine, [(torch.eye(12)[n % 12], n % 12) for n in range(24)])
    at = Position()
    _train(engine, loader, at, 1)
    checkpoints = _checkpoints(engine, folder, loader)
    result: dict[str, Any] = {"alone": None, "full": []}
    meet, saving.MEET_SECONDS = saving.MEET_SECONDS, 1.0
    if RANK == 0:
        try:
            checkpoints.save(at)
        except UserError as error:
            result["alone"] = list(error.lines)
    saving.MEET_SECONDS = meet
    on_rank_0(lambda: None)
    saving._calls = count(next(_keys))  # rank 0 has called once more than the others
    checkpoints.save(at)
    whole = Checkpoint(checkpoints.folder / "step-000001")
    result["random"] = [name for name in sorted(whole.files) if name.startswith("random")]
    result["written"] = _written(whole)

    def try_to_save() -> None:
        _train(engine, loader, at, 1)
        problem = saving.save(engine, checkpoints.folder / f"step-{at.step:06d}", {"step": at.step}, lambda _: None)
        result["full"].append([problem, on_rank_0(lambda: [path.name for path in checkpoints.folder.iterdir()])])

    real, saving.TensorFile = saving.TensorFile, _Full  # type: ignore[misc]
    for _Full.fails_at in (1, 2, 3, 4, 7):
        _Full.writes = 0
        try_to_save()
    saving.TensorFile = real  # type: ignore[misc]
    wrote, saving.write_json = saving.write_json, _full_json
    try_to_save()
    saving.write_json = wrote
    checkpoints.save(at)
    last = Checkpoint(checkpoints.folder / f"step-{at.step:06d}")
    live = dict(engine.named_state())
    result |= {
        "failed": checkpoints.failed,
        "faults": [whole.faults(), last.faults()],
        "odd": [name for name in last.names if not torch.equal(last.weight(name), live[name])],
        "steps": [whole.step, last.step],
    }
    engine.close()
    return result


def damaged(strategy: str) -> dict[str, Any]:
    """Each damage to the newest of two checkpoints: what each rank is told, and where `auto` goes on."""
    engine = prepare(strategy, small.identity(4), cross_entropy, torch.optim.AdamW, train_batch_size=12)
    folder = _folder()
    loader = train_loader(engine, [(torch.eye(4)[n % 4], n % 4) for n in range(24)])
    at = Position()
    checkpoints = _checkpoints(engine, folder, loader)
    for _ in range(2):
        _train(engine, loader, at, 1)
        checkpoints.save(at)
    engine.close()
    newest, kept = checkpoints.folder / "step-000002", folder / "kept"
    part = f"{WORLD:05d}-of-{WORLD:05d}.safetensors"  # the last rank's
    result = {}
    for name, damage in {
        "truncated": lambda: os.truncate(newest / f"optimizer-{part}", 100),
        "gone": lambda: (newest / f"optimizer-{part}").unlink(),
        "first rank's": lambda: os.truncate(newest / f"model-00001-of-{WORLD:05d}.safetensors", 50),
        "flipped": lambda: _flip(newest / f"random-{part}"),
        "no manifest": lambda: (newest / MANIFEST).unlink(),
        "no JSON": lambda: (newest / MANIFEST).write_text("{"),
        "empty": lambda: [path.unlink() for path in newest.iterdir()],
        "other shape": lambda: _reshape(newest),
    }.items():
        on_rank_0(lambda damage=damage: (shutil.copytree(newest, kept), damage(), None)[-1])
        try:
            choose(str(newest), folder, False)
            lines = ["taken"]
        except UserError as error:
            lines = [line.replace(str(folder), "") for line in error.lines]
        fallback = choose("auto", folder, False)
        result[name] = [lines, fallback.step if fallback else 0]
        on_rank_0(lambda: (shutil.rmtree(newest), kept.rename(newest), None)[-1])
    whole = choose("auto", folder, False)
    result["whole"] = [[], whole.step if whole else 0]
    return result


def broken_off(strategy: str) -> dict[str, Any]:
    """64 samples, 4 a rank and step: uninterrupted, and ended after 3 steps and resumed. The samples read, per rank."""
    prepare(strategy, _dropped, cross_entropy, _adamw, train_batch_size=4 * WORLD).close()  # a group to meet in
    folder = _folder()
    left: dict[str, Any] = {}
    for name, argv in {
        "whole": [],
        "first": ["--stop_after_steps", "3"],
        "second": ["--resume_from_checkpoint", str(folder / "first")],
    }.items():
        rows = _Rows()
        given = ["--output_dir", str(folder / name), "--num_train_epochs", "2", *argv]
        arguments = parse_arguments(given, description="", defaults={})
        engine = prepare(strategy, _dropped, cross_entropy, _adamw, train_batch_size=4 * WORLD, learning_rate=0.01)
        toolkit.fit(engine, toolkit.Data(rows), arguments)
        left[name] = {"read": rows.read, "weights": small.weights(engine)}
        engine.close()
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        left[name]["losses"] = [json.loads(line)["loss"] for line in lines]
    for each in left.values():
        each["weights"] = sum(sum(map(abs, values)) for values in each["weights"].values())
    return left


# ---- what they share ---------------------------------------------------------------------------------------------

_keys = count(1000, 1000)


def _folder() -> Path:
    """A new one, which all ranks write to, beside the results."""
    return Path(on_rank_0(lambda: tempfile.mkdtemp(dir=Path(sys.argv[1]).parent)))


def _adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


def _mixed(strategy: str) -> Engine:
    return prepare(strategy, Mixed, cross_entropy, _adamw, train_batch_size=12, partition="uniform")


def _dropped() -> nn.Module:
    return small.Chain(nn.Linear(4, 16), nn.Sequential(nn.Dropout(0.3), nn.Linear(16, 2)))


class _Rows:
    def __init__(self) -> None:
        self.inputs = torch.randn(64, 4, generator=torch.Generator().manual_seed(7))
        self.read: list[int] = []

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        self.read.append(index)
        return self.inputs[index], int(self.inputs[index].sum() > 0)


class _Full(TensorFile):
    """On the last rank, the n-th write of all its files finds the disk full, and all that follow."""

    fails_at = 0
    writes = 0

    def _put(self, raw: Any) -> None:
        _Full.writes += 1
        if RANK == WORLD - 1 and _Full.writes >= _Full.fails_at:
            self.error = self.error or FULL
        super()._put(raw)


def _full_json(*_: object) -> None:
    """What only rank 0 writes, after all have written their shares."""
    raise FULL


def _written(checkpoint: Checkpoint) -> dict[str, int]:
    """{file: bytes of the tensors in it} of weights and optimizer."""
    left = {}
    for name in sorted(checkpoint.files):
        if name.startswith(("model-", "optimizer-")):
            left[name] = sum(tensor.nbytes for tensor in load_file(checkpoint.folder / name).values())
    return left


def _checkpoints(engine: Engine, folder: Path, loader: TrainLoader) -> Checkpoints:
    arguments = Namespace(checkpointing_steps=None, save_total_limit=None, augment="none", augment_kwargs=None)
    return Checkpoints(engine, toolkit.Data([]), arguments, folder, loader.sampler, TOTAL)


def _train(engine: Engine, loader: TrainLoader, at: Position, number: int) -> list[float]:
    """Losses of so many steps from there on."""
    lost: list[float] = []
    while len(lost) < number:
        for batches in loader.epoch(at.epoch, at.index):
            if len(lost) == number:
                break
            lost.append(engine.train_step(batches).loss.item())
            at.advance(loader.sampler, TOTAL)
    return lost


def _pieces(checkpoint: Checkpoint) -> dict[str, list[list[int]]]:
    """{parameter/state: [start, stop] of each piece}, in the order of the elements."""
    return {
        f"{name}/{state}": sorted([start, stop] for start, stop, _, _ in held)
        for name, states in checkpoint._pieces.items()
        for state, held in states.items()
        if state != "step"
    }


def _flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


def _reshape(folder: Path) -> None:
    """As a tool that writes JSON by hand: the manifest fits."""
    from toolkit.checkpoint.files import ABOUT, record, write_json

    about = json.loads((folder / ABOUT).read_text())
    about["parameters"]["0.weight"]["shape"] = [2, 8]
    write_json(folder / ABOUT, about)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][ABOUT] = record(folder / ABOUT)
    write_json(folder / MANIFEST, manifest)


GROUPS = ("ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2")
CHECKS = {
    "saved": (saved, (*ALL, *ALONE, *THREE)),
    "half_written": (half_written, (*GROUPS, "ddp x3", "zero3 x3", "pipeline x3")),
    "damaged": (damaged, ("zero1 x2", "pipeline x2", "zero1 x3")),
    "broken_off": (broken_off, ("ddp x2", "zero2 x2")),
}
