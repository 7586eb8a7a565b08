"""The range test of the learning rate under every strategy."""

from __future__ import annotations

import math

import pytest

SETUPS = ("single x1", "ddp x2", "zero2 x2", "pipeline x2")


@pytest.mark.parametrize("setup", (*SETUPS, "zero3 x2", "zero2_offload x2"))
@pytest.mark.parametrize("when", ("fp32/0", "fp32/3", "bf16/0", "fp16/3"))
def test_training_goes_on_as_if_there_had_been_no_test(got, setup, when):
    """Losses, updates, loss scale, each rank's own statistics and weights: bit for bit."""
    for values in got("range put back", setup):
        tested, untested = values[when]
        assert len(tested[0]) == 4 and tested[1] > 0
        assert tested == untested


@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("setup", SETUPS)
def test_the_suggestion_is_the_same_within_a_step_of_the_grid(got, setup, optimizer):
    [alone] = got("range suggested", "single x1")
    for value in got("range suggested", setup):
        found, expected = value[optimizer], alone[optimizer]
        # Measured: the same point in all.
        assert abs(math.log10(found["suggestion"] / expected["suggestion"])) < 1.01 / 20
        assert found["returned"] == found["suggestion"]
        assert found["left"] == ["learning_rate.json", "learning_rate.png"]


@pytest.mark.parametrize("optimizer", ("sgd", "adamw"))
@pytest.mark.parametrize("setup", SETUPS)
def test_the_curve_has_20_points_a_decade_and_ends_where_the_loss_leaves_all_bounds(got, setup, optimizer):
    [alone] = got("range suggested", "single x1")
    curve, expected = got("range suggested", setup)[0][optimizer], alone[optimizer]
    rates = [point["learning_rate"] for point in curve["points"]]
    assert rates == pytest.approx([1e-7 * 10 ** (number / 20) for number in range(len(rates))])
    assert 100 < len(rates) < 161 and "the loss has left all bounds" in curve["ended"]
    losses, alone_losses = ([point["loss"] for point in each["points"][:100]] for each in (curve, expected))
    assert losses == pytest.approx(alone_losses, rel=1e-5)
