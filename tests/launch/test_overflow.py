"""fp16 from too high a loss scale (C25): the same steps are skipped in every setup, and what a run leaves says so."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starting import launch_matrix, side_by_side

from toolkit.checkpoint import newest_whole

STEPS = 14
SCRIPT = ["scripts/train_cnn.py", "--max_train_samples", "256", "--max_eval_samples", "64", "--width", "0.25"]
SCRIPT += ["--train_batch_size", "32", "--logging_steps", "5", "--num_warmup_steps", "4"]
# 2 ** 24 times a gradient of 0.1 is far above fp16's 65,504.
SCALE = {"enabled": True, "initial_scale_power": 24, "hysteresis": 1, "loss_scale_window": 1000}
# (ZeRO stage, pipeline stages)
SETUPS = {"ddp": (0, 1), "zero2": (2, 1), "pipeline": (1, 2)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("overflow")
    jobs = {}
    for name, (stage, stages) in SETUPS.items():
        config: dict[str, Any] = {"zero_optimization": {"stage": stage}, "fp16": SCALE}
        if stages > 1:
            config["pipeline"] = {"stages": stages}
        path = folder / f"{name}.json"
        path.write_text(json.dumps(config))
        script = [*SCRIPT, "--max_train_steps", str(STEPS), "--deepspeed_config", str(path)]
        jobs[name] = partial(launch_matrix.launch, launch_matrix.command("torchrun", "", script), folder / name)
    # A static scale can fall no further: the tenth skipped step is the last.
    path = folder / "static.json"
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}, "fp16": {"enabled": True, "loss_scale": 2**30}}))
    script = [*SCRIPT, "--max_train_steps", str(STEPS), "--deepspeed_config", str(path)]
    jobs["static"] = partial(launch_matrix.launch, launch_matrix.command("deepspeed", "", script), folder / "static")
    return {"folder": folder, **side_by_side(jobs)}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [row for row in rows if "loss" in row]


@pytest.mark.parametrize("setup", SETUPS)
def test_a_run_says_which_steps_it_skipped(ran: dict[str, Any], setup: str) -> None:
    assert ran[setup].returncode == 0, ran[setup].output[-2000:]
    rows = rows_of(ran["folder"] / setup)
    skipped = [row["skipped"] for row in rows]
    assert skipped[:4] == [True] * 4 and skipped[-1] is False
    assert [row["step"] for row in rows] == list(range(1, STEPS + 1))
    before = [sum(skipped[:step]) for step in range(STEPS)]
    assert [row["loss_scale"] for row in rows] == [2.0 ** (24 - count) for count in before]
    applied = [step - count for step, count in enumerate(before)]  # updates before each step
    assert [row["updates"] for row in rows] == [*applied[1:], STEPS - sum(skipped)]
    # The warm-up of four updates begins with the first that is applied; from there the rate falls to 0 at update 14.
    rates = [1e-3 * min(done / 4, (STEPS - done) / (STEPS - 4)) for done in applied]
    assert [row["learning_rate"] for row in rows] == pytest.approx(rates, rel=1e-12)
    assert [row["grad_norm"] is None for row in rows] == skipped
    assert ran[setup].summary["steps"] == STEPS
    assert ran[setup].summary["updates"] == STEPS - sum(skipped)
    checkpoint = newest_whole(ran["folder"] / setup)
    assert (checkpoint.step, checkpoint.about["updates"]) == (STEPS, STEPS - sum(skipped))
    assert checkpoint.about["loss_scaler"]["cur_scale"] == 2.0 ** (24 - sum(skipped))
    assert f"skipped {sum(skipped)} of {STEPS} steps" in ran[setup].output


def test_setups_of_equal_micro_batches_skip_the_same_steps(ran: dict[str, Any]) -> None:
    """A pipeline's four micro-batches are smaller, and the gradient of each one has to fit fp16."""
    kept = [
        [(row["skipped"], row["loss_scale"]) for row in rows_of(ran["folder"] / setup)] for setup in ("ddp", "zero2")
    ]
    assert kept[0] == kept[1]


def test_ten_skips_at_a_static_scale_end_the_run_with_one_line(ran: dict[str, Any]) -> None:
    assert ran["static"].returncode == 2
    lines = [line for line in ran["static"].output.splitlines() if line.startswith("oneloop: error:")]
    (line,) = lines
    assert "mixed_precision: 'fp16': 10 steps in a row were skipped" in line
    assert "loss scale 1.07374e+09" in line
    assert ran["static"].summary["error"]["message"] in line
