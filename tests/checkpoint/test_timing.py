"""Waiting for data and the rest of a step, apart."""

from __future__ import annotations

import time
from pathlib import Path
from statistics import median
from typing import Any

from fitting import fit, model
from torch import Tensor, nn

SLOW = 0.3  # far more than a step of this model takes on a busy machine


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = model()

    def forward(self, x: Tensor) -> Tensor:
        time.sleep(SLOW)
        return self.inner(x)


def test_the_wait_for_rows_is_counted_as_data(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "6", before={3: lambda: time.sleep(SLOW)})
    rows = [row for row in run.rows if "loss" in row]
    assert [row["step"] for row in rows if row["data_seconds"] > SLOW] == [3]
    assert rows[2]["step_seconds"] < SLOW


def test_a_slow_model_is_counted_as_the_step(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "6", build=Slow)
    rows = [row for row in run.rows if "loss" in row]
    assert min(row["step_seconds"] for row in rows) > SLOW
    assert max(row["data_seconds"] for row in rows) < SLOW
    told: dict[str, Any] = run.summary["median_step"]
    assert told == {name: median([row[name] for row in rows[1:]]) for name in ("data_seconds", "step_seconds")}


def test_the_time_of_an_evaluation_is_neither(tmp_path: Path) -> None:
    class Metric:
        def compute(self, **_: Any) -> dict[str, float]:
            time.sleep(2 * SLOW)
            return {"score": 1.0}

    run = fit(tmp_path / "run", "--max_train_steps", "4", "--eval_steps", "1", metrics=[Metric()])
    assert max(row["step_seconds"] + row["data_seconds"] for row in run.rows[2:] if "loss" in row) < 2 * SLOW
