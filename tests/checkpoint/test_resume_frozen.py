"""A run with frozen layers goes on, with the same ones or more of them; with fewer it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fitting import copied, fit, same, weights

from toolkit.errors import UserError


def test_it_goes_on_bit_for_bit_and_carries_what_is_frozen(tmp_path: Path) -> None:
    whole = fit(tmp_path / "whole", "--max_train_steps", "6", "--save_initial", freeze=["0"])
    part = ("--max_train_steps", "6", "--stop_after_steps", "3")
    run = fit(tmp_path / "run", *part, freeze=["0"])
    fit(tmp_path / "run", "--max_train_steps", "6", "--resume_from_checkpoint", "auto", freeze=["0"])
    assert same(run.checkpoint(6), whole.checkpoint(6))
    begun, ended = weights(whole.checkpoint(0)), weights(run.checkpoint(6))
    assert {name for name in begun if torch.equal(begun[name], ended[name])} == {"0.weight", "0.bias"}


def test_more_may_be_frozen_but_not_less(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "6", "--stop_after_steps", "3")
    other = copied(run, tmp_path / "other")
    more = ("--max_train_steps", "6", "--resume_from_checkpoint", "auto")
    fit(other.folder, *more, freeze=["0"])
    assert "freeze is ['0'], it was None" in capfd.readouterr().err
    begun, ended = weights(other.checkpoint(3)), weights(other.checkpoint(6))
    assert {name for name in begun if torch.equal(begun[name], ended[name])} == {"0.weight", "0.bias"}
    with pytest.raises(UserError) as caught:
        fit(other.folder, *more[2:], "--max_train_steps", "9")
    (line,) = caught.value.lines
    assert "has no optimizer state for 0.weight and 1 more, frozen when it was written; freeze them again" in line
