"""Deviations and verdicts, from runs of which one number is changed."""

import errno
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from seeded import train

from toolkit.checkpoint.files import MANIFEST, record
from toolkit.compare import page
from toolkit.compare.command import compare_runs
from toolkit.compare.runs import DIFFERS, FAILED, REFERENCE, SAME, TOLERANCE, read_run
from toolkit.compare.verdict import describe, judge
from toolkit.errors import UserError


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


MODEL = "model-00001-of-00001.safetensors"


def changed(run, name, change, step=8):
    """The run with one tensor of a checkpoint changed, which is whole again."""
    folder = run.folder / "checkpoints" / f"step-{step:06d}"
    file = folder / MODEL
    tensors = load_file(file)
    save_file(tensors | {name: change(tensors[name])}, file)
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"][file.name] = record(file)
    (folder / MANIFEST).write_text(json.dumps(manifest))
    return run


def drifting(run, factor):
    """The run with losses that come apart `factor` times as far in each step."""
    rows = [{**row, "loss": row["loss"] * (1 + 1e-8 * factor ** row["step"])} for row in run.rows]
    return replace(run, rows=tuple(rows))


def test_a_copy_is_the_same(reference, copied):
    told = judge(copied(), reference)
    assert (told.verdict, told.loss, told.weights, told.parameter, told.step) == (SAME, 0.0, 0.0, 0.0, None)
    assert (told.strategy, told.ranks, told.precision) == ("single", 1, "fp32")
    assert set(told.metrics) == {"loss"}


@pytest.mark.parametrize(
    ("factor", "verdict", "step"),
    [(1 + 9e-6, SAME, None), (1 + 9e-5, TOLERANCE, None), (1.001, DIFFERS, 5)],
)
def test_the_loss_has_two_bounds(reference, copied, factor, verdict, step):
    told = judge(copied(loss=(5, reference.rows[4]["loss"] * factor)), reference)
    assert (told.verdict, told.step) == (verdict, step)
    assert told.loss == pytest.approx(factor - 1, rel=1e-6)
    assert (told.cause == "as far apart as ties of ReLU and max pooling bring fp32") == (verdict == TOLERANCE)


def test_what_is_not_finite_is_equal_where_both_are(reference, copied):
    told = judge(copied(loss=(3, None)), reference)
    assert (told.verdict, told.step, told.loss) == (DIFFERS, 3, math.inf)
    both = replace(reference, rows=tuple({**row, "loss": None} if row["step"] == 3 else row for row in reference.rows))
    assert judge(read_run(reference.folder), both).loss == math.inf
    told = judge(both, both)
    assert (told.verdict, told.cause) == (SAME, "1 of 8 losses are not finite, the first at step 3")


def test_a_run_of_other_length_differs(reference):
    told = judge(replace(reference, rows=reference.rows[:6]), reference)
    assert (told.verdict, told.step, told.cause) == (DIFFERS, None, "6 steps, and 8 of reference")


def test_steps_are_compared_by_number(reference):
    told = judge(replace(reference, rows=reference.rows[3:]), reference)
    assert (told.verdict, told.loss, told.cause) == (DIFFERS, 0.0, "5 steps, and 8 of reference")
    told = judge(replace(reference, rows=reference.rows[1:]), replace(reference, rows=reference.rows[:-1]))
    assert (told.verdict, told.loss, told.cause) == (DIFFERS, 0.0, "steps from 2 on, and from 1 of reference")
    told = judge(replace(reference, rows=reference.rows[:4]), replace(reference, rows=reference.rows[4:]))
    assert (told.verdict, told.loss, told.step) == (DIFFERS, None, None)


def test_a_weight_is_related_to_the_way_of_the_reference(reference, copied):
    start = load_file(reference.folder / "checkpoints" / "step-000000" / MODEL)["head.bias"]
    told = judge(changed(copied(), "head.bias", lambda end: end + 0.5 * (end - start)), reference)
    assert (told.verdict, told.step, told.parameter_name) == (DIFFERS, None, "head.bias")
    assert told.parameter == pytest.approx(0.5, rel=1e-4) and 0 < told.weights < 0.5
    assert told.cause.startswith("unknown: the losses of training agree, head.bias does not: each update may differ")


def test_what_was_asked_to_differ_is_within_no_tolerance(reference, copied):
    start = load_file(reference.folder / "checkpoints" / "step-000000" / MODEL)["head.bias"]
    run = changed(copied(), "head.bias", lambda end: end + 5e-3 * (end - start))
    assert judge(run, reference).verdict == TOLERANCE
    setup = {**run.summary["setup"], "weight_decay": {"value": 0.001, "origin": "a.json"}}
    told = judge(replace(run, summary={**run.summary, "setup": setup}), reference)
    assert (told.verdict, told.cause[:37]) == (DIFFERS, "optimizer: weight_decay 0.001 (a.json")


def test_runs_without_a_step_are_not_the_same(reference):
    none = replace(reference, rows=())
    assert judge(none, none).verdict == DIFFERS


def test_labels_of_drawn_runs_are_unique(reference, tmp_path):
    named = [shutil.copytree(reference.folder, tmp_path / place) for place in ("a/x", "b/x", "c/x (2)")]
    compare_runs(named, tmp_path / "out")
    told = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert [each["label"] for each in told["setups"]] == ["x", "x (2)", "x (2) (2)"]


@pytest.mark.parametrize(
    ("values", "rounding"),
    # Adam makes whole steps of a gradient of 1e-8; of SGD's way 9e-10 is left.
    [({"optimizer": "adamw", "learning_rate": 1e-3}, 1e-3), ({"optimizer": "sgd", "learning_rate": 0.02}, 1e-8)],
    ids=["adamw", "sgd"],
)
def test_a_bias_before_batch_norm_moves_by_rounding_alone(tmp_path, values, rounding):
    reference = train(tmp_path / "reference", norm=True, **values)
    verdicts = {}
    for name, way in (("body.bias", rounding), ("body.bias", 1.0), ("norm.bias", 1e-3)):
        run = read_run(shutil.copytree(reference.folder, tmp_path / f"{name}-{way}"))
        told = judge(changed(run, name, lambda end, way=way: end + way), reference)
        verdicts[name, way] = (told.verdict, told.parameter_name == name)
    far = {("body.bias", 1.0): (DIFFERS, False), ("norm.bias", 1e-3): (DIFFERS, True)}
    assert verdicts == {("body.bias", rounding): (SAME, False), **far}


@pytest.mark.parametrize(("value", "verdict", "far"), [(math.nan, DIFFERS, math.inf), (None, SAME, 0.0)])
def test_weights_that_are_not_finite_are_equal_where_both_are(reference, copied, tmp_path, value, verdict, far):
    spoil = lambda tensor: torch.full_like(tensor, math.nan)  # noqa: E731
    run = changed(copied(), "head.bias", spoil)
    other = reference if value is not None else read_run(shutil.copytree(run.folder, tmp_path / "other"))
    told = judge(run, other)
    assert (told.verdict, told.parameter, told.weights) == (verdict, far, far)


def test_without_the_first_weights_the_last_are_not_related(reference, copied):
    run = copied()
    shutil.rmtree(run.folder / "checkpoints" / "step-000000")
    told = judge(reference, run)
    assert (told.verdict, told.weights, told.parameter, told.parameter_name) == (SAME, None, None, "")
    assert told.cause == "weights not compared: copy has not kept its first (--save_initial)"


def test_weights_that_cannot_be_read_are_told(reference, copied):
    run = copied()
    for folder in (run.folder / "checkpoints").iterdir():
        (folder / MODEL).write_bytes(b"")
    told = judge(run, reference)
    assert (told.verdict, told.weights) == (SAME, None)
    assert told.cause.startswith("weights not compared: ") and "868 bytes were written" in told.cause
    shutil.rmtree(run.folder / "checkpoints")
    assert judge(run, reference).cause == "weights not compared: copy has no checkpoint"


def test_losses_that_drift_apart_are_no_fault_of_one_step(reference):
    # 8 steps, each 4 times as far apart: past rounding at step 4, past the bound at step 5.
    told = judge(drifting(reference, 4), reference)
    assert (told.verdict, told.step) == (DIFFERS, 5)
    assert told.cause.startswith("unknown: the losses drift apart little by little, past rounding at step 4: ")


def test_an_evaluation_that_differs_alone_is_told(reference, copied):
    run = copied()
    mine, other = {"loss": 2.0, "accuracy": 1.0}, {"loss": 1.0, "accuracy": 1.0}
    run, against = (
        replace(each, summary={**each.summary, "metrics": scores}) for each, scores in ((run, mine), (reference, other))
    )
    told = judge(run, against)
    assert (told.verdict, told.step, dict(told.metrics)) == (DIFFERS, None, mine)
    assert told.cause == "unknown: the losses of training agree, the evaluation's does not: 2.0, not 1.0"


def test_a_gradient_that_comes_apart_first_is_told(reference, copied):
    run = copied(loss=(4, 1.0), grad_norm=(3, 1.0))
    assert judge(run, reference).cause == "unknown: the gradients of step 3 differ, the loss of that step does not"


def test_another_seed_is_not_taken_for_16_bit(reference, copied):
    # As the CNN's: losses of a network that knows nothing are alike, its gradients are not.
    row = reference.rows[0]
    run = copied(loss=(1, row["loss"] * 1.004), grad_norm=(1, row["grad_norm"] * 1.04))
    assert judge(run, reference).cause.startswith("other data at the start, likely: the losses of step 1 are 4.0e-03 ")
    shutil.rmtree(run.folder / "checkpoints" / "step-000000")
    assert judge(run, reference).cause.startswith("other weights or data at the start: ")
    run = replace(run, summary={**run.summary, "obtained": {"parameter_dtype": "bfloat16", "autocast_dtype": None}})
    assert judge(run, reference).cause.startswith("precision: parameter_dtype bfloat16, not float32: the losses of st")


def test_another_class_of_optimizer_is_told(reference, copied):
    run = copied(loss=(2, 1.0))
    folder = run.folder / "checkpoints" / "step-000008"
    about = json.loads((folder / "oneloop.json").read_text())
    (folder / "oneloop.json").write_text(json.dumps(about | {"optimizer": "Lion"}))
    manifest = json.loads((folder / MANIFEST).read_text())
    manifest["files"]["oneloop.json"] = record(folder / "oneloop.json")
    (folder / MANIFEST).write_text(json.dumps(manifest))
    assert judge(run, reference).cause == "optimizer: Lion, not SGD (their checkpoints)"


def test_a_failed_run_tells_why(tmp_path):
    run = read_run(tmp_path / "none", "zero2", errors=("a.json: no such file",))
    told = judge(run, run)
    assert (told.label, told.strategy, told.ranks, told.precision) == ("zero2", "", 0, "")
    assert (told.verdict, told.cause, told.loss) == (FAILED, "a.json: no such file", None)
    assert describe(run, REFERENCE).cause == ""


def test_a_full_disk_does_not_take_what_was_measured(reference, tmp_path, monkeypatch, capsys):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(page, "write_page", full)
    with pytest.raises(UserError) as caught:
        compare_runs([reference.folder, reference.folder], tmp_path / "out")
    (line,) = caught.value.lines
    assert (line.where, line.reason) == ("--output_dir", "cannot be written (No space left on device)")
    assert "reference (2)" in capsys.readouterr().out


def test_a_last_checkpoint_that_is_damaged_is_told(reference, copied):
    run = copied()
    shutil.copytree(run.folder / "checkpoints" / "step-000008", run.folder / "checkpoints" / "step-000009")
    (run.folder / "checkpoints" / "step-000008" / MODEL).write_bytes(b"")
    (run.folder / "checkpoints" / "step-000009" / MODEL).write_bytes(b"")
    told = judge(run, reference)
    steps = "the last whole checkpoints are of step 0 and of step 8"
    damaged = "step-000009 of copy is not whole (oneloop verify tells why)"
    assert (told.verdict, told.weights, told.cause) == (SAME, None, f"weights not compared: {steps}; {damaged}")
