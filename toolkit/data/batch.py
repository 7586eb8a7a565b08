"""One micro-batch of one rank, as the engines take it."""

from typing import NamedTuple

from torch import Tensor


class Batch(NamedTuple):
    """Rows for one forward pass. Every rank and micro-batch has the same number of rows, B; missing ones are padding.

    The loss of the global batch is sum(weights x losses) / total, summed over its ranks and micro-batches.
    """

    inputs: dict[str, Tensor] | tuple[Tensor, ...]  # keyword or positional arguments of the model, each [B, ...]
    targets: Tensor  # [B], int64 class ids for the models here
    weights: Tensor  # [B] float32: 1 for a real row, or its class's weight; 0 for padding
    total: float  # sum of the weights of the whole global batch, over all ranks and micro-batches
    ids: Tensor  # [B] int64: index of each row's sample in its data set; a padding row repeats a real one's
