"""Deviations and verdicts, from runs of which one number is changed."""

import json
import math
import shutil
from dataclasses import replace

import pytest
from seeded import train

from toolkit.compare.runs import DIFFERS, FAILED, REFERENCE, SAME, read_run
from toolkit.compare.verdict import describe, judge


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    return train(tmp_path_factory.mktemp("runs") / "reference")


@pytest.fixture
def copied(reference, tmp_path):
    """A copy of the reference with some rows changed, read anew."""

    def copy(**changes):
        folder = tmp_path / "copy"
        shutil.copytree(reference.folder, folder)
        rows = [dict(row) for row in reference.rows]
        for column, (step, value) in changes.items():
            rows[step - 1][column] = value
        (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        return read_run(folder)

    return copy


def test_a_copy_is_the_same(reference, copied):
    told = judge(copied(), reference)
    assert (told.verdict, told.loss, told.weights, told.parameter, told.step) == (SAME, 0.0, 0.0, 0.0, None)
    assert (told.strategy, told.ranks, told.precision) == ("single", 1, "fp32")
    assert set(told.metrics) == {"loss"}


@pytest.mark.parametrize(
    ("factor", "verdict", "step"),
    [(1 + 9e-6, SAME, None), (1 + 9e-5, "same within tolerance", None), (1.001, DIFFERS, 5)],
)
def test_the_loss_has_two_bounds(reference, copied, factor, verdict, step):
    told = judge(copied(loss=(5, reference.rows[4]["loss"] * factor)), reference)
    assert (told.verdict, told.step) == (verdict, step)
    assert told.loss == pytest.approx(factor - 1, rel=1e-6)


def test_what_is_not_finite_is_equal_where_both_are(reference, copied):
    told = judge(copied(loss=(3, None)), reference)
    assert (told.verdict, told.step, told.loss) == (DIFFERS, 3, math.inf)
    both = replace(reference, rows=tuple({**row, "loss": None} if row["step"] == 3 else row for row in reference.rows))
    assert judge(read_run(reference.folder), both).loss == math.inf
    assert judge(both, both).verdict == SAME


def test_a_run_of_other_length_differs(reference):
    told = judge(replace(reference, rows=reference.rows[:6]), reference)
    assert (told.verdict, told.step, told.cause) == (DIFFERS, None, "6 steps, and 8 of reference")


def test_without_the_first_weights_the_last_are_not_related(reference, copied, tmp_path):
    run = copied()
    shutil.rmtree(run.folder / "checkpoints" / "step-000000")
    told = judge(reference, run)
    assert (told.verdict, told.weights, told.parameter, told.parameter_name) == (SAME, None, None, "")


def test_a_failed_run_tells_why(tmp_path):
    run = read_run(tmp_path / "none", "zero2", errors=("a.json: no such file",))
    told = describe(run, FAILED, cause="\n".join(run.errors))
    assert (told.label, told.strategy, told.ranks, told.precision) == ("zero2", "", 0, "")
    assert (told.verdict, told.cause, told.loss) == (FAILED, "a.json: no such file", None)
    assert describe(run, REFERENCE).cause == ""
