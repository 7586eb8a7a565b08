"""Goes on from a checkpoint of any setup: which one, whether it is whole and fits, and what of it goes where."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from toolkit.augmentation import Augmentation, changes
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.randomness import set_random_state
from toolkit.checkpoint.reader import Checkpoint, find
from toolkit.data.sampler import Sampler
from toolkit.engines import Engine, scaler
from toolkit.engines.ranks import every_rank, on_rank_0
from toolkit.engines.state import optimizer_kind
from toolkit.errors import UserError, fault
from toolkit.launch import say

ARGUMENT = "--resume_from_checkpoint"
# Values that may change from one part of a run to the next: told, not refused.
MAY_CHANGE = (
    "learning_rate",
    "weight_decay",
    "momentum",
    "optimizer_options",
    "lr_scheduler_type",
    "num_warmup_steps",
    "label_smoothing_factor",
    "class_weights",
    "lr_schedule",
    "max_grad_norm",
    "mixed_precision",
    "freeze",
)


def choose(wanted: str | None, output_dir: Path, restarted: bool) -> Checkpoint | None:
    """The checkpoint to go on from, whole on every rank; None to start fresh. Collective.

    Args:
        wanted: `auto`, a checkpoint, or a run's folder; None for none.
        restarted: the launcher has started the ranks again: the run's own newest checkpoint comes first.

    Raises:
        UserError: a path with nothing to load, or with nothing whole: a line for each fault, on every rank alike.
    """
    auto = wanted == "auto" or (restarted and wanted is None)
    places = [str(output_dir)] * (auto or restarted) + ([wanted] if wanted is not None and not auto else [])
    faults: list[str] = []
    for place in places:
        for name in on_rank_0(partial(_newest_first, place)):
            lines = _faults(Path(name))
            if not lines:
                for line in faults:
                    say(f"passed over: {line}")
                return Checkpoint(Path(name))
            faults += lines
    if wanted is not None and not auto:
        raise UserError(*(faults or [_nothing(Path(wanted))]))
    if auto:
        for line in faults:
            say(f"passed over: {line}")
        say(f"no whole checkpoint in {output_dir}: starting fresh")
    return None


def resume(
    engine: Engine, checkpoint: Checkpoint, sampler: Sampler, total_steps: int, augmentation: Augmentation | None = None
) -> Position:
    """Put a checkpoint into the engine and this process's random generators. Collective.

    Returns:
        Where the run that wrote it stood.

    Raises:
        UserError: it is of another model, optimizer, or order of samples.
    """
    about = checkpoint.about
    _put(engine, checkpoint, sampler)
    if not any(checkpoint.states(name) or checkpoint.updates_of(name) is not None for name in checkpoint.names):
        say("it holds no optimizer state: momentum and moments start from zero")
    told = about.get("setup") or {}
    writer = f", written by {_value(told, 'strategy')} with {_value(told, 'world_size')} rank(s)" if told else ""
    say(f"resumed from {checkpoint.folder}: step {checkpoint.step}{writer}")
    for name in MAY_CHANGE:
        if name in told and _value(told, name) != getattr(engine.setup, name):
            say(f"{name} is {getattr(engine.setup, name)}, it was {_value(told, name)}")
    before = (about.get("model") or {}).get("arguments")
    if isinstance(before, dict) and isinstance(engine.model_arguments, dict):
        for name, value in engine.model_arguments.items():
            if value != before.get(name):
                say(f"the model's {name} is {value}, it was {before.get(name, 'not given')}")
    for line in changes(augmentation or Augmentation(), about.get("augmentation", {})):
        say(line)
    if about.get("total_steps") not in (None, total_steps):
        say(f"the schedule now ends at step {total_steps}, not {about['total_steps']}")
    return _progress(checkpoint, sampler)


def load(engine: Engine, path: str | Path) -> Checkpoint:
    """Put a checkpoint, or the newest whole one of a folder, into an engine: for a loop of your own. Collective.

    Raises:
        UserError: there is none that is whole, or it is of another model or optimizer.
    """
    checkpoint = choose(str(path), Path(path), restarted=False)
    assert checkpoint is not None  # choose has raised
    _put(engine, checkpoint, None)
    return checkpoint


def _put(engine: Engine, checkpoint: Checkpoint, sampler: Sampler | None) -> None:
    lines = list(_misfits(engine, checkpoint, sampler))
    if lines:
        raise UserError(*lines)
    layout = engine.layout()
    engine.restore(((name, checkpoint.value(name)) for name in layout), checkpoint)
    scaler.restore(engine.scaler, checkpoint.about.get("loss_scaler"))
    engine.updates = checkpoint.about["updates"]
    _restore_random(engine, checkpoint)


def _newest_first(place: str) -> list[str]:
    return [str(each) for each in reversed(find(Path(place)))]


def _faults(folder: Path) -> list[str]:
    """What any rank finds wrong, each hashing its share of the files; the same list on every rank."""
    rank, size = (torch.distributed.get_rank(), torch.distributed.get_world_size()) if _group() else (0, 1)
    try:
        checkpoint = Checkpoint(folder)
        lines = checkpoint.damage(rank, size)
    except UserError as error:
        lines = list(error.lines)
    lines = list(dict.fromkeys(line for share in every_rank(lines) for line in share))
    # Files are opened once every rank's share is sound: a damaged one would be told twice.
    return lines or on_rank_0(lambda: checkpoint.misfits())


def _nothing(path: Path) -> str:
    there = [each.name for each in find(path.parent)]
    reason = "holds no checkpoint" if path.is_dir() else "is a file" if path.exists() else "no such folder"
    remedy = f"there are {', '.join(there)}" if there else "name a checkpoint or a run's folder, or auto"
    return fault(ARGUMENT, str(path), reason, remedy)


def _misfits(engine: Engine, checkpoint: Checkpoint, sampler: Sampler | None) -> Iterator[str]:
    layout = engine.layout()
    held = {name: checkpoint.shape(name) for name in checkpoint.names}
    wrong = [f"it has no {name}" for name in layout if name not in held]
    wrong += [f"{name} is not in this model" for name in held if name not in layout]
    wrong += [
        f"{name} has shape {held[name]}, here {layout[name][1]}"
        for name in layout
        if name in held and held[name] != layout[name][1]
    ]
    if wrong:
        more = f", and {len(wrong) - 1} more" if len(wrong) > 1 else ""
        yield _line(checkpoint, f"of another model: {wrong[0]}{more}", "build the model that wrote it")
        return
    states = {name: checkpoint.states(name) or checkpoint.updates_of(name) is not None for name in held}
    bare = [name for name, (_, _, trained) in layout.items() if trained and not states[name]]
    if any(states.values()) and bare:
        more = f" and {len(bare) - 1} more" if len(bare) > 1 else ""
        reason = f"has no optimizer state for {bare[0]}{more}, frozen when it was written"
        yield _line(checkpoint, reason, "freeze them again, or start from its weights with `oneloop export`")
    kind = optimizer_kind(engine.torch_optimizer)
    if checkpoint.about.get("optimizer") not in (None, kind):
        reason = f"was trained with {checkpoint.about['optimizer']}, this run has {kind}"
        yield _line(checkpoint, reason, "take the same --optimizer")
    order, here = checkpoint.about.get("order"), sampler.order if sampler else {}
    changed = [f"{name} {here[name]}, was {order[name]}" for name in here if order and order[name] != here[name]]
    if changed:
        reason = f"its samples came in another order: {'; '.join(changed)}"
        yield _line(checkpoint, reason, "give the same values, or start from its weights with `oneloop export`")


def _restore_random(engine: Engine, checkpoint: Checkpoint) -> None:
    rank, size = engine.setup.rank, engine.setup.world_size
    wrote = sum(name.startswith("random-") for name in checkpoint.files)
    state = checkpoint.random_state(rank)
    if state is not None and wrote == size:
        set_random_state(state, engine.device)
        return
    # Another number of ranks draws another dropout; so that none repeats what was drawn before, from a seed of its own.
    seed = np.random.SeedSequence([engine.setup.seed, checkpoint.step, rank]).generate_state(1)[0]
    torch.manual_seed(int(seed))
    why = f"random states of {wrote} ranks do not fit {size}" if wrote else "no random states in it"
    say(f"{why}: dropout goes on from a seed made of (seed, step, rank)")


def _progress(checkpoint: Checkpoint, sampler: Sampler) -> Position:
    about: dict[str, Any] = checkpoint.about
    if about.get("order") is not None:
        return Position.of(about)
    # Written by another tool: as many steps of these global batches.
    at = Position(checkpoint.step, *divmod(checkpoint.step, sampler.steps_per_epoch))
    at.samples = at.epoch * (sampler.size - sampler.dropped_per_epoch) + at.index * sampler.train_batch_size
    say(f"it does not say which samples it has seen: going on at step {at.index} of epoch {at.epoch}")
    return at


def _value(told: dict[str, Any], name: str) -> Any:
    return told.get(name, {}).get("value")


def _line(checkpoint: Checkpoint, reason: str, remedy: str) -> str:
    return fault(ARGUMENT, str(checkpoint.folder), reason, remedy)


def _group() -> bool:
    return torch.distributed.is_initialized()
