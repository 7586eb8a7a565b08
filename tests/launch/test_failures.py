"""A rank that raises, dies or falls silent: nobody hangs, and the cause is told once, by rank, step and reason."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import pytest
from starting import ROOT, launch_matrix, side_by_side

SCRIPT = str(Path(__file__).with_name("failing.py").relative_to(ROOT))
KILLED = "ended without a word"
# name -> (launcher, setup, how, rank, cause in the last line, seconds until all is over)
CASES = {
    "raise, torchrun": ("torchrun", "", "raise", 1, "ValueError: bad sample 17", 60),
    "raise, deepspeed": ("deepspeed", "zero2", "raise", 1, "ValueError: bad sample 17", 60),
    "kill, torchrun": ("torchrun", "zero2", "kill", 1, KILLED, 60),
    "kill, accelerate": ("accelerate", "zero3", "kill", 1, KILLED, 60),
    "kill rank 0, torchrun": ("torchrun", "", "kill", 0, KILLED, 60),
    "kill rank 0, deepspeed": ("deepspeed", "zero1", "kill", 0, KILLED, 60),
    # Told within 5 s + 45 s; a stopped process ignores SIGTERM, and launchers wait 30 s before SIGKILL.
    "stop, torchrun": ("torchrun", "", "stop", 1, "silent for", 80),
}


def run(folder, launcher, setup, how, rank):
    stamp = folder / "failed_at"
    folder.mkdir()
    line = launch_matrix.command(launcher, setup, [SCRIPT, "--timeout", "5" if how == "stop" else "60"])
    launched = launch_matrix.launch(line, folder / "run", 200, ONELOOP_FAIL=f"{how} {rank} {stamp}")
    launched.over = time.time() - float(stamp.read_text())
    launched.left = living(str(folder / "run"))
    launched.told = told(folder / "run") - float(stamp.read_text())
    return launched


def told(output_dir):
    """When summary.json got its last content."""
    return (output_dir / "summary.json").stat().st_mtime


def living(text):
    """Command lines of processes that name this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and path.parent.name != str(os.getpid()):
            found.append(command)
    return found


@pytest.fixture(scope="module")
def failed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    jobs = {name: partial(run, folder / str(number), *case[:4]) for number, (name, case) in enumerate(CASES.items())}
    return side_by_side(jobs, at_once=3)  # they mostly wait


each = pytest.mark.parametrize("case", CASES)


@each
def test_all_processes_are_gone_in_time(failed, case):
    assert failed[case].returncode != 0
    assert failed[case].over < CASES[case][5]
    assert failed[case].left == []


@each
def test_the_last_of_our_lines_names_rank_step_and_cause(failed, case):
    *_, rank, cause, _ = CASES[case]
    errors = [line for line in failed[case].output.splitlines() if line.startswith("oneloop: error:")]
    assert len(errors) == 1
    assert errors[0].startswith(f"oneloop: error: rank {rank} failed at step 3: {cause}")


@each
def test_the_same_stands_in_the_summary(failed, case):
    *_, rank, cause, _ = CASES[case]
    error = failed[case].summary["error"]
    assert (error["rank"], error["step"]) == (rank, 3)
    assert error["message"].startswith(cause)


def test_a_silent_rank_is_told_within_its_timeout(failed):
    assert failed["stop, torchrun"].told < 5 + 45
