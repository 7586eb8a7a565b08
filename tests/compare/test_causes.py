"""Seeded faults, one and more for each cause, each in a real training: the verdict names it, and its step."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from seeded import train

from toolkit.compare.runs import DIFFERS, SAME, TOLERANCE, read_run
from toolkit.compare.verdict import judge

ADAM, NORM = {"optimizer": "adam"}, {"norm": True}
FP16, BF16 = {"mixed_precision": "fp16"}, {"mixed_precision": "bf16"}
SECOND = (
    "optimizer, likely (momentum and betas act from the second update on), or clipping (step 2 is the first whose "
    "gradient norm, "
)

# What the reference has, what the other has, how the cause begins, the step.
TOLD = {
    # The first gradient above 20 is the third.
    "clipping": (
        {"max_grad_norm": 40.0},
        {"max_grad_norm": 20.0},
        "clipping: max_grad_norm 20.0 (Setup.build: max_",
        4,
    ),
    "optimizer": ({}, ADAM, "optimizer: optimizer adam (Setup.build: optimizer), not sgd (", 2),
    "weight decay": ({}, {"weight_decay": 0.1}, "optimizer: weight_decay 0.1 (Setup.build: weight_decay), not 0.0", 2),
    "momentum": ({}, {"momentum": 0.9}, "optimizer: momentum 0.9 (Setup.build: momentum), not 0.0", 3),
    "schedule": ({}, {"lr_scheduler_type": "constant"}, "schedule: lr_scheduler_type constant (Setup.build: lr_", 3),
    "learning rate": ({}, {"learning_rate": 0.04}, "schedule: learning_rate 0.04 (Setup.build: learning_rate), not", 2),
    "length": ({}, {"argv": ("--max_train_steps", "6")}, "schedule: other learning rates from step 2, of 6 steps", 3),
    "batch": ({}, {"train_batch_size": 4}, "unequal batches: train_batch_size 4 (Setup.build: train_batch_size)", 1),
    "seed": ({}, {"seed": 7}, "seed: seed 7 (Setup.build: seed), not 42", 1),
    "two": ({}, {"seed": 7, "train_batch_size": 4}, "seed: seed 7 (Setup.build: seed), not 42 (Setup.build); un", 1),
    "freeze": ({}, {"freeze": ["head"]}, 'frozen layers: freeze ["head"] (Setup.build: freeze), not null', 2),
    "fp16": ({}, FP16, "precision: mixed_precision fp16 (Setup.build: mixed_precision), not no", 2),
    "batch norm": (
        NORM,
        NORM | {"gradient_accumulation_steps": 2},
        "buffers: BatchNorm over 4 samples at a time",
        1,
    ),
    "dropout": (
        {"dropout": 0.5},
        {"dropout": 0.5, "fault": "masks"},
        "dropout is on (0.5): its masks differ from rank",
        1,
    ),
    "dropout in two": ({"dropout": 0.5}, {"dropout": 0.25}, "dropout: 0.25, not 0.5", 1),
    "dropout in one": ({"dropout": 0.5}, {}, "dropout: 0, not 0.5", 1),
}
SILENT = {
    "clips": ({}, "clipping, likely: step 3 is the first whose gradient norm, 25.4, is the largest", 4),
    "clips all": ({}, "optimizer, likely, or a clipping below 15.9: loss and gradient of step 1 agree", 2),
    # A bound that the first gradients keep, and one that the second does not, where momentum would act first, too.
    "does not clip": (
        {"max_grad_norm": 20.0},
        "clipping, likely: step 3 is the first whose gradient norm, 25.4, is",
        4,
    ),
    "does not clip, early": ({"max_grad_norm": 16.5}, f"{SECOND}17.7, is above 16.5)", 3),
    "decays": ({}, "optimizer, likely, or a clipping below 15.9: loss and gradient of step 1 agree", 2),
    "decays, Adam": (ADAM, "optimizer, likely, or a clipping below 15.9: loss and gradient of step 1 agree", 2),
    "momentum": ({}, f"{SECOND}17.7, is the largest so far)", 3),
    "betas": (ADAM, f"{SECOND}18.4, is the largest so far)", 3),
    "schedule": ({}, "schedule: other learning rates from step 2, though the setups say the same", 3),
    "drops": ({}, "unequal batches: other samples from step 3", 3),
    "reduced": ({}, "precision, likely: the losses of step 1 are ", 1),
    "weights": ({}, "other weights at the start: the losses of step 1 are ", 1),
    "data": ({}, "other data at the start, likely: the losses of step 1 are ", 1),
    "scale": (FP16, "overflow: 0 steps skipped, not 2", 2),
    "statistics": (NORM, "buffers: norm.running_mean differs by ", None),
}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The run of given values, trained once."""
    trained = {}

    def get(values):
        key = str(values)
        if key not in trained:
            trained[key] = train(tmp_path_factory.mktemp("runs") / "reference", **values)
        return trained[key]

    return get


@pytest.mark.parametrize(("mine", "other", "cause", "step"), TOLD.values(), ids=TOLD)
def test_a_fault_that_the_setups_tell_is_named(reference, tmp_path, mine, other, cause, step):
    told = judge(train(tmp_path / "run", **other), reference(mine))
    assert (told.verdict, told.cause[: len(cause)], told.step) == (DIFFERS, cause, step)


@pytest.mark.parametrize(("fault", "values", "cause", "step"), [(n, *row) for n, row in SILENT.items()], ids=SILENT)
def test_a_silent_fault_is_named(reference, tmp_path, fault, values, cause, step):
    told = judge(train(tmp_path / "run", fault=fault.partition(",")[0], **values), reference(values))
    assert (told.verdict, told.cause[: len(cause)], told.step) == (DIFFERS, cause, step)


def test_what_cannot_have_acted_yet_is_not_named(reference, tmp_path):
    """Learning rates differ from step 2 on, a gradient is clipped in step 3, but the loss of step 2 is another."""
    more = {"optimizer": "adam", "lr_scheduler_type": "constant", "max_grad_norm": 20.0}
    told = judge(train(tmp_path / "run", **more), reference({"max_grad_norm": 40.0}))
    assert (told.verdict, told.step) == (DIFFERS, 2)
    assert told.cause.startswith("optimizer: optimizer adam (Setup.build: optimizer), not sgd")
    assert "schedule: " not in told.cause and "clipping: " not in told.cause


def test_the_same_training_is_the_same(reference, tmp_path):
    told = judge(train(tmp_path / "run", gradient_accumulation_steps=2), reference({}))
    assert (told.verdict, told.step, told.cause) == (SAME, None, "")
    assert told.loss <= 1e-6 and told.weights <= 1e-6


def test_another_precision_is_named_where_it_is_within_its_tolerance(reference, tmp_path):
    told = judge(train(tmp_path / "run", **BF16), reference({"mixed_precision": "no"}))
    assert (told.verdict, told.precision, told.step) == (TOLERANCE, "bf16", None)
    assert (
        told.cause
        == "precision: mixed_precision bf16 (Setup.build: mixed_precision), not no (Setup.build: mixed_precision)"
    )
    assert 1e-5 < told.loss <= 2e-2


def test_statistics_that_a_rank_keeps_to_itself_are_buffers(tmp_path):
    """Two real ranks, with `sync_buffers` and without: their evaluations differ, their losses do not."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = str(Path(__file__).with_name("unsynced.py"))
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, script, "--output_dir", str(tmp_path)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    reference, run = (read_run(tmp_path / name) for name in ("averaged", "alone"))
    told = judge(run, reference)
    assert (told.verdict, told.step, told.loss, told.weights) == (DIFFERS, None, 0.0, 0.0)
    assert told.cause.startswith("buffers: 1.running_") and told.cause.endswith("the losses of training agree")
    assert told.metrics["loss"] != reference.summary["metrics"]["loss"]
