"""Micro-batches on their way through an engine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

import torch
from torch import Tensor

from toolkit.data.batch import Batch


class Batches(Protocol):
    """As many batches on every rank."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Batch]: ...


def logits_of(outputs: Any) -> Any:
    """The logits of a transformers output, or the outputs themselves."""
    return outputs.logits if hasattr(outputs, "logits") else outputs


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on the device, without waiting where the memory is pinned."""

    def move(value: Tensor) -> Tensor:
        return value.to(device, non_blocking=True)

    inputs: Any = batch.inputs
    if isinstance(inputs, Mapping):
        inputs = {name: move(value) for name, value in inputs.items()}
    else:
        inputs = tuple(move(value) for value in inputs)
    return Batch(inputs, move(batch.targets), move(batch.weights), batch.total, move(batch.ids))


def take(batches: Iterable[Batch], count: int) -> Iterator[Batch]:
    """Exactly `count` micro-batches, one after another.

    Raises:
        RuntimeError: there are fewer.
    """
    taken = 0
    for batch in islice(batches, count):
        taken += 1
        yield batch
    if taken < count:
        raise RuntimeError(f"a step takes {count} micro-batches, the loader gave {taken}")
