"""The one loop: every strategy, both models, and a user's own, train in these lines."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import count, islice
from typing import Any

from toolkit.checkpoint import save_weights
from toolkit.data.batch import Batch
from toolkit.data.loader import EvalLoader, TrainLoader
from toolkit.data.sampler import Sampler
from toolkit.engines import Engine
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.monitor import Monitor
from toolkit.optim import lr_at


def fit(engine: Engine, data: Any, arguments: Any, metrics: Sequence[Any] = ()) -> dict[str, Any]:
    """Train for `num_train_epochs`, or `max_train_steps`; evaluate after each epoch and at the end; keep the weights.

    Args:
        engine: from `prepare`.
        data: `toolkit.data.Data`: train and evaluation sets, `collate`, lengths.
        arguments: from `parse_arguments`.
        metrics: `evaluate.Metric` objects.

    Returns:
        The last evaluation's scores, equal on every rank; empty without an evaluation set.
    """
    setup = engine.setup
    train, evaluation = loaders(engine, data, arguments)
    total_steps = arguments.max_train_steps or math.ceil(arguments.num_train_epochs * len(train))
    if setup.num_warmup_steps >= total_steps:
        say(f"num_warmup_steps {setup.num_warmup_steps} takes all {total_steps} steps: the peak is not reached")

    scores: dict[str, Any] = {}
    samples = 0
    with Monitor(engine, arguments, total_steps) as monitor:
        for step, epoch, index, batches in _steps(train, total_steps):
            monitor.begin(step)
            learning_rate = lr_at(
                engine.updates,
                schedule=setup.lr_scheduler_type,
                learning_rate=setup.learning_rate,
                num_warmup_steps=setup.num_warmup_steps,
                total_steps=total_steps,
            )
            engine.set_lr(learning_rate)
            stats = engine.train_step(batches)  # forward, backward, clip, optimizer
            if step == 1:
                engine.check_all_trained()
                engine.check_ranks_agree()
            samples += len(train.sampler.global_batch(epoch, index))
            monitor.end(epoch, samples, learning_rate, stats)

            if step == total_steps:
                save_weights(engine, monitor.output_dir / "checkpoints" / f"step-{step:06d}")
            if evaluation is not None and (index + 1 == len(train) or step == total_steps):
                scores = engine.evaluate(evaluation, metrics)
                monitor.evaluated(scores)
    return scores


def loaders(engine: Engine, data: Any, arguments: Any) -> tuple[TrainLoader, EvalLoader | None]:
    """This rank's share of the training and evaluation sets."""
    setup = engine.setup
    for name, rows in (("train", data.train), ("evaluation", data.evaluation)):
        if rows is not None and len(rows) == 0:
            raise UserError(fault(f"data.{name}", 0, "has no rows", "give it some, or None for no evaluation"))
    if setup.train_batch_size > len(data.train):
        say(f"train_batch_size {setup.train_batch_size} is more than the {len(data.train)} rows: the rest is padding")
    sampler = Sampler(
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
    train = TrainLoader(
        data.train,
        data.collate,
        sampler,
        micro_batch_size=setup.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        **share,
    )
    if data.evaluation is None:
        return train, None
    batch_size = arguments.per_device_eval_batch_size or setup.train_micro_batch_size_per_gpu
    return train, EvalLoader(data.evaluation, data.collate, batch_size=batch_size, lengths=data.eval_lengths, **share)


def _steps(train: TrainLoader, total_steps: int) -> Iterator[tuple[int, int, int, Iterator[Batch]]]:
    """(step from 1, epoch, index in the epoch, its micro-batches) for as many steps as asked for."""
    endless = ((epoch, index, batches) for epoch in count() for index, batches in enumerate(train.epoch(epoch)))
    for step, (epoch, index, batches) in enumerate(islice(endless, total_steps), start=1):
        yield step, epoch, index, batches
