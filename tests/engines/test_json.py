"""A JSON's optimizer and scheduler mean the same under every strategy, and what DeepSpeed means by them."""

from __future__ import annotations

import pytest
import torch
from deepspeed.runtime.lr_schedules import WarmupDecayLR
from torch import nn

SETUPS = ("ddp x2", "zero2 x2", "zero2_offload x2", "pipeline x2")
every_setup = pytest.mark.parametrize("setup", SETUPS)


def deepspeeds_rates():
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = WarmupDecayLR(optimizer, 8, warmup_min_lr=1e-3, warmup_max_lr=2e-2, warmup_num_steps=3)
    rates = []
    for _ in range(8):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    return rates


@every_setup
def test_every_step_has_the_learning_rate_of_deepspeeds_own_class(got, setup):
    for rank in got("from_json", setup):
        assert rank["strategy"] == setup.partition(" ")[0]
        assert rank["rates"] == deepspeeds_rates()


@every_setup
def test_the_weights_are_those_of_ddp(got, setup):
    (reference, _), kind = got("from_json", "ddp x2"), "AdamW" if "offload" not in setup else "DeepSpeedCPUAdam"
    for rank in got("from_json", setup):
        assert rank["class"] == kind
        for name, values in reference["weights"].items():
            # They move by up to 2e-2 a step; with betas of 0.9 and 0.999 they would be off by 1e-2.
            assert rank["weights"][name] == pytest.approx(values, abs=2e-6)
