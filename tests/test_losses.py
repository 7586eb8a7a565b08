"""A loss that is not finite ends the run, and a jump is told."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import toolkit
from toolkit.checkpoint.reader import find
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError
from toolkit.losses import FILE, Losses
from toolkit.models import cross_entropy

SEED, ROWS, BATCH = 42, 40, 8
BAD = Sampler(ROWS, BATCH, SEED).global_batch(0, 2)[3]  # a row of step 3


def fit(folder: Path, *argv: str, bad: float = math.nan, **values: Any) -> None:
    arguments = toolkit.parse_arguments(["--output_dir", str(folder), *argv], description="", defaults={})
    setup = toolkit.Setup.build(
        strategy="single", launcher="python", use_cpu=True, train_batch_size=BATCH, optimizer="sgd", **values
    )
    inputs = torch.linspace(0, 1, ROWS)[:, None].repeat(1, 2)
    inputs[BAD] = bad
    data = toolkit.Data(TensorDataset(inputs, torch.zeros(ROWS, dtype=torch.int64)))
    engine = toolkit.prepare(lambda: nn.Linear(2, 2), cross_entropy, toolkit.optimizer_from(setup), setup)
    toolkit.fit(engine, data, arguments)


@pytest.mark.parametrize("logging_steps", [1, 3, 100])
def test_a_loss_that_is_not_finite_ends_the_run_with_step_rate_and_rows(tmp_path: Path, logging_steps: int) -> None:
    ids = Sampler(ROWS, BATCH, SEED).global_batch(0, 2)
    with pytest.raises(UserError) as caught:
        fit(tmp_path, "--checkpointing_steps", "2", "--logging_steps", str(logging_steps), learning_rate=0.5)
    assert caught.value.lines == (
        f"loss: nan: the loss of step 3 is not finite, at learning rate 0.5 and on rows {', '.join(map(str, ids))} "
        "of the training data; the newest checkpoint is step-000002; look at these rows, lower --learning_rate, warm "
        "up longer, or clip (--max_grad_norm)",
    )
    # The checkpoint before it is the last, and finite.
    assert [folder.name for folder in find(tmp_path / "checkpoints")] == ["step-000002"]
    told = json.loads((tmp_path / FILE).read_text())
    assert told["samples"] == ids and BAD in ids
    assert (told["step"], told["learning_rate"], told["loss"], told["grad_norm"]) == (3, 0.5, "nan", "nan")
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["loss"] is None for row in rows][:3] == [False, False, True]


def test_an_infinite_gradient_ends_the_run_where_the_loss_is_finite(tmp_path: Path) -> None:
    losses = Losses(Sampler(ROWS, BATCH, SEED), None, tmp_path, writes=True)
    row = {"step": 1, "updates": 1, "epoch": 0, "learning_rate": 1e-3, "loss": 0.5, "skipped": False}
    with pytest.raises(UserError, match="^grad_norm: inf: the gradient norm of step 1 .*; there is no checkpoint yet;"):
        losses.look(row | {"grad_norm": math.inf}, (0, 0))
    losses.look(row | {"grad_norm": math.inf, "skipped": True}, (0, 0))  # fp16 skips such steps by itself


def test_a_jump_is_told_against_the_median_of_the_steps_before(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    losses = Losses(Sampler(1000, 4, SEED), 3.0, tmp_path, writes=True)
    for step, loss in enumerate([9.0, 1.0, 2.0, 2.0, 2.0, 6.0, 6.1, 2.0], start=1):
        row = {"step": step, "updates": step, "epoch": 0, "learning_rate": 0.01, "loss": loss, "grad_norm": 1.0}
        losses.look(row | {"skipped": False}, (0, step - 1))
    ids = ", ".join(map(str, Sampler(1000, 4, SEED).global_batch(0, 6)))
    # Step 1 has none before it, and step 6 stands at 3 times exactly.
    assert capfd.readouterr().err == (
        "oneloop: warning: the loss of step 7, 6.1, is 3.05 times the median of the 6 steps before it, at learning "
        f"rate 0.01 and on rows {ids} of the training data\n"
    )


def test_jumps_are_told_only_where_they_are_asked_for(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for argv, told in (((), False), (("--loss_spike_factor", "1.5"), True)):
        folder = tmp_path / str(told)
        fit(folder, "--num_train_epochs", "3", *argv, bad=-400.0, learning_rate=0.01)
        assert ("times the median of the" in capfd.readouterr().err) is told
        assert json.loads((folder / "summary.json").read_text())["error"] is None


@pytest.mark.parametrize("value", ["1", "0.5", "nan", "x"])
def test_a_factor_is_above_1(value: str) -> None:
    with pytest.raises(UserError, match="^--loss_spike_factor: "):
        toolkit.parse_arguments(["--loss_spike_factor", value], description="", defaults={})
