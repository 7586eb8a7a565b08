"""`toolkit.save` and `toolkit.load` in a loop of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fitting import model

import toolkit
from toolkit.data.batch import Batch
from toolkit.errors import UserError


def engine() -> toolkit.Engine:
    setup = toolkit.Setup.build(strategy="single", launcher="python", use_cpu=True, train_batch_size=8, seed=3)
    return toolkit.prepare(model, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)


def step(own: toolkit.Engine, number: int) -> float:
    generator = torch.Generator().manual_seed(number)
    inputs, targets = torch.randn(8, 4, generator=generator), torch.randint(2, (8,), generator=generator)
    return own.train_step([Batch((inputs,), targets, torch.ones(8), 8.0, torch.arange(8))]).loss.item()


def test_a_loop_of_ones_own_goes_on_bit_for_bit(tmp_path: Path) -> None:
    first = engine()
    for number in range(3):
        step(first, number)
    assert toolkit.save(first, tmp_path / "step-000003") is None
    expected = [step(first, number) for number in range(3, 6)]

    second = engine()
    assert toolkit.load(second, tmp_path).step == second.updates == 3
    assert [step(second, number) for number in range(3, 6)] == expected


def test_a_checkpoint_is_not_overwritten(tmp_path: Path) -> None:
    own = engine()
    assert toolkit.save(own, tmp_path / "step-000000") is None
    problem = toolkit.save(own, tmp_path / "step-000000")
    assert problem is not None and "not empty" in problem
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000"]


def test_nothing_to_load_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no checkpoint"):
        toolkit.load(engine(), tmp_path)
