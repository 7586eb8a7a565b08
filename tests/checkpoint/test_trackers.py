"""--report_to: TensorBoard for real; the others get the same calls through Accelerate's classes."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
from accelerate import tracking
from fitting import fit
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from toolkit.argument_table import TRACKERS
from toolkit.arguments import parse_arguments
from toolkit.errors import UserError
from toolkit.metrics import Accuracy, ConfusionMatrix

TO = "--report_to"


def scalars(folder: Path) -> dict[str, dict[int, float]]:
    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {tag: {each.step: each.value for each in read.Scalars(tag)} for tag in read.Tags()["scalars"]}


def test_tensorboard_has_what_metrics_jsonl_has(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", TO, "tensorboard", metrics=[Accuracy(), ConfusionMatrix(["no", "yes"])])
    found = scalars(run.folder)
    for name in ("loss", "learning_rate", "grad_norm", "samples_per_second"):
        kept = {row["step"]: row[name] for row in run.rows if name in row}
        assert found[f"train/{name}"] == pytest.approx(kept, rel=1e-6)  # 32 bits there
    for name in ("loss", "accuracy"):
        kept = {row["step"]: row[f"eval_{name}"] for row in run.rows if f"eval_{name}" in row}
        assert found[f"eval/{name}"] == pytest.approx(kept, rel=1e-6)
        assert sorted(kept) == [8, 16]
    assert not any("confusion" in tag for tag in found)


def test_a_resumed_run_hides_what_came_after_its_checkpoint(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", TO, "tensorboard", "--checkpointing_steps", "4", "--stop_after_steps", "6")
    resumed = str(run.checkpoint(4))
    again = fit(run.folder, TO, "tensorboard", "--resume_from_checkpoint", resumed, learning_rate=0.01)
    assert scalars(run.folder)["train/loss"] == pytest.approx({row["step"]: row["loss"] for row in again.steps})


def test_nothing_is_reported_unasked(tmp_path: Path) -> None:
    assert not (fit(tmp_path / "run", "--max_train_steps", "1").folder / "tensorboard").exists()


class Recorded:
    """In the place of one of Accelerate's trackers."""

    calls: list[tuple[str, Any]] = []

    def __init__(self, *given: Any, **options: Any) -> None:
        self.calls.append(("made", (given, options)))

    def __getattr__(self, name: str) -> Any:
        return lambda *given, **options: self.calls.append((name, (given, options)))


@pytest.mark.parametrize("name", TRACKERS)
def test_accelerates_class_takes_what_it_is_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind = tracking.LOGGER_TYPE_TO_CLASS[name]
    monkeypatch.setattr(Recorded, "calls", [])
    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, name, Recorded)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    run = fit(tmp_path / "run", TO, name, "--max_train_steps", "3")
    names = [call for call, _ in Recorded.calls]
    # Three rows of training, one of evaluation.
    assert names == ["made", "start", "store_init_configuration", "log", "log", "log", "log", "finish"]
    given, options = Recorded.calls[0][1]
    inspect.signature(kind.__init__).bind(None, *given, **options)
    (configuration,), _ = Recorded.calls[2][1]
    assert configuration["strategy"] == "single" and configuration["train_batch_size"] == 8
    assert {type(value) for value in configuration.values()} <= {bool, int, float, str}
    (values,), options = Recorded.calls[3][1]
    assert (values["train/loss"], options) == (run.steps[0]["loss"], {"step": 1})


def test_a_tracker_that_fails_is_told_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def gone(*_: Any, **__: Any) -> None:
        raise ConnectionError("no server\nat all")

    monkeypatch.setattr(tracking.TensorBoardTracker, "log", gone)
    run = fit(tmp_path / "run", TO, "tensorboard", "--logging_steps", "1")
    assert len(run.steps) == 16
    line = "oneloop: warning: tensorboard gets nothing more (ConnectionError: no server)"
    assert capfd.readouterr().err.splitlines().count(line) == 1


@pytest.mark.parametrize(
    "text, line",
    [
        ("tensorbord", "expected one of none, tensorboard, trackio, wandb, mlflow (did you mean tensorboard?)"),
        ("tensorboard,tensorboard", "expected none, or some of tensorboard, trackio, wandb, mlflow, each once"),
        ("none,tensorboard", "expected none, or some of tensorboard, trackio, wandb, mlflow, each once"),
        ("", "expected one of none, tensorboard, trackio, wandb, mlflow"),
    ],
)
def test_what_is_no_tracker_is_refused(text: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments([TO, text], description="", defaults={})
    assert caught.value.lines == (f"{TO}: '{text}': {line}; correct the value",)


def test_one_that_is_not_installed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "wandb" else object())
    with pytest.raises(UserError) as caught:
        parse_arguments([TO, "tensorboard,wandb"], description="", defaults={})
    assert caught.value.lines == (f"{TO}: wandb: is not installed; pip install wandb, or leave it out",) or (
        caught.value.lines == (f"{TO}: 'wandb': is not installed; pip install wandb, or leave it out",)
    )
