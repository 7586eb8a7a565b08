"""The one loop: every strategy, both models, and a user's own, train in these lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from toolkit import stop
from toolkit.augmentation import augmentation_of
from toolkit.checkpoint.best import Best
from toolkit.checkpoint.keep import Checkpoints
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.resume import resume
from toolkit.class_weights import row_weights
from toolkit.data.augment import augment_of
from toolkit.data.augmented import show_augmentations
from toolkit.data.batch import Batch
from toolkit.data.loader import EvalLoader, TrainLoader
from toolkit.engines import Engine
from toolkit.engines.ranks import every_rank, on_rank_0
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.monitor import Monitor
from toolkit.optim import lr_at
from toolkit.output import claim, clear, let_go
from toolkit.setup import Setup
from toolkit.setup.schedule import length_notes, warmup_fault


@let_go()
def fit(engine: Engine, data: Any, arguments: Any, metrics: Sequence[Any] = ()) -> dict[str, Any]:
    """Train for `num_train_epochs`, or `max_train_steps`; evaluate after each epoch, or every `eval_steps`, and at the
    end; keep checkpoints.

    Args:
        engine: from `prepare`.
        data: `toolkit.data.Data`: train and evaluation sets, `collate`, lengths.
        arguments: from `parse_arguments`.
        metrics: `evaluate.Metric` objects.

    Returns:
        The last evaluation's scores, equal on every rank; empty without an evaluation set, and after a range test
        (`--find_learning_rate`), which is all that then runs.

    Raises:
        UserError: the output folder holds another run, the checkpoint to go on from does not fit, the warm-up is
            longer than the run, or a loss is not finite.
        stop.Ended: a SystemExit with 143 or 130 after a signal, 3 where the last checkpoint could not be saved.
    """
    if arguments.find_learning_rate:
        from toolkit.range_test import find_learning_rate  # which takes its steps from here

        find_learning_rate(engine, data, arguments)
        return {}
    setup = engine.setup
    train, evaluation = loaders(engine, data, arguments)
    total_steps = arguments.max_train_steps or math.ceil(arguments.num_train_epochs * len(train))
    last_step = min(total_steps, arguments.stop_after_steps or total_steps)
    setup = engine.setup = _with_warmup(setup, total_steps)
    _check_schedule(setup, arguments, total_steps)
    best = Best.of(arguments)
    best.check(metrics, evaluation is not None)
    if arguments.show_augmentations:
        on_rank_0(lambda: show_augmentations(train, data.label_names, arguments.show_augmentations))

    output_dir, checkpoint = claim(arguments)
    setting = augmentation_of(arguments)
    at = resume(engine, checkpoint, train.sampler, total_steps, setting) if checkpoint else Position()
    clear(output_dir, checkpoint)
    if at.step >= last_step:
        say(f"nothing to train: it stands at step {at.step}, and this run ends after step {last_step}")
    checkpoints = Checkpoints(engine, data, arguments, output_dir, train.sampler, total_steps)
    with Monitor(engine, arguments, output_dir, total_steps, at, train.sampler) as monitor:
        if arguments.save_initial and at.step == 0:
            checkpoints.save(at, initial=True)
            monitor.first_save_seconds = (checkpoints.written or {}).get("seconds", 0.0)
        if at.evaluation_due:  # the run that was resumed had ended before it
            _evaluate(engine, evaluation, metrics, at, monitor, checkpoints, best)
        for batches in steps(train, at, last_step, best):
            monitor.begin(at)
            learning_rate = lr_at(
                engine.updates,
                schedule=setup.lr_scheduler_type,
                learning_rate=setup.learning_rate,
                num_warmup_steps=setup.num_warmup_steps,
                total_steps=total_steps,
                params=setup.lr_schedule,
            )
            engine.set_lr(learning_rate)
            stats = engine.train_step(monitor.times.reading(batches))  # forward, backward, clip, optimizer
            engine.check_first_step()
            at.advance(train.sampler, total_steps, arguments.eval_steps)
            monitor.end(at, learning_rate, stats)

            if checkpoints.due(at) or at.step == last_step:  # before the evaluation, which may fail
                monitor.flush()
                checkpoints.save(at)
            if at.evaluation_due:
                _evaluate(engine, evaluation, metrics, at, monitor, checkpoints, best)
        monitor.flush()
        checkpoints.save(at)
        if at.step < last_step and best.given_up(at):
            monitor.stopped_early = True
            say(best.reason(at))
        monitor.checkpoint, monitor.not_saved = checkpoints.written, checkpoints.failed
    lost = on_rank_0(lambda: checkpoints.failed or monitor.unwritten)
    if lost or stop.gate.signal:
        raise stop.Ended(3 if lost else stop.exit_code())
    return at.scores


def _evaluate(
    engine: Engine,
    evaluation: EvalLoader | None,
    metrics: Sequence[Any],
    at: Position,
    monitor: Monitor,
    checkpoints: Checkpoints,
    best: Best,
) -> None:
    """Evaluate, unless a signal ends the run before: then it stays due."""
    if evaluation is None:
        return
    scores = engine.evaluate(evaluation, metrics, stop.go_on)
    if scores is None:
        return
    at.scores, at.evaluation_due = scores, False
    monitor.evaluated(scores)
    if best.judge(at, scores) and best.saves:
        checkpoints.save(at)


def steps(train: TrainLoader, at: Position, last_step: int, best: Best | None = None) -> Iterator[Iterator[Batch]]:
    """The micro-batches of each next step, to the last one or to where early stopping or a signal ends the run."""
    while at.step < last_step:
        for batches in train.epoch(at.epoch, at.index):
            given_up = best is not None and best.given_up(at)
            if at.step == last_step or given_up or not stop.go_on():
                return
            yield batches


def _with_warmup(setup: Setup, total_steps: int) -> Setup:
    """A warm-up given as a ratio in optimizer steps, rounded up as transformers does."""
    if not setup.warmup_ratio:
        return setup
    steps = math.ceil(setup.warmup_ratio * total_steps)
    told = f"{setup.origins['warmup_ratio']} {setup.warmup_ratio:g} of {total_steps} steps"
    return replace(setup, num_warmup_steps=steps, origins={**setup.origins, "num_warmup_steps": told})


def _check_schedule(setup: Setup, arguments: Any, total_steps: int) -> None:
    """A warm-up longer than a run that the user bounded is refused; what else does not fit the run's length is said."""
    asked = [name for name in ("max_train_steps", "num_train_epochs") if name in getattr(arguments, "typed", ())]
    origin = setup.origins.get("num_warmup_steps", "")
    if asked and (lines := warmup_fault(setup.num_warmup_steps, origin, total_steps, f"--{asked[0]}")):
        raise UserError(*lines)
    for note in length_notes(setup.num_warmup_steps, setup.lr_schedule, total_steps):
        if note not in setup.notes:
            say(note)


def _check_same_rows(name: str, count: int) -> None:
    """Hosts with files of their own may differ; ranks that number their rows differently train on other batches."""
    counts = every_rank(count)
    if len(set(counts)) > 1:
        told = ", ".join(f"rank {rank} {number:,}" for rank, number in enumerate(counts))
        raise UserError(fault(f"data.{name}", told, "rows differ", "give every host the same files"))


def loaders(engine: Engine, data: Any, arguments: Any) -> tuple[TrainLoader, EvalLoader | None]:
    """This rank's share of the training and evaluation sets."""
    setup = engine.setup
    for name, rows in (("train", data.train), ("evaluation", data.evaluation)):
        if rows is not None and len(rows) == 0:
            raise UserError(fault(f"data.{name}", 0, "has no rows", "give it some, or None for no evaluation"))
        _check_same_rows(name, 0 if rows is None else len(rows))
    if setup.train_batch_size > len(data.train):
        say(f"train_batch_size {setup.train_batch_size} is more than the {len(data.train)} rows: the rest is padding")
    sampler = data.sampler(
        len(data.train),
        setup.train_batch_size,
        setup.seed,
        lengths=data.lengths,
        group_by_length=arguments.group_by_length and data.lengths is not None,
        # Padding rows would enter BatchNorm's statistics: there the last incomplete global batch is dropped.
        drop_last=engine.couples_samples,
    )
    share: dict[str, Any] = {
        "rank": engine.rank,
        "size": engine.size,
        "num_workers": arguments.dataloader_num_workers,
        "pin_memory": engine.device.type == "cuda",
    }
    augment = augment_of(arguments, data, setup.seed, engine.device)
    train = TrainLoader(
        data.train,
        data.collate,
        sampler,
        micro_batch_size=setup.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        row_weights=row_weights(setup.class_weights, data),
        transform=augment if engine.reads_inputs else None,
        **share,
    )
    if data.evaluation is None:
        return train, None
    batch_size = arguments.per_device_eval_batch_size or setup.train_micro_batch_size_per_gpu
    return train, EvalLoader(data.evaluation, data.collate, batch_size=batch_size, lengths=data.eval_lengths, **share)
