"""A loss that is not finite ends a run of several ranks with one line, in every setup at the same step."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starting import ROOT, launch_matrix, side_by_side

# The weights are infinite after the first step, so that the second has no loss.
SCRIPT = ["scripts/train_cnn.py", "--max_train_samples", "128", "--max_eval_samples", "64", "--width", "0.25"]
SCRIPT += ["--optimizer", "sgd", "--learning_rate", "3e38", "--max_grad_norm", "0", "--lr_scheduler_type", "constant"]
SCRIPT += ["--train_batch_size", "32", "--max_train_steps", "4", "--save_initial"]
SETUPS = ("zero2", "pipeline")


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("not_finite")
    jobs = {}
    for name in SETUPS:
        script = [*SCRIPT, "--deepspeed_config", str(ROOT / "ds_configs" / f"{name}.json")]
        jobs[name] = partial(launch_matrix.launch, launch_matrix.command("deepspeed", "", script), folder / name)
    return {"folder": folder, **side_by_side(jobs)}


@pytest.mark.parametrize("setup", SETUPS)
def test_one_line_names_step_rate_and_rows(ran: dict[str, Any], setup: str) -> None:
    folder: Path = ran["folder"] / setup
    assert ran[setup].returncode == 2, ran[setup].output[-2000:]
    (line,) = [line for line in ran[setup].output.splitlines() if line.startswith("oneloop: error:")]
    assert "the loss of step 2 is not finite, at learning rate 3e+38 and on rows " in line
    assert "the newest checkpoint is step-000000" in line
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-000000"]
    assert ran[setup].summary["error"]["message"] in line
    assert json.loads((folder / "not_finite.json").read_text())["step"] == 2


def test_both_setups_name_the_same_rows(ran: dict[str, Any]) -> None:
    told = [json.loads((ran["folder"] / setup / "not_finite.json").read_text())["samples"] for setup in SETUPS]
    assert told[0] == told[1] and len(set(told[0])) == 32
