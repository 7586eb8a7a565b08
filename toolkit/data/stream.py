"""Training rows that are read as they are needed, for what fits neither into memory nor onto the disk.

The stream has no end: pass after pass over the rows, each in an order of its own (`datasets` shuffles a buffer of them
and the order of the files). A sample's id is its position in the stream, and global batch k holds the positions
[k * B, (k + 1) * B): so seed and step decide the samples of a step, whatever ranks, micro-batches and workers there
are. Each process that loads reads all rows, and tokenizes or decodes only those that are its own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import numpy as np

from toolkit.data.columns import label_keys
from toolkit.data.loader import Rows
from toolkit.data.prepared import shown
from toolkit.data.readers import Table
from toolkit.data.rowwise import Row, table_of
from toolkit.data.sampler import ENDLESS, Sampler, StreamSampler
from toolkit.errors import UserError, fault
from toolkit.launch import say

READ = 64  # rows taken out of the stream at once
Read = Callable[[Table, Sequence[int]], Rows]  # raw rows and their class ids -> rows as the model takes them


class Stream:
    """The rows of a stream by their position, for the loaders: map-style, without an end.

    Held are the raw rows of one global batch, beside the shuffle buffer. An earlier batch than the last one asked for
    is found by reading from the start again, a later one by reading on.
    """

    def __init__(
        self,
        rows: Any,  # datasets.IterableDataset
        read: Read,
        label_names: Sequence[str],
        label: str,  # its column
        *,
        name: str,  # for messages
        class_names: dict[str, list[str]],
        train_batch_size: int,
        seed: int,
        buffer_size: int,
        order: str,  # what else decides which row stands where, for checkpoints
    ) -> None:
        self.rows, self.read, self.label, self.name, self.class_names = rows, read, label, name, class_names
        self.numbers = {name: number for number, name in enumerate(label_names)}
        self.train_batch_size, self.seed, self.buffer_size = train_batch_size, seed, buffer_size
        self.order = order
        self._start()

    def __len__(self) -> int:
        return ENDLESS

    def __getitem__(self, position: int) -> Any:
        """The row as the model takes it. UserError for a row that cannot be used, named by its place."""
        batch, index = divmod(position, self.train_batch_size)
        if self._process != os.getpid() or (batch != self._batch and batch * self.train_batch_size < self._next):
            self._start()
        if batch != self._batch:
            self._go_to(batch)
        table = table_of([self._held[index]], self.name, position, self.class_names)
        [key] = label_keys(table, self.label)
        if key not in self.numbers:
            reason = f"{table.name}, {table.where([0])}: a label that is none of the classes: {key}"
            raise UserError(fault("--label_column_name", self.label, reason, "correct it, or remove the row"))
        return self.read(table, [self.numbers[key]])[0]

    def sampler(self, size: int, train_batch_size: int, seed: int, **_: Any) -> Sampler:
        """Composes the global batches, as `Sampler` does for rows in memory; lengths are not known ahead."""
        return StreamSampler(train_batch_size, seed, self.order)

    def _start(self) -> None:
        """Before the first row. A worker process does not go on where its parent was: they would share open files."""
        self._process, self._passes = os.getpid(), self._endless()
        self._batch, self._held, self._next = -1, list[Row](), 0  # position of the row that is read next

    def _go_to(self, batch: int) -> None:
        skipped = batch * self.train_batch_size - self._next
        passed: Iterable[int] = range(skipped)
        if self._next == 0 and skipped > 0 and _reports():
            say(f"{self.name}: reading past {skipped:,} rows, to where the run goes on")
            passed = shown(passed, skipped, "rows read past")
        for _ in passed:
            next(self._passes)
        self._held = list(islice(self._passes, self.train_batch_size))
        self._batch, self._next = batch, (batch + 1) * self.train_batch_size

    def _endless(self) -> Iterator[Row]:
        for number in count():
            # Not set_epoch: it changes a number in memory that worker processes share.
            order = np.random.default_rng([self.seed, number])
            empty = True
            for row in raw(self.rows.shuffle(generator=order, buffer_size=self.buffer_size)):
                empty = False
                yield row
            if empty:
                raise UserError(fault("--streaming", self.name, "has no rows left to train on", "give it more rows"))


def raw(rows: Any) -> Iterator[Row]:
    """The rows of an IterableDataset.

    Not by iter(): in a worker process of a DataLoader that gives each worker other rows.
    """
    for batch in rows.iter(batch_size=READ):
        for values in zip(*batch.values(), strict=True):
            yield dict(zip(batch, values, strict=True))


def _reports() -> bool:
    """Whether this process tells how far the stream is: not a worker beside others."""
    from torch.utils.data import get_worker_info

    worker = get_worker_info()
    return worker is None or worker.id == 0
