"""Six kills of a rank, four while a checkpoint is written: the next start goes on from the last whole one, and the end
is that of a run which nothing interrupted. `python tests/launch/kill_matrix.py` does fifty with larger weights.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

import kill_matrix
import pytest
from kill_matrix import BETWEEN, WRITING, Plan
from starting import side_by_side

WIDTH = 2200  # 26 MB of weights, checkpoints of 80 MB: long enough to write that a kill falls into it
PLANS = {
    "zero3": [Plan(1, 1, WRITING[1]), Plan(0, 1, BETWEEN[0]), Plan(0, 0, WRITING[2])],
    "pipeline": [Plan(0, 1, WRITING[2]), Plan(1, 1, BETWEEN[1]), Plan(1, 0, WRITING[0])],
}


@pytest.fixture(scope="module")
def chains():
    with tempfile.TemporaryDirectory() as folder:  # pytest would keep the checkpoints
        jobs = {
            setup: partial(kill_matrix.run, setup, plans, Path(folder, setup), WIDTH) for setup, plans in PLANS.items()
        }
        return side_by_side(jobs)


each = pytest.mark.parametrize("setup", PLANS)


@each
def test_every_start_goes_on_from_the_last_whole_checkpoint(chains, setup):
    kills = chains[setup].kills
    assert [kill.faults for kill in kills] == [[], [], []]
    # A busy machine may see the kill between saves late: another checkpoint is whole then.
    first, second, third = (kill.resumed for kill in kills)
    assert first == 3
    assert second in (6, 9)
    assert third == second


@each
def test_a_kill_in_a_save_leaves_a_temporary_folder_and_no_checkpoint(chains, setup):
    first, _, third = chains[setup].kills
    assert (first.in_save, first.left, third.in_save, third.left) == (True, True, True, True)


@each
def test_all_processes_are_gone_within_a_minute(chains, setup):
    assert max(kill.seconds for kill in chains[setup].kills) < 60


@each
def test_weights_and_metrics_are_those_of_the_uninterrupted_run(chains, setup):
    assert chains[setup].faults == []
    assert chains[setup].weights_equal


def test_the_matrix_kills_each_rank_in_each_moment_of_a_save():
    planned = [
        plan
        for number, kills in enumerate(kill_matrix.KILLS.values())
        for plan in kill_matrix.plans(kills, first=7 * number)
    ]
    writing = [plan for plan in planned if plan.moment in WRITING]
    assert (len(planned), len(writing)) == (50, 27)
    assert {(plan.rank, plan.moment) for plan in writing} == {(rank, moment) for rank in (0, 1) for moment in WRITING}
