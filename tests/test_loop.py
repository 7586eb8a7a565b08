"""`fit` in one process: what it refuses, what it says, and what the run leaves."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import toolkit
from toolkit import output
from toolkit.checkpoint import newest_whole
from toolkit.errors import UserError

Run = Callable[..., Path]


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(2, 1)
        self.unused = nn.Linear(2, 1)

    def forward(self, x: Tensor) -> Tensor:  # [B, 2] -> [B, 1]
        return self.used(x)


class Metric:
    """Returns what it was given, in the place of an `evaluate.Metric`."""

    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def compute(self, **_: Any) -> Any:
        return self.scores


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.reshape(-1) - targets.reshape(-1)) ** 2


@pytest.fixture
def run(tmp_path: Path) -> Run:
    def train(
        *argv: str,
        model: Any = None,
        rows: int = 20,
        metrics: Any = (),
        x: float = 1.0,
        held_out: int = 5,
        section: Any = None,
        origins: Any = (),
    ) -> Path:
        folder = tmp_path / "run"
        arguments = toolkit.parse_arguments(["--output_dir", str(folder), *argv], description="", defaults={})
        setup = toolkit.Setup.build(
            strategy="single",
            launcher="python",
            use_cpu=True,
            train_batch_size=8,
            optimizer="sgd",
            **({"deepspeed": {"scheduler": section}} if section else {"learning_rate": 0.1}),
            **({"num_warmup_steps": arguments.num_warmup_steps} if "num_warmup_steps" in arguments.typed else {}),
        )
        setup = replace(setup, origins={**setup.origins, **dict(origins)})
        inputs, targets = torch.full((rows, 2), x), torch.ones(rows, 1)
        data = toolkit.Data(TensorDataset(inputs, targets), TensorDataset(inputs[:held_out], targets[:held_out]))
        build = model or (lambda: nn.Linear(2, 1))
        engine = toolkit.prepare(build, squared_error, toolkit.optimizer_from(setup), setup)
        toolkit.fit(engine, data, arguments, metrics)
        return folder

    return train


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_leaves_a_row_a_step_in_order(run: Run) -> None:
    rows = rows_of(run("--num_train_epochs", "2"))
    steps = [row for row in rows if "loss" in row]
    assert [row["step"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert [row["samples"] for row in steps] == [8, 16, 20, 28, 36, 40]
    assert [row["updates"] for row in steps] == [1, 2, 3, 4, 5, 6]
    assert [row["epoch"] for row in steps] == [0, 0, 0, 1, 1, 1]
    assert [row["step"] for row in rows if "eval_loss" in row] == [3, 6]


def test_a_parameter_that_no_loss_depends_on_is_refused_by_name(run: Run) -> None:
    with pytest.raises(UserError) as caught:
        run(model=Line)
    assert [line.partition(": no part")[0] for line in caught.value.lines] == [
        "model: 'unused.bias'",
        "model: 'unused.weight'",
    ]


def test_a_frozen_parameter_is_fine(run: Run) -> None:
    def frozen() -> nn.Module:
        model = Line()
        model.unused.requires_grad_(False)
        return model

    checkpoint = newest_whole(run(model=frozen))
    assert (checkpoint.step, checkpoint.names) == (9, ["used.weight", "used.bias", "unused.weight", "unused.bias"])
    assert [checkpoint.updates_of(name) for name in checkpoint.names] == [None] * 4  # SGD does not count
    assert [checkpoint.states(name) for name in checkpoint.names] == [["momentum_buffer"]] * 2 + [[]] * 2


@pytest.mark.parametrize(
    "value, kept", [(torch.tensor(0.5), 0.5), (1, 1.0), (float("nan"), None), ([[1, 2]], [[1, 2]])]
)
def test_what_a_metric_returns_is_kept(run: Run, value: Any, kept: Any) -> None:
    folder = run("--max_train_steps", "1", metrics=[Metric({"score": value})])
    assert json.loads((folder / "summary.json").read_text())["metrics"]["score"] == kept
    assert rows_of(folder)[-1]["eval_score"] == kept


@pytest.mark.parametrize("value", [None, {"score": "good"}, 0.5])
def test_a_metric_without_numbers_by_name_is_refused_after_the_weights_are_kept(
    run: Run, tmp_path: Path, value: Any
) -> None:
    with pytest.raises(UserError, match="metrics: Metric"):
        run("--max_train_steps", "1", metrics=[Metric(value)])
    assert newest_whole(tmp_path / "run").step == 1


def test_an_empty_evaluation_set_is_refused(run: Run) -> None:
    with pytest.raises(UserError, match="data.evaluation: 0: has no rows"):
        run(held_out=0)


def test_fewer_rows_than_a_global_batch_are_one_padded_batch_but_for_batch_norm(run: Run) -> None:
    with pytest.raises(UserError) as caught:
        run(model=lambda: nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)), rows=6)
    reason = "one global batch is more than the 6 training samples, and BatchNorm drops an incomplete one"
    assert caught.value.lines == (f"--train_batch_size: 8: {reason}; give at most 6",)
    steps = [row for row in rows_of(run("--max_train_steps", "2", rows=6)) if "loss" in row]
    assert [(row["samples"], row["epoch"]) for row in steps] == [(6, 0), (12, 1)]


def test_what_never_takes_effect_is_said(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    run("--num_warmup_steps", "50", "--max_train_steps", "2", rows=6)
    told = capfd.readouterr().err
    assert "oneloop: num_warmup_steps 50 takes all 2 steps: the peak is not reached" in told
    assert "oneloop: train_batch_size 8 is more than the 6 rows: the rest is padding" in told


def test_a_schedule_of_deepspeeds_ends_with_the_run(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    params = {"warmup_max_lr": 0.1, "warmup_num_steps": 2, "total_num_steps": "auto", "warmup_type": "linear"}
    folder = run("--num_train_epochs", "2", section={"type": "WarmupDecayLR", "params": params})
    rates = [row["learning_rate"] for row in rows_of(folder) if "loss" in row]
    assert rates == pytest.approx([0, 0, 0.05, 0.1, 0.075, 0.05])
    assert "the schedule's" not in capfd.readouterr().err


def test_a_schedule_of_deepspeeds_of_another_length_is_said(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    params: dict[str, Any] = {"warmup_max_lr": 0.1, "warmup_num_steps": 2, "total_num_steps": 4}
    run("--max_train_steps", "3", section={"type": "WarmupDecayLR", "params": params})
    told = capfd.readouterr().err
    assert "oneloop: the schedule's total_num_steps is 4, this run has 3 steps" in told
    assert "the peak is not reached" not in told


def test_a_cycle_that_never_comes_to_its_peak_is_said(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    params: dict[str, Any] = {"cycle_min_lr": 0.01, "cycle_max_lr": 0.1, "cycle_momentum": False}
    run("--max_train_steps", "1", section={"type": "OneCycle", "params": params})
    assert "cycle_first_step_size 2000 takes all 1 steps: the peak is not reached" in capfd.readouterr().err


@pytest.mark.parametrize(("argv", "end"), [(("--num_train_epochs", "2"), "--num_train_epochs"), ((), "")])
def test_a_warm_up_longer_than_a_run_of_the_users_length_is_refused(
    run: Run, capfd: pytest.CaptureFixture[str], argv: Sequence[str], end: str
) -> None:
    origins = {"num_warmup_steps": "--num_warmup_steps"}
    if not end:  # the length is the script's default: 3 epochs of 1 step
        run("--num_warmup_steps", "50", *argv, rows=6, origins=origins)
        assert "num_warmup_steps 50 takes all 3 steps: the peak is not reached" in capfd.readouterr().err
        return
    with pytest.raises(UserError) as caught:
        run("--num_warmup_steps", "50", *argv, rows=6, origins=origins)
    reason = f"the warm-up is longer than the run: {end} gives 2 steps"
    remedy = "warm up for fewer steps, or train for more"
    assert caught.value.lines == (f"--num_warmup_steps: 50: {reason}; {remedy}",)


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "config", "checkpoints"])
def test_a_folder_that_holds_a_part_of_a_run_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    with pytest.raises(UserError, match=rf"already holds a run \({name}\)"):
        run()


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path: Path) -> None:
    made = [output._new_dir(tmp_path / "runs" / "train-1") for _ in range(3)]
    assert [path.name for path in made] == ["train-1", "train-1-2", "train-1-3"]
