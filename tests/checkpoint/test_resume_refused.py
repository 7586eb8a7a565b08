"""What a run refuses to go on from, each in one line that names what is there, and exit code 2."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting import LINE, Run, copied, fit, model, tell
from torch import nn

from toolkit.checkpoint.files import ABOUT, MANIFEST
from toolkit.errors import UserError

RESUME = "--resume_from_checkpoint"


def snapshot(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def refused(folder: Path, *argv: str, **given: Any) -> str:
    """The one line; a refusal changes nothing in the output folder."""
    before = snapshot(folder)
    with pytest.raises(UserError) as caught:
        fit(folder, *argv, **given)
    assert snapshot(folder) == before
    assert len(caught.value.lines) == 1 and LINE.fullmatch(caught.value.lines[0]), caught.value.lines
    return str(caught.value.lines[0])


# ---- nothing to load -----------------------------------------------------------------------------------------------


def test_a_step_that_does_not_exist(tmp_path: Path, whole: Run) -> None:
    path = whole.checkpoint(9)
    assert refused(tmp_path / "new", RESUME, str(path)) == (
        f"{RESUME}: {str(path)!r}: no such folder; there are step-000004, step-000008, step-000012, step-000016"
    )


def test_a_step_named_beside_its_folder(tmp_path: Path, whole: Run) -> None:
    line = refused(tmp_path / "new", RESUME, str(whole.folder / "step-000004"))
    assert line.endswith(": no such folder; there are step-000004, step-000008, step-000012, step-000016")


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    path = tmp_path / "nowhere" / "else"
    assert refused(tmp_path / "new", RESUME, str(path)) == (
        f"{RESUME}: {str(path)!r}: no such folder; name a checkpoint or a run's folder, or auto"
    )


@pytest.mark.parametrize("name", ["latest", "step-3", "checkpoints"])
def test_a_path_with_nothing_in_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    line = refused(tmp_path / "new", RESUME, str(tmp_path / name))
    assert repr(str(tmp_path / name)) in line
    assert "holds no checkpoint" in line or "not a whole checkpoint: an empty folder" in line


@pytest.mark.parametrize("name", ["model.safetensors", "step-000003"])
def test_a_file_in_the_place_of_a_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("x")
    line = refused(tmp_path / "new", RESUME, str(tmp_path / name))
    assert line == f"{RESUME}: {str(tmp_path / name)!r}: is a file; name a checkpoint or a run's folder, or auto"


def test_a_run_without_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "run" / "checkpoints" / ".step-000004.tmp").mkdir(parents=True)
    line = refused(tmp_path / "new", RESUME, str(tmp_path / "run"))
    assert line.startswith(f"{RESUME}: {str(tmp_path / 'run')!r}: holds no checkpoint; ")


def test_what_a_killed_save_left_is_no_checkpoint(tmp_path: Path, whole: Run) -> None:
    """Whole as it may be, the run that goes on removes it."""
    run = copied(whole, tmp_path / "run")
    left = run.checkpoint(16).rename(run.folder / "checkpoints" / ".step-000016.tmp")
    line = refused(run.folder, RESUME, str(left))
    assert line == f"{RESUME}: {str(left)!r}: holds no checkpoint; there are step-000004, step-000008, step-000012"


def test_a_checkpoint_that_is_not_whole(tmp_path: Path, whole: Run) -> None:
    run = copied(whole, tmp_path / "run")
    (run.checkpoint(8) / MANIFEST).unlink()
    line = refused(tmp_path / "new", RESUME, str(run.checkpoint(8)))
    assert f"{str(run.checkpoint(8))!r}: not a whole checkpoint: no {MANIFEST} in it; " in line
    path = run.checkpoint(12) / "model-00001-of-00001.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    line = refused(tmp_path / "new", RESUME, str(run.checkpoint(12)))
    assert line.startswith(f"{path}: '{path.stat().st_size} bytes': {path.stat().st_size + 1} bytes were written; ")


def test_of_a_run_with_no_whole_checkpoint_each_is_told(tmp_path: Path, whole: Run) -> None:
    run = copied(whole, tmp_path / "run")
    for step in (4, 8, 12, 16):
        (run.checkpoint(step) / MANIFEST).unlink()
    with pytest.raises(UserError) as caught:
        fit(tmp_path / "new", RESUME, str(run.folder))
    assert [line.count(f"step-{step:06d}") for line, step in zip(caught.value.lines, (16, 12, 8, 4), strict=True)] == [
        1
    ] * 4


# ---- of something else ----------------------------------------------------------------------------------------------


def frozen() -> nn.Module:
    made = model()
    made[0].weight.requires_grad_(False)
    return made


def deeper() -> nn.Module:
    return nn.Sequential(*model(), nn.Linear(2, 2))


def renamed() -> nn.Module:
    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = model()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.body(x)

    return Named()


OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "a parameter more": ({"build": deeper}, "of another model: it has no 4.weight, and 1 more; build the model that"),
    "other names": ({"build": renamed}, "of another model: it has no body.0.weight, and 7 more; build the model that"),
    "another shape": (
        {"build": lambda: model(9)},
        "of another model: 0.weight has shape (8, 4), here (9, 4), and 2 more; build the model that wrote it",
    ),
    "another optimizer": ({"optimizer": "sgd"}, "was trained with AdamW, this run has SGD; take the same --optimizer"),
    "its near kin": ({"optimizer": "adam"}, "was trained with AdamW, this run has Adam; take the same --optimizer"),
    "another seed": ({"seed": 1}, "its samples came in another order: seed 1, was 42; give the same values"),
    "another batch": ({"train_batch_size": 16}, "another order: train_batch_size 16, was 8; give the same values"),
    "other rows": ({"size": 63}, "its samples came in another order: rows 63, was 64; give the same values"),
    "grouped by length": (
        {"lengths": [1 + n % 5 for n in range(64)], "argv": ("--group_by_length", "true")},
        "its samples came in another order: group_by_length True, was False; give the same values",
    ),
    "two of them": ({"seed": 1, "size": 63}, "another order: seed 1, was 42; rows 63, was 64; give the same values"),
}


@pytest.mark.parametrize(("given", "reason"), OTHERS.values(), ids=OTHERS)
def test_a_checkpoint_of_another_run(tmp_path: Path, whole: Run, given: dict[str, Any], reason: str) -> None:
    given = dict(given)
    line = refused(tmp_path / "new", RESUME, str(whole.checkpoint(8)), *given.pop("argv", ()), **given)
    assert line.startswith(f"{RESUME}: {str(whole.checkpoint(8))!r}: ")
    assert reason in line


@pytest.mark.parametrize(
    "given", [{"seed": 1}, {"optimizer": "sgd"}, {"build": deeper}], ids=["order", "optimizer", "model"]
)
def test_a_refusal_in_the_runs_own_folder_changes_nothing(tmp_path: Path, whole: Run, given: dict[str, Any]) -> None:
    run = copied(whole, tmp_path / "run")
    (run.folder / "checkpoints" / ".step-000020.tmp").mkdir()
    (run.checkpoint(16) / MANIFEST).unlink()
    for wanted in (str(run.checkpoint(8)), "auto"):
        refused(run.folder, RESUME, wanted, **given)  # it looks


def test_a_checkpoint_of_a_larger_model(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "1", build=deeper)
    assert "of another model: 4.weight is not in this model, and 1 more; " in refused(
        tmp_path / "new", RESUME, str(run.folder)
    )


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_keeps_the_optimizers_name_without_any_state(tmp_path: Path, momentum: float) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "1", optimizer="sgd", momentum=momentum)
    line = refused(tmp_path / "new", "--max_train_steps", "2", RESUME, str(run.folder))
    assert "was trained with SGD, this run has AdamW; take the same --optimizer" in line


def test_a_parameter_that_was_frozen_then(tmp_path: Path) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "2", build=frozen)
    line = refused(tmp_path / "new", RESUME, str(run.folder))
    assert "has no optimizer state for 0.weight, frozen when it was written; freeze them again, or start from" in line


def test_a_parameter_that_is_frozen_now_is_taken(tmp_path: Path, whole: Run) -> None:
    run = fit(tmp_path / "new", RESUME, str(whole.checkpoint(8)), build=frozen)
    assert [row["step"] for row in run.steps] == list(range(9, 17))


# ---- what is in the way ---------------------------------------------------------------------------------------------


def test_a_folder_that_holds_a_run(tmp_path: Path, whole: Run) -> None:
    run = copied(whole, tmp_path / "run")
    expected = f"--output_dir: {str(run.folder)!r}: already holds a run (summary.json); it would be overwritten; "
    assert refused(run.folder).startswith(expected)
    assert refused(run.folder).endswith(f"name a new folder, or go on in it with {RESUME} auto")
    assert refused(run.folder, RESUME, str(whole.checkpoint(8))).startswith(expected)  # of another folder
    # One that begins with the same letters is not inside.
    other = copied(whole, tmp_path / "run2")
    assert refused(run.folder, RESUME, str(other.checkpoint(8))).startswith(expected)


@pytest.mark.parametrize("name", ["summary.json", "metrics.jsonl", "config", "checkpoints"])
def test_a_folder_that_holds_a_part_of_a_run(tmp_path: Path, name: str) -> None:
    (tmp_path / "run" / name).mkdir(parents=True)
    assert f"already holds a run ({name}); " in refused(tmp_path / "run")


def test_a_folder_that_another_run_is_writing_into(tmp_path: Path, whole: Run) -> None:
    """Both would write each step's row, and the second would move the first one's checkpoints aside."""
    run = copied(whole, tmp_path / "run")
    other = os.open(run.folder, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert refused(run.folder, RESUME, "auto") == (
        f"--output_dir: {str(run.folder)!r}: another run is writing into it; wait for its end, or name a new folder"
    )
    os.close(other)
    fit(run.folder, RESUME, "auto")
    free = os.open(run.folder, os.O_RDONLY)
    fcntl.flock(free, fcntl.LOCK_EX | fcntl.LOCK_NB)  # a run that has ended holds nothing
    os.close(free)


def test_a_checkpoint_that_cannot_step_aside_is_one_line(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path, target: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    run = copied(whole, tmp_path / "run")
    monkeypatch.setattr(Path, "rename", denied)
    with pytest.raises(UserError) as caught:
        fit(run.folder, RESUME, str(run.checkpoint(8)))
    reason = "cannot be renamed, and is past step 8 or damaged (Permission denied); "
    assert reason in str(caught.value) and repr(str(run.checkpoint(12))) in str(caught.value)
    assert run.checkpoints == whole.checkpoints


def test_a_folder_that_holds_something_else_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "notes.txt").write_text("mine")
    run = fit(tmp_path / "run", "--max_train_steps", "1")
    assert (run.folder / "notes.txt").read_text() == "mine"
    assert run.checkpoints == ["step-000001"]


def test_a_tensor_that_no_checkpoint_can_hold_is_refused_before_training(tmp_path: Path) -> None:
    def build(extra: Callable[[], torch.Tensor]) -> nn.Module:
        made = model()
        made.register_buffer("extra", extra())
        return made

    for make, told in (
        (lambda: torch.zeros(0, 3), "torch.float32 of shape (0, 3)"),
        (lambda: torch.zeros(2, dtype=torch.complex64), "torch.complex64 of shape (2,)"),
    ):
        line = refused(tmp_path / "run", build=lambda make=make: build(make))
        assert line.startswith(f"model: 'extra': is {told}, which a checkpoint has no place for; ")


def test_the_exit_code_is_2_and_there_is_one_line(tmp_path: Path, whole: Run) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "import toolkit\n"
        "from pathlib import Path\n"
        "from fitting import fit\n"
        f"toolkit.run(lambda: fit(Path({str(tmp_path / 'new')!r}), {RESUME!r}, {str(whole.checkpoint(9))!r}))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stdout == ""
    told = f"oneloop: error: {RESUME}: {str(whole.checkpoint(9))!r}: no such folder; there are step-000004, step-000008"
    assert done.stderr.startswith(told) and done.stderr.count("\n") == 1


def test_what_an_import_does_not_know_is_no_reason(tmp_path: Path, whole: Run, capfd: Any) -> None:
    """Checkpoints of other tools tell neither the order of samples nor the setup."""
    folder = Path(shutil.copytree(whole.checkpoint(12), tmp_path / "step-000012"))
    tell(folder, ABOUT, order=None, setup=None, optimizer=None, total_steps=None)
    run = fit(tmp_path / "new", RESUME, str(folder))
    assert [row["step"] for row in run.steps] == [13, 14, 15, 16]
    assert run.read == whole.read[-32:]
    assert "it does not say which samples it has seen: going on at step 4 of epoch 1" in capfd.readouterr().err
