from itertools import chain

import numpy as np
import pytest

from toolkit.data.sampler import ENDLESS, WINDOW, Sampler, StreamSampler, deal
from toolkit.errors import UserError


def epoch_ids(sampler: Sampler, epoch: int) -> list[int]:
    return list(chain.from_iterable(sampler.global_batch(epoch, i) for i in range(sampler.steps_per_epoch)))


LENGTHS = [(7 * i) % 23 + 3 for i in range(22)]


@pytest.mark.parametrize("group_by_length", [False, True])
def test_each_epoch_is_another_permutation_and_the_same_seed_gives_the_same(group_by_length: bool) -> None:
    # 22 samples, 3 epochs: a frozen order is a known fault of loaders whose sampler is never told the epoch.
    options = {"lengths": LENGTHS, "group_by_length": group_by_length}
    orders = [epoch_ids(Sampler(22, 4, seed=5, **options), epoch) for epoch in range(3)]
    assert [sorted(order) for order in orders] == [list(range(22))] * 3
    assert len({tuple(order) for order in orders}) == 3
    sampler = Sampler(22, 4, seed=5, **options)
    assert [epoch_ids(sampler, epoch) for epoch in (2, 0, 1)] == [orders[2], orders[0], orders[1]]
    assert epoch_ids(Sampler(22, 4, seed=6, **options), 0) != orders[0]


@pytest.mark.parametrize(
    ("size", "batch", "drop_last", "sizes"),
    [
        (20, 8, False, [8, 8, 4]),
        (20, 8, True, [8, 8]),
        (15, 8, False, [8, 7]),
        (16, 8, True, [8, 8]),
        (3, 8, False, [3]),
    ],
)
@pytest.mark.parametrize("group_by_length", [False, True])
def test_the_short_batch_is_the_last(
    size: int, batch: int, drop_last: bool, sizes: list[int], group_by_length: bool
) -> None:
    sampler = Sampler(size, batch, 0, lengths=list(range(size)), group_by_length=group_by_length, drop_last=drop_last)
    assert sampler.steps_per_epoch == len(sizes)
    assert [len(sampler.global_batch(0, i)) for i in range(sampler.steps_per_epoch)] == sizes
    assert sampler.dropped_per_epoch == size - sum(sizes)


def test_an_incomplete_only_batch_cannot_be_dropped() -> None:
    with pytest.raises(UserError, match="--train_batch_size: 8: one global batch is more than the 5 training samples"):
        Sampler(5, 8, 0, drop_last=True)


def test_groups_hold_similar_lengths_in_random_order() -> None:
    lengths = np.random.default_rng(0).integers(3, 60, size=2 * WINDOW * 8 + 5)
    sampler = Sampler(len(lengths), 8, 1, lengths=lengths.tolist(), group_by_length=True)
    batches = [lengths[sampler.global_batch(0, i)] for i in range(sampler.steps_per_epoch)]
    spreads = [int(batch.max() - batch.min()) for batch in batches[:-1]]
    assert np.mean(spreads) < 3  # out of 57; at random about 45
    longest = [int(batch.max()) for batch in batches]
    assert longest != sorted(longest)
    assert abs(np.corrcoef(range(len(longest)), longest)[0, 1]) < 0.3


@pytest.mark.parametrize(
    ("rows", "ranks", "micro_batches", "size", "real"),
    [
        (8, 2, 1, 4, [[4], [4]]),
        (4, 2, 4, 1, [[1, 1, 0, 0], [1, 1, 0, 0]]),  # the last 4 of 20 samples at 2 ranks x 1 x 4
        (7, 1, 2, 4, [[4, 3]]),
        (5, 3, 1, 2, [[2], [2], [1]]),
        (1, 2, 2, 2, [[1, 0], [0, 0]]),
        (64, 3, 2, 11, [[11, 11], [11, 10], [11, 10]]),
    ],
)
def test_rows_are_dealt_evenly_and_padded(
    rows: int, ranks: int, micro_batches: int, size: int, real: list[list[int]]
) -> None:
    ids = list(range(100, 100 + rows))
    dealt = deal(ids, None, ranks, micro_batches, size)
    assert [[count for _, count in share] for share in dealt] == real
    assert all(len(held) == size for share in dealt for held, _ in share)
    assert sorted(i for share in dealt for held, count in share for i in held[:count]) == ids
    assert all(i in ids for share in dealt for held, _ in share for i in held)


def test_bins_pad_to_nearly_the_same_length_with_short_rows() -> None:
    lengths = [40, 4, 39, 5, 38, 6, 37]
    # Longest first: 40, 39, 38, 37 to the four bins, then 6, 5, 4; the bin with one row repeats it, and no longer one.
    assert deal(range(7), lengths, 2, 2, 2) == [[([0, 5], 2), ([4, 1], 2)], [([2, 3], 2), ([6, 6], 1)]]


def test_too_many_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="9 rows do not fit 2 ranks x 1 micro-batches x 4"):
        deal(range(9), None, 2, 1, 4)


def test_bins_depend_on_ranks_times_micro_batches_alone() -> None:
    lengths = list(range(16, 0, -1))
    shares = {
        (ranks, micro): {tuple(held) for share in deal(range(16), lengths, ranks, micro, 4) for held, _ in share}
        for ranks, micro in ((1, 4), (2, 2), (4, 1))
    }
    assert len({frozenset(bins) for bins in shares.values()}) == 1


def test_a_stream_goes_on_in_its_order_without_an_end() -> None:
    sampler = StreamSampler(8, 3, "of a stream")
    assert sampler.global_batch(0, 0) == list(range(8))
    assert sampler.global_batch(0, 1000) == list(range(8000, 8008))
    assert (sampler.size, sampler.steps_per_epoch, sampler.lengths) == (ENDLESS, ENDLESS // 8, None)
    assert sampler.order == {
        "seed": 3,
        "train_batch_size": 8,
        "rows": "of a stream",
        "group_by_length": False,
        "drop_last": True,
    }
    assert Sampler(20, 8, 3).order == sampler.order | {"rows": 20, "drop_last": False}
