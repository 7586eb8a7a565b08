"""Which samples an optimizer step trains on, and which rank and micro-batch carries which of them.

(seed, epoch, index) decides the set of samples of a global batch. Ranks, micro-batch size and accumulation only decide
how that set is dealt, so every setup trains on the same global batches, and resuming is arithmetic.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from toolkit.errors import UserError, fault

ENDLESS = 2**53  # rows of a stream: more than any run has, and a number that JSON keeps
WINDOW = 50  # global batches sorted by length together: enough for short padding, few enough to keep the order random


class Sampler:
    """Composes global batches of `train_batch_size` sample ids out of `size` samples.

    Each epoch is a permutation of its own of all samples. Its last global batch holds the `size % train_batch_size`
    samples left over (fewer rows than the others), or is left out with `drop_last`. With `group_by_length` the
    shuffled samples are cut into windows of 50 global batches, sorted by length inside, cut into global batches, and
    these are shuffled. The left-over samples are taken out before, so that neither the shortest nor the longest texts
    are the ones that end up in the short batch or are dropped.
    """

    def __init__(
        self,
        size: int,
        train_batch_size: int,
        seed: int,
        *,
        lengths: Sequence[int] | None = None,
        group_by_length: bool = False,
        drop_last: bool = False,
    ) -> None:
        if group_by_length and lengths is None:
            raise ValueError("group_by_length needs the lengths")
        if lengths is not None and len(lengths) != size:
            raise ValueError(f"{len(lengths)} lengths for {size} samples")
        self.size, self.train_batch_size, self.seed = size, train_batch_size, seed
        self.lengths = None if lengths is None else np.asarray(lengths)
        self.group_by_length, self.drop_last = group_by_length, drop_last
        self.steps_per_epoch = size // train_batch_size if drop_last else math.ceil(size / train_batch_size)
        if self.steps_per_epoch == 0:
            reason = f"one global batch is more than the {size} training samples, and BatchNorm drops an incomplete one"
            remedy = f"give at most {size}" if size else "give a training set with rows"
            raise UserError(fault("--train_batch_size", train_batch_size, reason, remedy))
        self._cached: tuple[int, list[np.ndarray]] | None = None

    @property
    def order(self) -> dict[str, Any]:
        """What decides the order of the samples, kept in checkpoints."""
        return {
            "seed": self.seed,
            "train_batch_size": self.train_batch_size,
            "rows": self.size,
            "group_by_length": self.group_by_length,
            "drop_last": self.drop_last,
        }

    @property
    def dropped_per_epoch(self) -> int:
        """Samples that an epoch leaves out: 0 unless `drop_last`."""
        return self.size % self.train_batch_size if self.drop_last else 0

    def global_batch(self, epoch: int, index: int) -> list[int]:
        """Sample ids of global batch `index` (from 0) of `epoch` (from 0), each once."""
        if self._cached is None or self._cached[0] != epoch:
            self._cached = (epoch, self._compose(epoch))
        ids: list[int] = self._cached[1][index].tolist()
        return ids

    def _compose(self, epoch: int) -> list[np.ndarray]:
        random = np.random.default_rng([self.seed, epoch])
        order = random.permutation(self.size)
        whole = self.size - self.size % self.train_batch_size
        if self.group_by_length and self.lengths is not None:
            batches: list[np.ndarray] = []
            for start in range(0, whole, WINDOW * self.train_batch_size):
                window = order[start : min(start + WINDOW * self.train_batch_size, whole)]
                window = window[np.argsort(self.lengths[window], kind="stable")]
                batches.extend(window.reshape(-1, self.train_batch_size))
            batches = [batches[i] for i in random.permutation(len(batches))]
        else:
            batches = list(order[:whole].reshape(-1, self.train_batch_size))
        if whole < self.size and not self.drop_last:
            batches.append(order[whole:])
        return batches


class StreamSampler(Sampler):
    """Global batches of a stream, in its order: one epoch without an end, in which batch k holds the positions
    k * `train_batch_size` and following. `rows` says for checkpoints what stream it is.
    """

    def __init__(self, train_batch_size: int, seed: int, rows: str) -> None:
        super().__init__(ENDLESS, train_batch_size, seed, drop_last=True)
        self.rows = rows

    @property
    def order(self) -> dict[str, Any]:
        """What decides the order of the samples; how many there will be does not."""
        return super().order | {"rows": self.rows}

    def global_batch(self, epoch: int, index: int) -> list[int]:
        """Positions of global batch `index` (from 0)."""
        return list(range(index * self.train_batch_size, (index + 1) * self.train_batch_size))


def deal(
    ids: Sequence[int],
    lengths: Sequence[int] | np.ndarray | None,
    ranks: int,
    micro_batches: int,
    micro_batch_size: int,
) -> list[list[tuple[list[int], int]]]:
    """Deals a global batch out to `[rank][micro-batch]`, each `(ids, real)`: exactly `micro_batch_size` ids, `real` of
    them real rows (they come first); the others repeat a real row and weigh 0.

    Sorted by length, longest first, the rows go round robin through the ranks x micro-batches bins (bin = micro-batch
    x ranks + rank), so that all bins pad to nearly the same length and carry an equal number of real rows, within one.
    The set of bins depends on ranks x micro_batches alone. `lengths` is indexed by sample id.
    """
    bins = ranks * micro_batches
    if not 0 < len(ids) <= bins * micro_batch_size:
        raise ValueError(
            f"{len(ids)} rows do not fit {ranks} ranks x {micro_batches} micro-batches x {micro_batch_size}"
        )
    rows = list(ids) if lengths is None else sorted(ids, key=lambda sample: -lengths[sample])
    dealt = []
    for number in range(bins):
        real = rows[number::bins]
        # The shortest row at hand as padding: it lengthens nothing.
        filler = real[-1] if real else rows[-1]
        dealt.append((real + [filler] * (micro_batch_size - len(real)), len(real)))
    return [[dealt[micro * ranks + rank] for micro in range(micro_batches)] for rank in range(ranks)]
