"""Evaluation every N steps, the best checkpoint by a metric, and early stopping."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fitting import fit

from toolkit.arguments import parse_arguments
from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.best import Best
from toolkit.checkpoint.position import Position
from toolkit.errors import UserError
from toolkit.metrics import Accuracy, ConfusionMatrix

BY, PATIENCE = "--metric_for_best_model", "--early_stopping_patience"


class Told:
    """A metric that returns one number after another, in the place of an `evaluate.Metric`."""

    def __init__(self, *scores: float | None) -> None:
        self.scores = iter((0.0, *scores))  # the first is asked for before the run, for its name

    def compute(self, **_: Any) -> dict[str, float | None]:
        return {"told": next(self.scores)}


@pytest.mark.parametrize(
    "argv, steps",
    [
        ((), [8, 16]),
        (("--eval_steps", "5"), [5, 10, 15, 16]),
        (("--eval_steps", "8"), [8, 16]),
        (("--eval_steps", "100"), [16]),
        (("--eval_steps", "5", "--max_train_steps", "10"), [5, 10]),
    ],
)
def test_steps_that_are_evaluated(tmp_path: Path, argv: tuple[str, ...], steps: list[int]) -> None:
    assert fit(tmp_path / "run", *argv).evaluated == steps


def test_an_evaluation_on_the_way_does_not_change_the_training(tmp_path: Path) -> None:
    often, once = fit(tmp_path / "often", "--eval_steps", "1"), fit(tmp_path / "once")
    assert often.steps == once.steps


@pytest.mark.parametrize(
    "argv, told, best, kept",
    [
        ((), (0.1, 0.5, 0.4, 0.6), (16, 0.6), [4, 8, 16]),
        ((), (0.7, 0.5, 0.4, 0.6), (4, 0.7), [4, 16]),
        ((), (None, 0.5, float("nan"), 0.5), (8, 0.5), [8, 16]),
        (("--greater_is_better", "false"), (0.7, 0.5, 0.4, 0.6), (12, 0.4), [4, 8, 12, 16]),
        (("--save_total_limit", "1"), (0.1, 0.5, 0.4, 0.3), (8, 0.5), [8, 16]),
    ],
)
def test_each_new_best_is_kept(
    tmp_path: Path, argv: tuple[str, ...], told: Any, best: tuple[int, float], kept: list[int]
) -> None:
    run = fit(tmp_path / "run", "--eval_steps", "4", BY, "told", *argv, metrics=[Told(*told)])
    assert run.checkpoints == [f"step-{step:06d}" for step in kept]
    assert run.summary["best"] == {"metric": "told", "step": best[0], "score": best[1]}
    assert run.summary["stopped_early"] is False


def test_without_being_asked_no_checkpoint_is_added(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "--eval_steps", "4")
    assert run.checkpoints == ["step-000016"]
    losses = {row["step"]: row["eval_loss"] for row in run.rows if "eval_loss" in row}
    step = min(losses, key=lambda each: losses[each])
    assert run.summary["best"] == {"metric": "loss", "step": step, "score": losses[step]}


@pytest.mark.parametrize(
    "argv, told, ends",
    [
        ((PATIENCE, "2"), (0.5, 0.6, 0.6, 0.5, 0.9), 8),
        ((PATIENCE, "3"), (0.5, 0.6, 0.6, 0.5, 0.9, 0.8, 0.7, 0.9), 16),
        ((PATIENCE, "1", "--early_stopping_threshold", "0.1"), (0.5, 0.7, 0.9, 0.95), 8),
        ((PATIENCE, "1", "--greater_is_better", "false"), (0.5, 0.4, 0.4), 6),
    ],
)
def test_a_run_ends_where_no_evaluation_is_better(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], argv: tuple[str, ...], told: Any, ends: int
) -> None:
    run = fit(tmp_path / "run", "--eval_steps", "2", BY, "told", *argv, metrics=[Told(*told)])
    assert run.steps[-1]["step"] == run.summary["steps"] == ends
    assert run.checkpoints[-1] == f"step-{ends:06d}"
    assert run.summary["stopped_early"] is (ends < 16)
    assert ("stopped early at step" in capfd.readouterr().err) is (ends < 16)


def test_what_it_says_as_it_ends_early(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    fit(tmp_path / "run", "--eval_steps", "2", BY, "told", PATIENCE, "2", metrics=[Told(0.5, 0.6, 0.6, 0.5)])
    line = "oneloop: stopped early at step 8: no better told in 2 evaluations, the best is 0.6 at step 4"
    assert line in capfd.readouterr().err.splitlines()


def test_a_resumed_run_goes_on_counting(tmp_path: Path) -> None:
    """Two of three evaluations without a better one lie before the resume."""
    argv = ["--eval_steps", "2", BY, "told", PATIENCE, "3", "--checkpointing_steps", "1"]
    first = fit(tmp_path / "run", *argv, "--stop_after_steps", "7", metrics=[Told(0.6, 0.5, 0.5)])
    assert Checkpoint(first.checkpoint(7)).about["waited"] == 2
    again = fit(first.folder, *argv, "--resume_from_checkpoint", "auto", metrics=[Told(0.4, 0.9)])
    assert again.evaluated == [2, 4, 6, 8]
    assert again.summary["best"] == {"metric": "told", "step": 2, "score": 0.6}
    with_more = fit(
        *(first.folder, "--eval_steps", "2", BY, "told", PATIENCE, "4", "--resume_from_checkpoint", "auto"),
        metrics=[Told(0.4, 0.9, 0.8, 0.8, 0.8)],  # step 8 is evaluated again: its checkpoint was written before
    )
    assert with_more.evaluated == [2, 4, 6, 8, 10, 12, 14, 16]


def test_another_metric_counts_anew_and_says_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = fit(tmp_path / "run", "--eval_steps", "4", "--stop_after_steps", "9", "--checkpointing_steps", "9")
    argv = ["--eval_steps", "4", BY, "told", "--resume_from_checkpoint", "auto"]
    again = fit(run.folder, *argv, metrics=[Told(0.1, 0.0)])
    assert again.summary["best"] == {"metric": "told", "step": 12, "score": 0.1}
    assert "oneloop: the best step is counted anew: told decides, it was loss" in capfd.readouterr().err


def test_a_position_of_an_older_checkpoint_keeps_its_lowest_loss() -> None:
    older = {"step": 5, "epoch": 1, "index": 1, "samples": 40, "best_step": 4, "best_loss": 0.25, "scores": {}}
    assert Position.of(older) == Position(5, 1, 1, 40, best_step=4, best_metric="loss", best_score=0.25)


@pytest.mark.parametrize(
    "metrics, name, line",
    [
        ([Accuracy()], "acuracy", "is not among the evaluation's scores; did you mean accuracy?"),
        ([], "f1", "is not among the evaluation's scores; choose one of loss"),
        ([ConfusionMatrix(["no", "yes"])], "confusion_matrix", "is no single number; choose loss, accuracy or f1"),
    ],
)
def test_a_metric_that_cannot_decide_is_refused(tmp_path: Path, metrics: Any, name: str, line: str) -> None:
    with pytest.raises(UserError) as caught:
        fit(tmp_path / "run", "--eval_steps", "2", BY, name, metrics=metrics)
    assert caught.value.lines == (f"{BY}: '{name}': {line}",)
    # A name is told before anything is trained, and what only a score shows after the first evaluation.
    assert (tmp_path / "run" / "metrics.jsonl").exists() is (name == "confusion_matrix")


def test_without_an_evaluation_set_none_is_the_best() -> None:
    arguments = parse_arguments([BY, "loss"], description="", defaults={})
    with pytest.raises(UserError, match="there is no evaluation set"):
        Best.of(arguments).check([], False)
    Best.of(parse_arguments([], description="", defaults={})).check([], False)


@pytest.mark.parametrize(
    "argv, lines",
    [
        (["--early_stopping_threshold", "0.1"], ["--early_stopping_threshold: 0.1: goes with"]),
        (["--greater_is_better", "true"], ["--greater_is_better: True: goes with"]),
        (["--eval_steps", "0", PATIENCE, "0"], ["--eval_steps: '0': must be 1", f"{PATIENCE}: '0': must be 1"]),
    ],
)
def test_arguments_that_mean_nothing_are_refused(argv: list[str], lines: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        parse_arguments(argv, description="", defaults={})
    assert [line[: len(text)] for line, text in zip(caught.value.lines, lines, strict=True)] == lines


def test_a_file_of_metrics_keeps_lists_as_they_are(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", metrics=[ConfusionMatrix(["no", "yes"])])
    rows = [json.loads(line) for line in (run.folder / "metrics.jsonl").read_text().splitlines()]
    assert sum(map(sum, rows[-1]["eval_confusion_matrix"])) == 10
    assert run.summary["metrics"]["confusion_matrix"] == rows[-1]["eval_confusion_matrix"]
