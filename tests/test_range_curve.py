"""What the curve of a range test says."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from toolkit.range_curve import Point, draw, found, local_lines

RATES = [1e-7 * 10 ** (number / 20) for number in range(161)]


def points(losses):
    return [Point(rate, float(loss), 1.0) for rate, loss in zip(RATES, losses, strict=False)]


def slope(middle, *, high=2.3, low=1.0, width=0.2):
    """A loss that falls from `high` to `low` around 10 ** `middle`."""
    return low + (high - low) / (1 + np.exp((np.log10(RATES) - middle) / width))


def noise(seed, scatter):
    return np.random.default_rng(seed).normal(0, scatter, 161)


def test_a_straight_line_is_its_own_smoothing_up_to_the_ends():
    x = np.linspace(-7, 1, 161)
    values, slopes = local_lines(x, 3 - 2 * x)
    assert values == pytest.approx(3 - 2 * x)
    assert slopes == pytest.approx(np.full(161, -2.0))


@pytest.mark.parametrize("middle", [-5.0, -3.5, -1.0])
def test_the_steepest_descent_is_where_the_loss_falls_fastest(middle):
    assert found(points(slope(middle))).suggestion == pytest.approx(10**middle)
    for seed in range(5):  # measured: at most 3 steps of the grid, of 0.05 decades
        noisy = found(points(slope(middle) + noise(seed, 0.1))).suggestion
        assert abs(np.log10(noisy) - middle) <= 0.2


def test_a_second_descent_to_where_the_loss_was_before_does_not_count():
    """Up again after 1e-2, and down faster than ever."""
    losses = slope(-4.0) + (slope(-1.5, low=0.0, width=0.02) - slope(-2.0, low=0.0, width=0.1))
    assert losses[105] > 2  # the outbreak
    assert found(points(losses)).suggestion == pytest.approx(1e-4, rel=0.13)


def test_what_comes_after_the_first_outbreak_does_not_change_the_suggestion():
    """There rounding decides, and setups part: a descent to new lows, less steep than the first one or steeper."""
    outbreak = slope(-1.2, high=0.8, low=0.0) - slope(-1.8, high=0.8, low=0.0)
    for depth in (0.6, 0.9, 1.2, 1.5, 2.0):
        losses = slope(-3.0) + outbreak - slope(-0.8, high=0.0, low=depth)
        assert losses.argmin() > 125  # beyond 0.1
        assert found(points(losses)).suggestion == pytest.approx(1e-3, rel=0.13)  # a step of the grid


@pytest.mark.parametrize("scatter", [0.003, 0.1])
def test_a_dip_among_the_losses_before_the_descent_is_not_the_descent(scatter):
    middles = [found(points(slope(-3.0) + noise(seed, scatter))).suggestion for seed in range(100)]
    assert all(abs(np.log10(middle) + 3) <= 0.3 for middle in middles)


def test_a_loss_that_leaves_all_bounds_does_not_reach_back_into_the_descent():
    losses = np.where(np.log10(RATES) < -2.5, slope(-3.0, width=0.1), 1e6)[:95]
    assert found(points(losses)).suggestion == pytest.approx(1e-3, rel=0.25)  # two steps of the grid before it


@pytest.mark.parametrize("seed", range(20))
def test_noise_is_no_descent(seed):
    nothing = found(points(2.3 + noise(seed, 0.1)))
    assert nothing.suggestion is None
    assert nothing.reason.startswith("the loss does not fall: it starts at 2.")
    assert len(nothing.smoothed) == 161


@pytest.mark.parametrize("losses", [[2.3] * 161, np.linspace(1, 5, 161), slope(-3.0)[::-1]], ids=["flat", "up", "step"])
def test_a_loss_that_only_stays_or_rises_gives_no_suggestion(losses):
    assert found(points(losses)).suggestion is None


def test_a_negative_loss_is_a_loss_too():
    assert found(points(slope(-3.0) - 10)).suggestion == pytest.approx(1e-3)


def test_losses_that_are_not_finite_are_left_out():
    assert found(points([*slope(-5.0)[:80], np.nan])).suggestion == pytest.approx(1e-5)
    few = found(points([2.3] * 19 + [np.nan]))
    assert (few.suggestion, few.smoothed) == (None, [])
    assert few.reason == "the loss is finite at 19 points alone, no more than a decade of rates"


def test_the_picture_marks_the_suggestion(tmp_path, monkeypatch):
    curve = found(points(slope(-3.0)))
    draw(tmp_path / "a.png", points(slope(-3.0)), curve, "$zero2 <b>")
    with Image.open(tmp_path / "a.png") as picture:
        assert (picture.format, picture.size) == ("PNG", (880, 550))
    figures = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))
    draw(tmp_path / "b.png", points(slope(-3.0)), curve, "")
    draw(tmp_path / "c.png", points([np.nan]), found(points([np.nan])), "")
    marked, empty = (figure.axes[0] for figure in figures)
    assert [text.get_text() for text in marked.get_legend().get_texts()][1:] == ["smoothed", "steepest descent: 0.001"]
    assert marked.get_xscale() == "log" and marked.get_xlabel() == "learning rate"
    assert [text.get_text() for text in empty.texts] == ["not finite at any rate"]
