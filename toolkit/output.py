"""The folder of a run: made, or gone on in; one that holds another run is not touched."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import torch.distributed as dist

from toolkit.checkpoint.reader import Checkpoint, find, leftovers
from toolkit.checkpoint.resume import ARGUMENT, choose
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError, fault
from toolkit.launch import say

OF_A_RUN = ("summary.json", "metrics.jsonl", "config", "checkpoints")
_held: int | None = None  # the folder of this process's run, open and locked


def claim(arguments: Namespace) -> tuple[Path, Checkpoint | None]:
    """This run's folder, and the checkpoint that it goes on from, if any; the same on every rank. Collective.

    Raises:
        UserError: the folder holds another run, or cannot be made; a run is in it now; there is nothing to go on from.
    """
    restarted = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0
    output_dir = Path(on_rank_0(lambda: _hold(_make(arguments, restarted))))
    return output_dir, choose(arguments.resume_from_checkpoint, output_dir, restarted)


@contextmanager
def let_go() -> Iterator[None]:
    """Around a run: at its end another one may have the folder, as when its process is killed."""
    try:
        yield
    finally:
        _release()


def clear(output_dir: Path, checkpoint: Checkpoint | None) -> None:
    """Bring the folder to where the checkpoint left it: rows past it go, later checkpoints step aside. Collective.

    To be called once it is known that the checkpoint fits: a run that is refused has changed nothing.

    Raises:
        UserError: metrics.jsonl cannot be written, or a checkpoint not renamed.
    """
    on_rank_0(lambda: _cut(output_dir, checkpoint))


def _hold(folder: Path) -> str:
    """Lock the folder for this process: two runs would each write its rows, and move the other's checkpoints."""
    global _held
    _release()
    _held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(_held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        remedy = "wait for its end, or name a new folder"
        raise UserError(fault("--output_dir", str(folder), "another run is writing into it", remedy)) from None
    except OSError:
        pass  # some network file systems have no locks
    return str(folder)


def _release() -> None:
    global _held
    if _held is not None:
        os.close(_held)
        _held = None


os.register_at_fork(after_in_child=_release)  # else a worker that outlives a killed rank would keep the lock


def _make(arguments: Namespace, restarted: bool) -> Path:
    if arguments.output_dir is None:
        return _default_dir(Path("runs", f"{Path(arguments.script).stem}-{datetime.now():%Y%m%d-%H%M%S}"), restarted)
    folder, wanted = Path(arguments.output_dir), arguments.resume_from_checkpoint
    held = [name for name in OF_A_RUN if (folder / name).exists()]
    inside = wanted is not None and folder.resolve() in (Path(wanted).resolve(), *Path(wanted).resolve().parents)
    if held and not (wanted == "auto" or inside or restarted):
        reason = f"already holds a run ({held[0]}); it would be overwritten"
        remedy = f"name a new folder, or go on in it with {ARGUMENT} auto"
        raise UserError(fault("--output_dir", str(folder), reason, remedy))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = f"cannot be made ({error.strerror})"
        raise UserError(fault("--output_dir", str(folder), reason, "name a folder you may write")) from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise UserError(fault("--output_dir", str(folder), "may not be written", "name a folder you may write"))
    return folder


def _default_dir(folder: Path, restarted: bool) -> Path:
    """A new folder; where torchrun has started the ranks again, the one that they had."""
    # torchrun's store outlives its ranks; the group's own view of it is another for each attempt.
    store = None
    if "TORCHELASTIC_RUN_ID" in os.environ:
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(address, port, timeout=timedelta(seconds=60))
        if restarted and store.check(["oneloop/output_dir"]):
            return Path(store.get("oneloop/output_dir").decode())
    made = _new_dir(folder)
    if store is not None:
        store.set("oneloop/output_dir", str(made))
    return made


def _new_dir(folder: Path) -> Path:
    """The folder, or the same with -2, -3, ... where other runs began in this second."""
    for number in count(1):
        candidate = folder if number == 1 else folder.with_name(f"{folder.name}-{number}")
        try:
            candidate.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            continue
        except OSError as error:
            reason = f"cannot be made ({error.strerror})"
            raise UserError(fault("--output_dir", str(candidate), reason, "name a folder you may write")) from error
        return candidate
    raise AssertionError("count() does not end")


def _cut(output_dir: Path, checkpoint: Checkpoint | None) -> None:
    step = checkpoint.step if checkpoint else 0
    _cut_rows(
        output_dir / "metrics.jsonl", step, checkpoint is not None and bool(checkpoint.about.get("evaluation_due"))
    )
    for folder in leftovers(output_dir):
        shutil.rmtree(folder, ignore_errors=True)
        say(f"removed {folder}: a save that was cut short left it")
    for folder in find(output_dir / "checkpoints"):
        itself = checkpoint is not None and folder.samefile(checkpoint.folder)
        if int(folder.name.partition("-")[2]) >= step and not itself:
            free = (folder.with_name(f"aside-{number}-{folder.name}") for number in count(1))
            try:
                aside = folder.rename(next(name for name in free if not name.exists()))
            except OSError as error:
                reason = f"cannot be renamed, and is past step {step} or damaged ({error.strerror})"
                raise UserError(fault("--output_dir", str(folder), reason, "see who may write its folder")) from error
            say(f"{folder.name} is past step {step} or damaged: it is now {aside}")


def _cut_rows(metrics: Path, step: int, due: bool) -> None:
    if not metrics.exists():
        return
    rows = metrics.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
    keep = [row for row in rows if _belongs(row, step, due)]
    if keep == rows:
        return
    temporary = metrics.with_suffix(".tmp")
    try:
        temporary.write_text("".join(keep), encoding="utf-8")
        temporary.replace(metrics)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        reason = f"cannot be written ({error.strerror})"
        raise UserError(fault("--output_dir", str(metrics), reason, "make room for it")) from error


def _belongs(row: str, step: int, due: bool) -> bool:
    """Whether a row of metrics.jsonl is whole and of a step that was done; `due`: the last one is evaluated again."""
    try:
        told = json.loads(row)
        return row.endswith("\n") and told["step"] <= step and not (due and told["step"] == step and "loss" not in told)
    except (ValueError, KeyError, TypeError):
        return False
