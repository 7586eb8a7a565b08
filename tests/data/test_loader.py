import math
from collections import Counter

import pytest
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from toolkit.data.batch import Batch
from toolkit.data.loader import EvalLoader, TrainLoader, collate_rows
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError


class Numbers:
    """Sample i is the number i; `read` lists what was asked for in this process."""

    def __init__(self, size: int, bad: int | None = None) -> None:
        self.size, self.bad, self.read = size, bad, list[int]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise UserError("bad sample")
        self.read.append(index)
        return index


def collate(rows: list[int]) -> tuple[tuple[Tensor, ...], Tensor]:
    return (torch.tensor(rows, dtype=torch.float32),), torch.tensor(rows)


def train_loader(rows: Numbers, batch: int, micro: int, gas: int, rank: int, size: int, **options: int) -> TrainLoader:
    return TrainLoader(
        rows,
        collate,
        Sampler(len(rows), batch, seed=3),
        micro_batch_size=micro,
        gradient_accumulation_steps=gas,
        rank=rank,
        size=size,
        **options,
    )


def real_ids(batch: Batch) -> list[int]:
    return batch.ids[batch.weights == 1].tolist()


def steps_of(size: int, batch: int, micro: int, gas: int, ranks: int, epoch: int = 0) -> list[list[list[Batch]]]:
    """[rank][step][micro-batch]"""
    return [
        [list(step) for step in train_loader(Numbers(size), batch, micro, gas, rank, ranks).epoch(epoch)]
        for rank in range(ranks)
    ]


def test_two_ranks_share_the_samples() -> None:
    # 16 samples at 2 ranks x 4: a plain loader on each rank would give 4 steps on identical data.
    shares = [
        [i for step in rank for batch in step for i in real_ids(batch)] for rank in steps_of(16, 8, 4, 1, ranks=2)
    ]
    assert [len(share) for share in shares] == [8, 8]
    assert set(shares[0]) & set(shares[1]) == set()
    assert set(shares[0]) | set(shares[1]) == set(range(16))


@pytest.mark.parametrize(("micro", "gas", "ranks"), [(8, 1, 1), (2, 4, 1), (4, 1, 2), (1, 4, 2), (2, 2, 2), (3, 1, 3)])
def test_the_global_batches_are_the_same_for_every_setup(micro: int, gas: int, ranks: int) -> None:
    expected = [sorted(Sampler(20, 8, seed=3).global_batch(1, index)) for index in range(3)]
    dealt = steps_of(20, 8, micro, gas, ranks, epoch=1)
    found = [sorted(i for rank in dealt for batch in rank[step] for i in real_ids(batch)) for step in range(3)]
    assert found == expected


def test_the_last_window_weighs_by_its_real_rows() -> None:
    # 20 samples, 2 ranks x 1 x 4: the third step has 4 of 8 rows. Dividing by 8 would halve its gradient.
    for rank in steps_of(20, 8, 1, 4, ranks=2):
        assert [[batch.weights.tolist() for batch in step] for step in rank] == [
            [[1.0], [1.0], [1.0], [1.0]],
            [[1.0], [1.0], [1.0], [1.0]],
            [[1.0], [1.0], [0.0], [0.0]],
        ]
        assert [[batch.total for batch in step] for step in rank] == [[8.0] * 4, [8.0] * 4, [4.0] * 4]


def test_all_of_15_samples_are_used_with_one_padded_row() -> None:
    (rank,) = steps_of(15, 8, 4, 2, ranks=1)
    batches = [batch for step in rank for batch in step]
    assert [tuple(batch.targets.shape) for batch in batches] == [(4,)] * 4
    assert sorted(i for batch in batches for i in real_ids(batch)) == list(range(15))
    assert sum(int((batch.weights == 0).sum()) for batch in batches) == 1
    assert [batch.total for batch in batches] == [8.0, 8.0, 7.0, 7.0]


@pytest.mark.parametrize("size", [1, 7, 8, 9, 16, 17])
@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_every_rank_makes_the_same_steps(size: int, ranks: int) -> None:
    lengths = {tuple(len(step) for step in rank) for rank in steps_of(size, 2 * ranks, micro=2, gas=1, ranks=ranks)}
    assert lengths == {(1,) * math.ceil(size / (2 * ranks))}


@pytest.mark.parametrize("num_workers", [0, 2])
def test_starting_later_gives_the_rest_of_the_epoch(num_workers: int) -> None:
    def ids(start: int) -> list[list[list[int]]]:
        loader = train_loader(Numbers(20), 8, 2, 2, 0, 2, num_workers=num_workers)
        return [[batch.ids.tolist() for batch in step] for step in loader.epoch(1, start)]

    assert ids(0)[1:] == ids(1)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_what_is_not_asked_for_is_not_read(num_workers: int) -> None:
    rows = Numbers(24)
    loader = train_loader(rows, 8, 2, 4, 0, 1, num_workers=num_workers)
    whole = [[batch.ids.tolist() for batch in step] for step in loader.epoch(0)]
    rows.read.clear()
    assert len(list(loader.epoch(0))) == 3  # three steps, no batch pulled
    assert rows.read == []
    first, second, third = loader.epoch(0)
    assert next(first).ids.tolist() == whole[0][0]
    assert [batch.ids.tolist() for batch in third] == whole[2]
    assert [batch.ids.tolist() for batch in second] == whole[1]


@pytest.mark.parametrize("num_workers", [0, 1])
def test_the_global_random_state_is_left_alone(num_workers: int) -> None:
    before = torch.get_rng_state()
    loader = train_loader(Numbers(8), 4, 4, 1, 0, 1, num_workers=num_workers)
    assert len([list(step) for step in loader.epoch(0)]) == 2
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_bad_sample_is_told_in_its_own_line(num_workers: int) -> None:
    loader = train_loader(Numbers(8, bad=5), 8, 8, 1, 0, 1, num_workers=num_workers)
    with pytest.raises(UserError) as caught:
        [list(step) for step in loader.epoch(0)]
    assert caught.value.lines == ("bad sample",)


def test_a_global_batch_that_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="a global batch of 8 does not fit 6 rows"):
        train_loader(Numbers(8), 8, 3, 1, 0, 2)


@pytest.mark.parametrize(
    ("size", "batch_size"), [(11, 4), (9, 4), (7, 4), (5, 4), (1, 4), (3, 8), (22, 8), (1007, 32), (0, 4)]
)
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("by_length", [False, True])
def test_each_evaluation_sample_is_scored_once(size: int, batch_size: int, ranks: int, by_length: bool) -> None:
    lengths = [(i * 13) % 50 for i in range(size)] if by_length else None
    scored: Counter[int] = Counter()
    for rank in range(ranks):
        loader = EvalLoader(Numbers(size), collate, batch_size=batch_size, rank=rank, size=ranks, lengths=lengths)
        batches = list(loader)
        assert len(batches) == len(loader) == math.ceil(size / (batch_size * ranks))
        assert all(tuple(batch.targets.shape) == (batch_size,) for batch in batches)
        scored.update(i for batch in batches for i in real_ids(batch))
    assert scored == Counter(range(size))


@pytest.mark.parametrize("batch_size", [8, 3])
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_mean_loss_is_one_over_samples(batch_size: int, ranks: int) -> None:
    # Losses of 1.0 for 8 samples and 6.0 for 2: 2.0 by sample, 3.5 by batch of 8.
    losses = torch.tensor([1.0] * 8 + [6.0] * 2)
    total, count = 0.0, 0.0
    for rank in range(ranks):
        for batch in EvalLoader(Numbers(10), collate, batch_size=batch_size, rank=rank, size=ranks):
            total += float((losses[batch.ids] * batch.weights).sum())
            count += float(batch.weights.sum())
    assert total / count == pytest.approx(2.0, abs=1e-6)


def test_accuracy_counts_no_padding() -> None:
    right = torch.tensor([1.0] * 10 + [0.0])  # 10 of 11
    hits, count = 0.0, 0.0
    for rank in range(2):
        for batch in EvalLoader(Numbers(11), collate, batch_size=4, rank=rank, size=2):
            hits += float((right[batch.ids] * batch.weights).sum())
            count += float(batch.weights.sum())
    assert hits / count == pytest.approx(0.90909, abs=1e-5)


def test_rows_of_tensors_are_stacked() -> None:
    rows = TensorDataset(torch.arange(6.0).reshape(3, 2), torch.tensor([0, 1, 2]))
    inputs, targets = collate_rows([rows[0], rows[2]])
    assert isinstance(inputs, tuple) and len(inputs) == 1
    assert inputs[0].tolist() == [[0.0, 1.0], [4.0, 5.0]]
    assert targets.tolist() == [0, 2]


def test_a_dict_stays_keyword_arguments() -> None:
    inputs, targets = collate_rows([({"x": torch.tensor([1.0])}, 0), ({"x": torch.tensor([2.0])}, 1)])
    assert isinstance(inputs, dict)
    assert inputs["x"].tolist() == [[1.0], [2.0]]
    assert targets.tolist() == [0, 1]
