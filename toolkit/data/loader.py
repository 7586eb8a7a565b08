"""Batches for training and evaluation, sharded by data-parallel rank here and never by a framework's `prepare`.

A loader handed to Accelerate's or DeepSpeed's `prepare` is sharded by process: with a pipeline the first and the last
stage then get different batches, and train on mismatched inputs and labels without an error. Here `rank` and `size`
are those of the data-parallel grid, so all stages of one replica see the same batches.
"""

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, default_collate

from toolkit import stop
from toolkit.data.batch import Batch
from toolkit.data.sampler import Sampler, deal
from toolkit.errors import UserError

Inputs = dict[str, Tensor] | tuple[Tensor, ...]
Collate = Callable[[list[Any]], tuple[Inputs, Tensor]]
Transform = Callable[[Batch, int], Batch]  # a batch, and its epoch


class Rows(Protocol):
    """A map-style data set."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def collate_rows(rows: list[Any]) -> tuple[Inputs, Tensor]:
    """Rows (input, ..., target) of tensors or numbers, stacked; a single input may be a dict of keyword arguments."""
    *inputs, targets = default_collate(rows)
    return (inputs[0] if len(inputs) == 1 and isinstance(inputs[0], dict) else tuple(inputs)), targets


class Plan(NamedTuple):
    """What one micro-batch will hold, before its rows are read."""

    ids: list[int]
    weights: list[float]  # of the ids: of a padding row 0
    total: float


class _Planned(Dataset[Batch | UserError]):
    """Reads and collates a whole plan, so that a worker process does both."""

    def __init__(self, rows: Rows, collate: Collate) -> None:
        self.rows, self.collate = rows, collate

    def __getitem__(self, plan: Plan) -> Batch | UserError:
        try:
            inputs, targets = self.collate([self.rows[index] for index in plan.ids])
        except UserError as error:  # handed over as a value: a worker would wrap its lines into a traceback
            return error
        weights = torch.tensor(plan.weights, dtype=torch.float32)
        return Batch(inputs, targets, weights, plan.total, torch.tensor(plan.ids, dtype=torch.int64))


def _as_it_is(item: Any) -> Any:
    return item


def _stream(
    rows: Rows, collate: Collate, plans: Iterable[Plan], num_workers: int, pin_memory: bool
) -> Generator[Batch, None, None]:
    """Reads the plans in order, ahead of the consumer where there are workers."""
    loader: DataLoader[Batch | UserError] = DataLoader(
        _Planned(rows, collate),
        batch_size=None,
        sampler=plans,  # typed for ints, takes any iterable of what the data set takes
        collate_fn=_as_it_is,
        num_workers=num_workers,
        pin_memory=pin_memory,
        worker_init_fn=stop.ignore,  # a signal to the whole group must leave the last step its workers
        # An iterator draws its workers' seed: from torch's global generator that would shift the model's dropout.
        generator=torch.Generator().manual_seed(0),
    )
    for item in loader:
        if isinstance(item, UserError):
            raise item
        yield item


class TrainLoader:
    """The share of data-parallel `rank` (of `size`) of each global batch of the sampler.

    `row_weights`, by sample id, are what rows weigh in the loss; 1 without.
    """

    def __init__(
        self,
        dataset: Rows,
        collate: Collate,
        sampler: Sampler,
        *,
        micro_batch_size: int,
        gradient_accumulation_steps: int,
        rank: int,
        size: int,
        num_workers: int = 0,
        pin_memory: bool = False,
        row_weights: Sequence[float] | None = None,
        transform: Transform | None = None,  # of each batch, in this process
    ) -> None:
        room = micro_batch_size * gradient_accumulation_steps * size
        if sampler.train_batch_size > room:
            raise ValueError(f"a global batch of {sampler.train_batch_size} does not fit {room} rows")
        self.dataset, self.collate, self.sampler = dataset, collate, sampler
        self.micro_batch_size, self.gradient_accumulation_steps = micro_batch_size, gradient_accumulation_steps
        self.rank, self.size = rank, size
        self.num_workers, self.pin_memory = num_workers, pin_memory
        self.row_weights, self.transform = row_weights, transform

    def __len__(self) -> int:
        """Optimizer steps of an epoch, the same on every rank."""
        return self.sampler.steps_per_epoch

    def epoch(self, epoch: int, start: int = 0) -> Iterator[Iterator[Batch]]:
        """Yields, for each optimizer step of `epoch` from step `start` on, an iterator of `gradient_accumulation_steps`
        batches, as one after another is asked for.

        Nothing is read before the first batch is asked for, and what a step leaves unread is skipped: a middle stage
        of a pipeline asks for none.
        """
        stream: Iterator[Batch] | None = None
        position = -1  # micro-batch of the epoch that the stream gives next

        def read(step: int) -> Iterator[Batch]:
            nonlocal stream, position
            for micro in range(self.gradient_accumulation_steps):
                wanted = step * self.gradient_accumulation_steps + micro
                if stream is None or position != wanted:
                    plans = self._plans(epoch, wanted)
                    stream = _stream(self.dataset, self.collate, plans, self.num_workers, self.pin_memory)
                    position = wanted
                position += 1
                batch = next(stream)
                yield batch if self.transform is None else self.transform(batch, epoch)

        for step in range(start, len(self)):
            yield read(step)

    def _plans(self, epoch: int, first: int) -> Iterator[Plan]:
        """This rank's plans of `epoch`, from its micro-batch `first` on."""
        start, skipped = divmod(first, self.gradient_accumulation_steps)
        for step in range(start, len(self)):
            ids = self.sampler.global_batch(epoch, step)
            shares = deal(ids, self.sampler.lengths, self.size, self.gradient_accumulation_steps, self.micro_batch_size)
            total = math.fsum(self._weights(ids, len(ids)))
            for rows, real in shares[self.rank][skipped if step == start else 0 :]:
                yield Plan(rows, self._weights(rows, real), total)

    def _weights(self, rows: list[int], real: int) -> list[float]:
        """Of these rows, of which the first `real` are no padding."""
        given = [1.0] * real if self.row_weights is None else [self.row_weights[row] for row in rows[:real]]
        return given + [0.0] * (len(rows) - real)


class EvalLoader:
    """Every sample of `dataset` once, over all ranks; each rank yields equally many batches of exactly `batch_size`
    rows.

    Rows of similar length stand together where `lengths` are given. `Batch.total` is that of one round over the ranks.
    """

    def __init__(
        self,
        dataset: Rows,
        collate: Collate,
        *,
        batch_size: int,
        rank: int,
        size: int,
        lengths: Sequence[int] | None = None,
        num_workers: int = 0,
        pin_memory: bool = False,
    ) -> None:
        self.dataset, self.collate = dataset, collate
        self.batch_size, self.rank, self.size, self.lengths = batch_size, rank, size, lengths
        self.num_workers, self.pin_memory = num_workers, pin_memory

    def __len__(self) -> int:
        """Batches of each rank."""
        return math.ceil(len(self.dataset) / (self.batch_size * self.size))

    def __iter__(self) -> Iterator[Batch]:
        ids: list[int] = list(range(len(self.dataset)))
        if self.lengths is not None:
            lengths = self.lengths
            ids.sort(key=lambda sample: -lengths[sample])
        step = self.batch_size * self.size
        plans = []
        for start in range(0, len(ids), step):
            share = ids[start : start + step]
            rows, real = deal(share, self.lengths, self.size, 1, self.batch_size)[self.rank][0]
            plans.append(Plan(rows, [1.0] * real + [0.0] * (len(rows) - real), float(len(share))))
        return _stream(self.dataset, self.collate, plans, self.num_workers, self.pin_memory)
