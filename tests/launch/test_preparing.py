"""Data are prepared once per node: by one rank, while the other waits longer than --timeout; its failure ends both."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest
from starting import ROOT, launch_matrix, side_by_side

SCRIPT = str(Path(__file__).with_name("preparing.py").relative_to(ROOT))
LINES = ["data.csv: line 3: no text there", "data.csv: line 5: the label is missing"]
# how -> (launcher, its exit code, how our lines at the end start)
FAILURES = {
    "user": ("deepspeed", 2, LINES),
    "raise": ("torchrun", 1, ["rank 0 failed at step 0: ValueError: no such word"]),
    "kill": ("torchrun", 1, ["rank 0 failed at step 0: ended without a word"]),
}


def run(folder, how, launcher="torchrun"):
    folder.mkdir(exist_ok=True)
    log = folder / "log"
    log.write_text("")
    line = launch_matrix.command(launcher, "", [SCRIPT, "--timeout", "6"])
    place = str(folder / "cache")
    launched = launch_matrix.launch(line, folder / "run", 100, ONELOOP_PREPARE=f"{how} {log}", ONELOOP_CACHE=place)
    launched.ended = time.time()
    launched.preparations = [entry.split() for entry in log.read_text().splitlines()]
    launched.got = [held.read_text() for held in sorted(folder.glob("log.*"))]
    return launched


def cold_and_warm(folder):
    return [run(folder, "done") for _ in range(2)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preparing")
    jobs = {how: partial(run, folder / how, how, case[0]) for how, case in FAILURES.items()}
    return side_by_side({"done": partial(cold_and_warm, folder / "done"), **jobs}, at_once=3)  # they mostly wait


def test_one_rank_prepares_and_both_map_what_it_kept(runs):
    cold, warm = runs["done"]
    assert [launched.returncode for launched in runs["done"]] == [0, 0]
    assert [rank for rank, _ in cold.preparations] == ["0"]
    assert warm.preparations == []
    assert cold.got == warm.got == ["memmap 499500"] * 2
    assert "oneloop: numbers: prepared in 8." in cold.output
    assert warm.output.count("oneloop: numbers: prepared before, in ") == 1


@pytest.mark.parametrize("how", FAILURES)
def test_a_failure_of_the_preparing_rank_ends_both_and_is_told_once(runs, how):
    _, code, lines = FAILURES[how]
    failed = runs[how]
    assert failed.returncode == code
    assert [rank for rank, _ in failed.preparations] == ["0"]
    assert failed.got == []
    told = [line for line in failed.output.splitlines() if line.startswith("oneloop: error:")]
    assert len(told) == len(lines)
    assert all(line.startswith(f"oneloop: error: {start}") for line, start in zip(told, lines, strict=True))
    assert failed.ended - float(failed.preparations[0][1]) < 60
