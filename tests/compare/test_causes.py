"""Seeded faults, one for each cause, each in a real training: the verdict names it, and the step where it begins."""

import pytest
from seeded import train

from toolkit.compare.runs import DIFFERS, SAME, TOLERANCE
from toolkit.compare.verdict import judge

CASES = [
    # What the reference has, what the other says, the cause, the step.
    (
        "clipping",
        {"max_grad_norm": 40.0},
        {"max_grad_norm": 20.0},
        "clipping: max_grad_norm 20.0 (Setup.build: max_",
        None,
    ),
    ("optimizer", {}, {"optimizer": "adam"}, "optimizer: optimizer adam (Setup.build: optimizer), not sgd (", 2),
    ("weight decay", {}, {"weight_decay": 0.1}, "optimizer: weight_decay 0.1 (Setup.build: weight_decay), not 0.0", 2),
    ("schedule", {}, {"lr_scheduler_type": "constant"}, "schedule: lr_scheduler_type constant (Setup.build: lr_", 3),
    ("learning rate", {}, {"learning_rate": 0.04}, "schedule: learning_rate 0.04 (Setup.build: learning_rate), not", 2),
    ("batch", {}, {"train_batch_size": 4}, "unequal batches: train_batch_size 4 (Setup.build: train_batch_size)", 1),
    ("seed", {}, {"seed": 7}, "seed: seed 7 (Setup.build: seed), not 42", 1),
    (
        "batch norm",
        {"norm": True},
        {"norm": True, "gradient_accumulation_steps": 2},
        "buffers: BatchNorm over micro-batches of 4, not 8",
        1,
    ),
    ("dropout", {"dropout": 0.5}, {"dropout": 0.5, "fault": "masks"}, "dropout is on: its masks differ from rank", 1),
    ("silent clipping", {}, {"fault": "clips"}, "clipping, likely: step ", None),
    ("silent decay", {}, {"fault": "decays"}, "optimizer, likely: loss and gradient of step 1 agree, what the", 2),
    ("silent schedule", {}, {"fault": "schedule"}, "schedule: other learning rates from step 2, though the setups", 3),
    ("silent rows", {}, {"fault": "drops"}, "unequal batches: other samples from step 3", 3),
    ("silent bf16", {}, {"fault": "reduced"}, "precision, likely: the losses of step 1 are ", 1),
    ("silent weights", {}, {"fault": "weights"}, "other weights or other data at the start: the losses of step 1", 1),
    (
        "silent statistics",
        {"norm": True},
        {"norm": True, "fault": "statistics"},
        "buffers: norm.running_mean differs",
        0,
    ),
]


@pytest.mark.parametrize(("mine", "other", "cause", "step"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_each_seeded_fault_is_named(tmp_path, mine, other, cause, step):
    reference, run = train(tmp_path / "a", **mine), train(tmp_path / "b", **other)
    told = judge(run, reference)
    assert (told.verdict, told.cause[: len(cause)]) == (DIFFERS, cause)
    if step is not None:
        assert told.step == (step or None)
    elif "clipping" in cause:  # the step after the first whose gradient it cuts
        norms = [row["grad_norm"] for row in reference.rows]
        first = next(number for number, norm in enumerate(norms, 1) if norm > 20.0)
        assert (first > 1, told.step) == (True, first + 1)


def test_the_same_training_is_the_same(tmp_path):
    reference, run = train(tmp_path / "a"), train(tmp_path / "b", gradient_accumulation_steps=2)
    told = judge(run, reference)
    assert (told.verdict, told.step, told.cause) == (SAME, None, "")
    assert told.loss <= 1e-6 and told.weights <= 1e-6


def test_another_precision_is_named_where_it_is_within_its_tolerance(tmp_path):
    reference, run = train(tmp_path / "a"), train(tmp_path / "b", mixed_precision="bf16")
    told = judge(run, reference)
    assert (told.verdict, told.precision, told.step) == (TOLERANCE, "bf16", None)
    assert (
        told.cause
        == "precision: mixed_precision bf16 (Setup.build: mixed_precision), not no (Setup.build: mixed_precision)"
    )
    assert 1e-5 < told.loss <= 2e-2
