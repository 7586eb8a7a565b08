"""A signal to a rank, to all, or to the launcher: every rank stops at the same step, saves, and a resume goes on there.

signal_matrix.py tries every signal with every target; these are one or two of each kind.
"""

from __future__ import annotations

import json
import signal
from functools import partial
from typing import NamedTuple

import pytest
import signal_matrix
from starting import launch_matrix, side_by_side

WORKERS = ("--dataloader_num_workers", "1")
TERM, INT, USR1, KILL = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGKILL


class Case(NamedTuple):
    launcher: str
    number: int
    to: str
    code: int  # of the ranks
    cause: str  # in summary.json
    more: tuple[str, ...] = ()


CASES = {
    "one rank": Case("torchrun", TERM, "rank", 143, "ended by SIGTERM"),
    "torchrun's front end": Case("torchrun", INT, "front", 130, "interrupted", WORKERS),
    "torchrun, which passes on what its ranks got": Case("torchrun", USR1, "job", 143, "ended by SIGUSR1", WORKERS),
    "torchrun, killed, and its store with it": Case("torchrun", KILL, "front", 143, "ended by SIGTERM"),
    "accelerate's front end": Case("accelerate, 2", TERM, "front", 143, "ended by SIGTERM"),
    "accelerate, which leaves its one process alone": Case("accelerate, 1", TERM, "front", 143, "ended by SIGTERM"),
    "deepspeed's launch.py, which waits for one rank before it ends the next": Case(
        "deepspeed", TERM, "below", 143, "ended by SIGTERM"
    ),
    "deepspeed's group, where SIGTERM follows on SIGINT": Case("deepspeed", INT, "group", 130, "interrupted", WORKERS),
}
MORE_STEPS = 3


def run(folder, case):
    ended = signal_matrix.signalled(case.launcher, case.number, case.to, folder, *case.more)
    last = str((ended.units[0] or 0) + MORE_STEPS)
    more = ["--resume_from_checkpoint", "auto", "--stop_after_steps", last]
    line = launch_matrix.command("python", "", [signal_matrix.SCRIPT, *more])
    ended.resumed = launch_matrix.launch(line, ended.output_dir, ONELOOP_LEFT=str(folder))
    return ended


@pytest.fixture(scope="module")
def ended(tmp_path_factory):
    folder = tmp_path_factory.mktemp("signals")
    jobs = {name: partial(run, folder / str(number), case) for number, (name, case) in enumerate(CASES.items())}
    return side_by_side(jobs)


each = pytest.mark.parametrize("case", CASES)


@each
def test_no_process_is_left_after_the_30_s_that_launchers_give(ended, case):
    assert ended[case].left == []
    assert ended[case].seconds < 30


@each
def test_every_rank_exits_with_the_signals_code(ended, case):
    assert set(ended[case].codes) == {CASES[case].code}, ended[case].output


@each
def test_all_ranks_stop_at_the_step_of_the_one_checkpoint(ended, case):
    assert len(set(ended[case].units)) == 1
    assert ended[case].checkpoints == [f"step-{ended[case].units[0]:06}"]
    assert ended[case].faults == []


@each
def test_the_summary_tells_why(ended, case):
    assert ended[case].cause == CASES[case].cause


@each
def test_a_resume_goes_on_from_there(ended, case):
    resumed = ended[case].resumed
    assert resumed.returncode == 0, resumed.output
    assert resumed.summary["error"] is None
    lines = (ended[case].output_dir / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == list(range(1, ended[case].units[0] + MORE_STEPS + 1))
