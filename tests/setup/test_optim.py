"""Optimizers by name, and the learning rate of each update."""

from dataclasses import replace

import pytest
import torch

from toolkit.optim import lr_at, optimizer_from
from toolkit.setup import Setup


@pytest.mark.parametrize(
    ("name", "kind"), [("sgd", torch.optim.SGD), ("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)]
)
def test_each_name_is_its_optimizer(name, kind):
    setup = Setup.build(strategy="single", optimizer=name, learning_rate=0.25)
    got = optimizer_from(setup)([{"params": [torch.nn.Parameter(torch.zeros(1))]}])
    assert (type(got), got.param_groups[0]["lr"]) == (kind, 0.25)


def test_another_name_is_no_adam():
    setup = replace(Setup.build(strategy="single"), optimizer="lion")
    with pytest.raises(ValueError, match="optimizer 'lion' is not one of sgd, adam, adamw"):
        optimizer_from(setup)


@pytest.mark.parametrize("updates", [0, 7])
def test_another_schedule_is_not_constant(updates):
    with pytest.raises(ValueError, match="schedule 'step' is not one of constant, linear, cosine"):
        lr_at(updates, schedule="step", learning_rate=1.0, num_warmup_steps=2, total_steps=10)


@pytest.mark.parametrize(("schedule", "right"), [("constant", 1.0), ("linear", 0.5), ("cosine", 0.5)])
def test_half_way_after_the_warm_up(schedule, right):
    got = lr_at(6, schedule=schedule, learning_rate=1.0, num_warmup_steps=2, total_steps=10)
    assert got == pytest.approx(right)
