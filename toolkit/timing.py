"""Where a step's time goes: waiting for batches, and everything else."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from statistics import median
from time import perf_counter

from toolkit.data.batch import Batch


class StepTimes:
    """Seconds of this process's steps by its own clock; no device is waited for.

    On a GPU a step returns before the device is done with it, and the wait shows in a later one: the sum over many
    steps is right, a single one need not be.
    """

    def __init__(self) -> None:
        self._data, self._rest = array("d"), array("d")
        self._began = self._waited = 0.0

    def begin(self) -> None:
        self._began, self._waited = perf_counter(), 0.0

    def reading(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The same batches, with the wait for each counted."""
        source = iter(batches)
        while True:
            began = perf_counter()
            try:
                batch = next(source)
            except StopIteration:
                return
            finally:
                self._waited += perf_counter() - began
            yield batch

    def end(self) -> dict[str, float]:
        """`data_seconds`: waited for batches; `step_seconds`: the rest, from `begin` on."""
        self._data.append(self._waited)
        self._rest.append(perf_counter() - self._began - self._waited)
        return {"data_seconds": self._data[-1], "step_seconds": self._rest[-1]}

    def medians(self) -> dict[str, float]:
        """Of the steps after the first, which also warms up; empty before there is one."""
        if len(self._data) < 2:
            return {}
        return {"data_seconds": median(self._data[1:]), "step_seconds": median(self._rest[1:])}
