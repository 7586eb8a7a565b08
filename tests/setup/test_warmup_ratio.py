"""--warmup_ratio: a share of the run's steps, rounded up, and what it does not go with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import TORCHRUN, setup
from torch import nn
from torch.utils.data import TensorDataset

import toolkit
from toolkit.errors import UserError
from toolkit.setup import Setup

RATIO, STEPS = "--warmup_ratio", "--num_warmup_steps"


@pytest.mark.parametrize(
    "argv, defaults, kept",
    [
        ((RATIO, "0.1"), {}, (0.1, 0)),
        ((RATIO, "0.1"), {"num_warmup_steps": 20}, (0.1, 0)),
        ((STEPS, "7"), {"warmup_ratio": 0.1}, (0.0, 7)),
        ((), {"warmup_ratio": 0.1}, (0.1, 0)),
        ((RATIO, "0"), {"num_warmup_steps": 20}, (0.0, 20)),
        (("--lr_scheduler_type", "one_cycle"), {"warmup_ratio": 0.1}, (0.0, 0)),
    ],
)
def test_one_of_the_two_holds(argv: tuple[str, ...], defaults: dict[str, Any], kept: tuple[float, int]) -> None:
    got = setup(TORCHRUN, *argv, defaults=defaults)
    assert (got.warmup_ratio, got.num_warmup_steps) == kept


def test_a_default_that_yields_is_told() -> None:
    got = setup(TORCHRUN, RATIO, "0.1", defaults={"num_warmup_steps": 20})
    assert got.overrode["num_warmup_steps"] == "script's default 20"


@pytest.mark.parametrize(
    "argv, line",
    [
        ((RATIO, "0.1", STEPS, "5"), "--warmup_ratio: 0.1: --num_warmup_steps says 5; give one of the two"),
        (
            (RATIO, "0.1", "--lr_scheduler_type", "one_cycle"),
            "--warmup_ratio: 0.1: one_cycle (--lr_scheduler_type) has a warm-up of its own; give pct_start instead",
        ),
        ((RATIO, "1"), "--warmup_ratio: '1': must be at least 0 and below 1; correct the value"),
    ],
)
def test_what_it_does_not_go_with(argv: tuple[str, ...], line: str) -> None:
    with pytest.raises(UserError) as caught:
        setup(TORCHRUN, *argv)
    assert caught.value.lines == (line,)


def test_a_jsons_schedule_has_its_own() -> None:
    section = {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}
    with pytest.raises(UserError, match="warmup_ratio: 0.1: WarmupLR .*scheduler.type.* has a warm-up of its own"):
        Setup.build(strategy="single", deepspeed={"scheduler": section}, warmup_ratio=0.1)


@pytest.mark.parametrize("ratio, steps, rates", [("0.25", 3, [0, 1 / 3, 2 / 3, 1.0]), ("0.2", 2, [0, 0.5, 1.0, 1.0])])
def test_steps_are_rounded_up_as_transformers_does(tmp_path: Path, ratio: str, steps: int, rates: list[float]) -> None:
    """Of 9 steps: 2.25 and 1.8."""
    typed = ["--output_dir", str(tmp_path), "--num_train_epochs", "3", "--logging_steps", "1"]
    arguments = toolkit.parse_arguments(typed, description="", defaults={})
    built = Setup.build(
        strategy="single",
        launcher="python",
        use_cpu=True,
        train_batch_size=2,
        lr_scheduler_type="constant",
        learning_rate=1.0,
        optimizer="sgd",
        warmup_ratio=float(ratio),
    )
    data = toolkit.Data(TensorDataset(torch.ones(6, 2), torch.zeros(6, dtype=torch.int64)))
    engine = toolkit.prepare(lambda: nn.Linear(2, 2), toolkit.cross_entropy, toolkit.optimizer_from(built), built)
    toolkit.fit(engine, data, arguments)
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [row["learning_rate"] for row in rows[:4]] == pytest.approx(rates)
    told = json.loads((tmp_path / "summary.json").read_text())["setup"]["num_warmup_steps"]
    assert told == {"value": steps, "origin": f"Setup.build: warmup_ratio {ratio} of 9 steps", "overrode": None}
