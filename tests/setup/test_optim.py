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


@pytest.mark.parametrize("device", ["cpu", "meta"])  # torch has a fused kernel for the first
def test_adam_is_fused_where_torch_has_a_kernel(device, capfd):
    parameter = torch.nn.Parameter(torch.zeros(2, device=device))
    got = optimizer_from(Setup.build(strategy="single"))([{"params": [parameter]}])
    assert got.defaults["fused"] == (device == "cpu")
    said = "torch has no fused Adam for torch.float32 on meta: its loop over tensors takes its place"
    assert (said in capfd.readouterr().err) == (device == "meta")


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_fused_adam_and_the_loop_that_takes_its_place_give_the_same_numbers(name, monkeypatch):
    left = []
    for devices in (["cpu"], []):
        monkeypatch.setattr(torch.utils._foreach_utils, "_get_fused_kernels_supported_devices", lambda d=devices: d)
        parameter = torch.nn.Parameter(torch.linspace(-1, 1, 100))
        setup = Setup.build(strategy="single", optimizer=name, learning_rate=1e-2, weight_decay=0.1)
        optimizer = optimizer_from(setup)([{"params": [parameter]}])
        for step in range(5):
            parameter.grad = torch.linspace(-2, 3, 100).roll(step)
            optimizer.step()
        left.append(parameter.detach())
    torch.testing.assert_close(*left, rtol=2e-6, atol=0)  # measured 1.7e-6: 3e-8 absolute


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
