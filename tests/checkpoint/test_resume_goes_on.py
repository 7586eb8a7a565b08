"""A resumed run is the uninterrupted one: the same batches, losses, learning rates, weights, and rows in its files."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting import Run, copied, fit, model, same, seal, tell, weights
from torch import nn

from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.files import ABOUT, MANIFEST

RESUME = "--resume_from_checkpoint"
WEIGHTS = "model-00001-of-00001.safetensors"


class Double(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.double()


@pytest.fixture
def run(tmp_path: Path, whole: Run) -> Run:
    """The finished run in a folder of its own, to be changed."""
    return copied(whole, tmp_path / "run")


def goes_on_to_the_end(run: Run, whole: Run, step: int) -> None:
    """It trained every step after `step` as the uninterrupted run did, and its folder tells each step once."""
    assert run.read == whole.read[8 * step :]
    assert run.steps == whole.steps
    assert run.evaluated == [8, 16]
    assert same(run.checkpoint(16), whole.checkpoint(16))


# ---- C39: batches and weights ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [3, 8, 11, 13])
def test_every_sample_once_an_epoch_across_the_break(tmp_path: Path, whole: Run, step: int) -> None:
    first = fit(tmp_path / "run", "--stop_after_steps", str(step))
    assert [len(first.read), first.steps] == [8 * step, whole.steps[:step]]
    assert first.checkpoints == [f"step-{step:06d}"]
    torch.manual_seed(77)  # another process
    second = fit(tmp_path / "run", RESUME, "auto")
    read = first.read + second.read
    assert read == whole.read
    assert sorted(read[:64]) == sorted(read[64:]) == list(range(64))
    assert read[:64] != read[64:]
    goes_on_to_the_end(second, whole, step)


def test_a_chain_of_breaks_is_no_break(tmp_path: Path, whole: Run) -> None:
    read = fit(tmp_path / "run", "--stop_after_steps", "1").read
    for step in (2, 3, 7, 8, 9, 15):
        read += fit(tmp_path / "run", "--stop_after_steps", str(step), RESUME, "auto").read
    last = fit(tmp_path / "run", RESUME, "auto")
    assert read + last.read == whole.read
    assert last.steps == whole.steps
    assert last.evaluated == [8, 16]
    assert same(last.checkpoint(16), whole.checkpoint(16))


def test_the_schedule_is_the_whole_runs(tmp_path: Path, whole: Run) -> None:
    """--stop_after_steps ends early, and the learning rates are those of 16 steps, warm-up included."""
    rates = [row["learning_rate"] for row in whole.steps]
    assert rates[:4] == [0.0, 0.05 / 3, 0.1 / 3, 0.05] and len(set(rates)) == 16
    run = fit(tmp_path / "run", "--stop_after_steps", "2")
    assert run.summary["steps"] == 2
    assert [row["learning_rate"] for row in run.steps] == rates[:2]
    run = fit(tmp_path / "run", "--stop_after_steps", "12", RESUME, "auto")
    assert [row["learning_rate"] for row in run.steps] == rates[:12]


def test_another_learning_rate_is_told_and_taken(tmp_path: Path, whole: Run, capfd: Any) -> None:
    changed = {"learning_rate": 0.5, "max_grad_norm": 2.0, "mixed_precision": "bf16"}
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(12)), **changed)
    told = capfd.readouterr().err
    assert "oneloop: learning_rate is 0.5, it was 0.05\n" in told
    assert "oneloop: max_grad_norm is 2.0, it was 1.0\n" in told
    assert "oneloop: mixed_precision is bf16, it was no\n" in told
    assert [row["learning_rate"] for row in run.steps] == pytest.approx(
        [10 * row["learning_rate"] for row in whole.steps[12:]]
    )


def test_another_schedule_is_told_and_taken(tmp_path: Path, whole: Run, capfd: Any) -> None:
    params = {"warmup_num_steps": "auto", "total_num_steps": "auto", "warmup_type": "linear"}
    section = {"scheduler": {"type": "WarmupCosineLR", "params": params}}
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(12)), deepspeed=section)
    told = capfd.readouterr().err
    assert "oneloop: lr_scheduler_type is WarmupCosineLR, it was cosine\n" in told
    assert "oneloop: lr_schedule is {'type': 'WarmupCosineLR', " in told
    assert "optimizer_options" not in told
    # DeepSpeed's cosine from 3 to 16: the update after k has the index k - 1; the floor is 1e-4 of the peak.
    shares = [(1 + math.cos(math.pi * (index - 2) / 13)) / 2 for index in (11, 12, 13, 14)]
    right = [0.05 * (1e-4 + (1 - 1e-4) * share) for share in shares]
    assert [row["learning_rate"] for row in run.steps] == pytest.approx(right)


def test_more_steps_than_before_are_told(tmp_path: Path, whole: Run, capfd: Any) -> None:
    run = fit(tmp_path / "new", "--max_train_steps", "20", RESUME, str(whole.checkpoint(16)))
    assert "oneloop: the schedule now ends at step 20, not 16\n" in capfd.readouterr().err
    assert [row["step"] for row in run.steps] == [17, 18, 19, 20]
    assert [row["epoch"] for row in run.steps] == [2] * 4


def test_another_accumulation_goes_on_with_the_same_batches(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(8)), gradient_accumulation_steps=2)
    assert [sorted(run.read[n : n + 8]) for n in range(0, 64, 8)] == [
        sorted(whole.read[n : n + 8]) for n in range(64, 128, 8)
    ]


# ---- where from ------------------------------------------------------------------------------------------------------


def test_auto_in_a_new_folder_says_that_it_starts_fresh(tmp_path: Path, whole: Run, capfd: Any) -> None:
    run = fit(tmp_path / "run", "--checkpointing_steps", "4", RESUME, "auto")
    assert f"oneloop: no whole checkpoint in {run.folder}: starting fresh\n" in capfd.readouterr().err
    assert run.steps == whole.steps
    assert run.summary["resumed_at_step"] == 0
    assert run.checkpoints == whole.checkpoints


def test_a_path_goes_on_in_a_new_folder_and_leaves_the_old_one(tmp_path: Path, whole: Run, capfd: Any) -> None:
    before = {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()}
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(4)))
    assert f"oneloop: resumed from {whole.checkpoint(4)}: step 4, written by single" in capfd.readouterr().err
    assert run.read == whole.read[32:]
    assert run.steps == whole.steps[4:]
    assert run.evaluated == [8, 16]
    assert run.checkpoints == ["step-000016"]
    assert run.summary["resumed_at_step"] == 4
    assert same(run.checkpoint(16), whole.checkpoint(16))
    assert {path: path.read_bytes() for path in whole.folder.rglob("*") if path.is_file()} == before


def test_a_runs_folder_means_its_newest(tmp_path: Path, whole: Run) -> None:
    for place in (whole.folder, whole.folder / "checkpoints"):
        run = fit(tmp_path / place.name, RESUME, str(place), "--num_train_epochs", "3")
        assert [row["step"] for row in run.steps] == list(range(17, 25))


def test_an_older_step_sets_the_newer_ones_aside(run: Run, whole: Run, capfd: Any) -> None:
    held = {step: weights(run.checkpoint(step)) for step in (12, 16)}
    again = fit(run.folder, RESUME, str(run.checkpoint(8)), "--checkpointing_steps", "4")
    goes_on_to_the_end(again, whole, 8)
    assert again.checkpoints == ["aside-1-step-000012", "aside-1-step-000016", *whole.checkpoints]
    told = capfd.readouterr().err
    for step, tensors in held.items():
        aside = run.folder / "checkpoints" / f"aside-1-step-{step:06d}"
        assert f"oneloop: step-{step:06d} is past step 8 or damaged: it is now {aside}\n" in told
        assert Checkpoint(aside).faults() == []
        assert all(torch.equal(tensors[name], tensor) for name, tensor in weights(aside).items())
    # A second time: no name is taken twice, and the ones aside can be gone on from.
    fit(run.folder, RESUME, str(run.checkpoint(8)), "--stop_after_steps", "9")
    assert [name for name in again.checkpoints if name.startswith("aside")] == [
        "aside-1-step-000012",
        "aside-1-step-000016",
        "aside-2-step-000012",
        "aside-2-step-000016",
    ]
    back = fit(run.folder, RESUME, str(run.folder / "checkpoints" / "aside-1-step-000012"))
    assert [row["step"] for row in back.steps] == [*range(1, 10), *range(13, 17)]
    assert same(back.checkpoint(16), whole.checkpoint(16))


@pytest.mark.parametrize("name", [WEIGHTS, "optimizer-00001-of-00001.safetensors", ABOUT, MANIFEST])
def test_auto_falls_back_over_damage_and_says_so(run: Run, whole: Run, capfd: Any, name: str) -> None:
    damaged = run.checkpoint(16) / name
    damaged.write_bytes(damaged.read_bytes()[:-2])
    left = {path.name: path.read_bytes() for path in run.checkpoint(16).iterdir()}
    again = fit(run.folder, RESUME, "auto")
    told = capfd.readouterr().err
    assert told.count("oneloop: passed over: ") == 1
    passed = next(line for line in told.splitlines() if line.startswith("oneloop: passed over: "))
    assert "step-000016" in passed and name in passed
    assert f"oneloop: resumed from {run.checkpoint(12)}: step 12" in told
    goes_on_to_the_end(again, whole, 12)
    aside = run.folder / "checkpoints" / "aside-1-step-000016"
    assert {path.name: path.read_bytes() for path in aside.iterdir()} == left
    assert again.checkpoints == ["aside-1-step-000016", *whole.checkpoints]


def test_auto_falls_back_over_all(run: Run, whole: Run, capfd: Any) -> None:
    for step in (4, 8, 12, 16):
        (run.checkpoint(step) / WEIGHTS).unlink()
    again = fit(run.folder, RESUME, "auto")
    told = capfd.readouterr().err
    assert told.count("oneloop: passed over: ") == 4
    assert f"oneloop: no whole checkpoint in {run.folder}: starting fresh\n" in told
    goes_on_to_the_end(again, whole, 0)
    assert again.checkpoints == [f"aside-1-step-{step:06d}" for step in (4, 8, 12, 16)] + ["step-000016"]


@pytest.mark.parametrize("wanted", [(), ("auto",)], ids=["no argument", "auto"])
def test_ranks_that_the_launcher_started_again_go_on(
    run: Run, whole: Run, monkeypatch: pytest.MonkeyPatch, wanted: tuple[str, ...]
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    (run.checkpoint(16) / MANIFEST).unlink()
    goes_on_to_the_end(fit(run.folder, *([RESUME, *wanted] if wanted else [])), whole, 12)


def test_started_again_the_runs_own_checkpoint_comes_before_the_path(
    run: Run, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "2")
    (run.checkpoint(16) / MANIFEST).unlink()
    goes_on_to_the_end(fit(run.folder, RESUME, str(whole.checkpoint(4))), whole, 12)


def test_started_again_before_the_first_checkpoint_the_path_counts(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(4)))
    assert run.read == whole.read[32:]


def test_a_damaged_one_of_the_same_step_steps_aside(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = fit(tmp_path / "run", "--stop_after_steps", "4")
    (run.checkpoint(4) / MANIFEST).unlink()
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    again = fit(run.folder, RESUME, str(whole.checkpoint(4)))
    assert again.checkpoints == ["aside-1-step-000004", "step-000016"]
    goes_on_to_the_end(again, whole, 4)


def test_what_a_killed_save_left_is_removed(run: Run, whole: Run, capfd: Any) -> None:
    left = run.folder / "checkpoints" / ".step-000016.tmp"
    run.checkpoint(16).rename(left)
    goes_on_to_the_end(fit(run.folder, RESUME, "auto"), whole, 12)
    assert f"oneloop: removed {left}: a save that was cut short left it\n" in capfd.readouterr().err
    assert not left.exists()


# ---- metrics.jsonl ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "end",
    ["", '{"step": 17, "loss": 0.1}\n{"step": 18, "lo', '{"step": 17}', "\0\0\0\0\n\0\0", "[]\n{}\n3\n", "\ud800"],
    ids=["whole", "half a row", "no line's end", "zeros of a lost page", "other JSON", "no UTF-8"],
)
def test_rows_past_the_checkpoint_are_cut(run: Run, whole: Run, end: str) -> None:
    path = run.folder / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + end.encode(errors="surrogatepass"))
    (run.checkpoint(16) / MANIFEST).unlink()
    again = fit(run.folder, RESUME, "auto")
    goes_on_to_the_end(again, whole, 12)
    assert [row["step"] for row in again.rows] == [row["step"] for row in whole.rows]


def test_metrics_that_were_lost_are_no_reason_to_stop(run: Run, whole: Run) -> None:
    (run.folder / "metrics.jsonl").unlink()
    (run.checkpoint(16) / MANIFEST).unlink()
    assert fit(run.folder, RESUME, "auto").steps == whole.steps[12:]


def test_the_config_of_each_part_is_kept(run: Run, whole: Run) -> None:
    (run.checkpoint(16) / MANIFEST).unlink()
    fit(run.folder, RESUME, "auto")
    first = json.loads((run.folder / "config" / "arguments.json").read_text())
    second = json.loads((run.folder / "config" / "from-step-000012" / "arguments.json").read_text())
    assert [first["resume_from_checkpoint"], second["resume_from_checkpoint"]] == [None, "auto"]


# ---- ends ------------------------------------------------------------------------------------------------------------


def test_a_finished_run_trains_nothing_and_writes_no_checkpoint(run: Run, whole: Run) -> None:
    before = {path: path.stat().st_mtime_ns for path in (run.folder / "checkpoints").rglob("*")}
    again = fit(run.folder, RESUME, "auto")
    assert again.read == []
    assert {path: path.stat().st_mtime_ns for path in (run.folder / "checkpoints").rglob("*")} == before
    assert again.scores == whole.scores
    assert [row["step"] for row in again.rows] == [row["step"] for row in whole.rows]
    assert again.steps == whole.steps
    assert [again.summary[name] for name in ("steps", "updates", "resumed_at_step", "error")] == [16, 16, 16, None]
    assert again.summary["metrics"] == whole.summary["metrics"]


def test_a_finished_run_in_a_new_folder_has_its_checkpoint(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "new", RESUME, str(whole.folder))
    assert (run.read, run.checkpoints, run.evaluated) == ([], ["step-000016"], [16])
    assert same(run.checkpoint(16), whole.checkpoint(16))


@pytest.mark.parametrize("step", [8, 16])
def test_an_evaluation_that_was_due_is_done_once(run: Run, whole: Run, step: int) -> None:
    """A checkpoint is written before its step is evaluated: a run that was killed in between does it on resume."""
    for later in range(step + 4, 20, 4):
        (run.checkpoint(later) / MANIFEST).unlink()
    assert Checkpoint(run.checkpoint(step)).about["evaluation_due"] is True
    path = run.folder / "metrics.jsonl"
    rows = path.read_text().splitlines(keepends=True)
    path.write_text("".join(row for row in rows if not ('"eval_loss"' in row and f'"step": {step},' in row)))
    for _ in range(2):
        again = fit(run.folder, RESUME, "auto", "--stop_after_steps", str(step))
        assert again.read == []
        assert again.evaluated == [8, 16][: step // 8]
        evaluated = [row for row in again.rows if "eval_loss" in row]
        assert evaluated == [row for row in whole.rows if "eval_loss" in row][: step // 8]
        assert again.scores == {"loss": evaluated[-1]["eval_loss"]}


def test_scores_come_back_where_nothing_is_due(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(12)), "--stop_after_steps", "13")
    assert run.evaluated == []
    assert run.scores == {"loss": next(row["eval_loss"] for row in whole.rows if "eval_loss" in row)}


def test_stopping_before_where_it_stands_trains_nothing_and_says_so(run: Run, capfd: Any) -> None:
    again = fit(run.folder, RESUME, str(run.checkpoint(8)), "--stop_after_steps", "3")
    assert again.read == []
    assert [row["step"] for row in again.steps] == list(range(1, 9))
    assert "oneloop: nothing to train: it stands at step 8, and this run ends after step 3\n" in capfd.readouterr().err


def test_float64_goes_on_bit_for_bit(tmp_path: Path) -> None:
    def build() -> nn.Module:
        return nn.Sequential(Double(), model().double())

    straight = fit(tmp_path / "straight", build=build)
    fit(tmp_path / "run", "--stop_after_steps", "5", build=build)
    run = fit(tmp_path / "run", RESUME, "auto", build=build)
    assert same(run.checkpoint(16), straight.checkpoint(16))


def test_another_number_of_ranks_draws_another_dropout_and_says_so(tmp_path: Path, whole: Run, capfd: Any) -> None:
    folder = copied(whole, tmp_path / "run").checkpoint(12)
    (folder / "random-00002-of-00002.safetensors").write_bytes(
        (folder / "random-00001-of-00001.safetensors").read_bytes()
    )
    seal(folder)
    first, second = (fit(tmp_path / name, RESUME, str(folder)) for name in ("one", "two"))
    told = "oneloop: random states of 2 ranks do not fit 1: dropout goes on from a seed made of (seed, step, rank)\n"
    assert told in capfd.readouterr().err
    assert first.read == whole.read[-32:]
    assert first.steps == second.steps != whole.steps[12:]


def test_a_score_that_is_no_number_comes_back(tmp_path: Path, whole: Run) -> None:
    """NaN and infinity are null in JSON: a checkpoint and a resumed run are none the worse."""

    class Odd:
        def compute(self, **_: Any) -> dict[str, float]:
            return {"nan": float("nan"), "inf": float("inf"), "half": 0.5}

    run = fit(tmp_path / "run", "--checkpointing_steps", "4", "--stop_after_steps", "12", metrics=[Odd()])
    text = (run.checkpoint(12) / ABOUT).read_text()
    assert "NaN" not in text and "Infinity" not in text
    assert Checkpoint(run.checkpoint(12)).about["scores"] | {"loss": 0} == {
        "loss": 0,
        "nan": None,
        "inf": None,
        "half": 0.5,
    }
    assert fit(run.folder, RESUME, "auto", "--stop_after_steps", "12").summary["metrics"]["nan"] is None


# ---- which are written, which are kept -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "steps"),
    [
        ((), [16]),
        (("--checkpointing_steps", "epoch"), [8, 16]),
        (("--checkpointing_steps", "5"), [5, 10, 15, 16]),
        (("--checkpointing_steps", "16"), [16]),
        (("--checkpointing_steps", "100"), [16]),
        (("--checkpointing_steps", "3", "--stop_after_steps", "7"), [3, 6, 7]),
        (("--checkpointing_steps", "epoch", "--stop_after_steps", "7"), [7]),
    ],
)
def test_checkpoints_are_written_when_due(tmp_path: Path, argv: tuple[str, ...], steps: list[int]) -> None:
    run = fit(tmp_path / "run", *argv)
    assert run.checkpoints == [f"step-{step:06d}" for step in steps]
    assert all(Checkpoint(run.checkpoint(step)).faults() == [] for step in steps)


class Best:
    """Makes the evaluation at each epoch's end as good as told: its loss is what the run keeps the best by."""

    def __init__(self, *losses: float) -> None:
        self.losses = list(losses)

    def compute(self, **_: Any) -> dict[str, float]:
        return {"loss": self.losses.pop(0)}


def limited(folder: Path, limit: int, losses: tuple[float, ...], *argv: str, epochs: int = 4) -> list[int]:
    run = fit(
        folder,
        *("--checkpointing_steps", "epoch", "--save_total_limit", str(limit), "--num_train_epochs", str(epochs)),
        *argv,
        size=16,
        metrics=[Best(*losses)],
    )
    assert not list((folder / "checkpoints").glob(".*"))
    return [int(name.partition("-")[2]) for name in run.checkpoints]


@pytest.mark.parametrize(
    ("limit", "losses", "kept"),
    [
        (1, (4.0, 3.0, 2.0, 1.0), [8]),
        (2, (4.0, 3.0, 2.0, 1.0), [6, 8]),
        (1, (1.0, 2.0, 3.0, 4.0), [2, 8]),
        (2, (1.0, 2.0, 3.0, 4.0), [2, 8]),
        (2, (3.0, 1.0, 2.0, 4.0), [4, 8]),
        (3, (1.0, 2.0, 3.0, 4.0), [2, 6, 8]),
        (3, (4.0, 3.0, 2.0, 1.0), [4, 6, 8]),
        (9, (1.0, 2.0, 3.0, 4.0), [2, 4, 6, 8]),
        (2, (float("nan"), float("nan"), 2.0, 4.0), [6, 8]),
        (1, (float("nan"),) * 4, [8]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    tmp_path: Path, limit: int, losses: tuple[float, ...], kept: list[int]
) -> None:
    assert limited(tmp_path / "run", limit, losses) == kept


def test_the_best_is_remembered_across_a_break(tmp_path: Path) -> None:
    # The second step's evaluation is done again on resume.
    assert limited(tmp_path / "run", 2, (1.0, 2.0), "--stop_after_steps", "4") == [2, 4]
    assert limited(tmp_path / "run", 2, (2.0, 3.0, 4.0), RESUME, "auto") == [2, 8]


def test_they_are_counted_as_numbers(tmp_path: Path, whole: Run) -> None:
    """After step 999,999 the names grow longer: the oldest is still the oldest."""
    run = copied(whole, tmp_path / "run")
    for step, number in ((8, 999_996), (12, 999_999), (16, 1_000_000)):
        run.checkpoint(step).rename(run.checkpoint(number))
        tell(run.checkpoint(number), ABOUT, step=number, best_step=number)
    again = fit(
        run.folder,
        *(RESUME, "auto", "--max_train_steps", "1000001", "--save_total_limit", "2"),
    )
    assert again.checkpoints == ["step-1000000", "step-1000001"]


def test_what_is_set_aside_does_not_count(run: Run) -> None:
    again = fit(run.folder, RESUME, str(run.checkpoint(8)), "--save_total_limit", "1", "--checkpointing_steps", "4")
    assert again.checkpoints == ["aside-1-step-000012", "aside-1-step-000016", "step-000016"]


def test_nothing_is_written_before_the_first_step(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "run", "--stop_after_steps", "1")
    assert run.checkpoints == ["step-000001"]
