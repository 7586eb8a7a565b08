"""What the curve of a range test says: the loss smoothed, where it falls most steeply, and the picture."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

A_DECADE = 20  # points
# In decades, of the Gaussian weights around each point: 14 losses count for it, each of another batch.
WIDTH = 0.2
# Of the single losses around the smoothed ones. In 161 losses that only scatter the lowest smoothed one after the first
# 20 lies 0.67 +- 0.34 of it below the mean of these (2,000 draws); 2 % of them lie this far below.
SCATTERS = 1.5
# Of the fall so far: a smoothed loss that has risen by more is out of the descent for good.
RISES = 0.1
# Of the whole fall: less is a dip among the scattered losses before the descent.
SHARE = 0.25
ROUNDING = 1e-5  # of the loss itself: a fall of less is none


class Point(NamedTuple):
    """One optimizer step."""

    learning_rate: float
    loss: float  # of its batch, before it
    grad_norm: float


class Found(NamedTuple):
    """The curve, and what follows from it."""

    smoothed: list[float]  # for the points whose loss is finite
    suggestion: float | None
    reason: str


def found(points: Sequence[Point]) -> Found:
    """The rate at which the smoothed loss falls most steeply, if it falls.

    A loss is smoothed by a straight line through its neighbours, which lags neither behind nor ahead of them, over the
    decimal logarithm of the rate; one above the first decade's largest counts as that, so that where the loss leaves
    all bounds does not reach back into the descent. Only the first descent counts: once the loss has broken out it may
    come down faster than ever, but there rounding decides, and each setup would suggest another rate.
    """
    measured = [point for point in points if math.isfinite(point.loss)]
    if len(measured) <= A_DECADE:
        return Found([], None, f"the loss is finite at {len(measured)} points alone, no more than a decade of rates")
    rates = np.array([point.learning_rate for point in measured])
    losses = np.array([point.loss for point in measured])
    losses = np.minimum(losses, losses[:A_DECADE].max())
    decades = np.log10(rates)
    smoothed, _ = local_lines(decades, losses)
    start = losses[:A_DECADE].mean()
    lowest = _first_low(losses, smoothed, start)
    fall, scatter = start - smoothed[lowest], _scatter(losses, smoothed, lowest)
    if not fall > max(SCATTERS * scatter, ROUNDING * abs(start)):
        reason = (
            f"the loss does not fall: it starts at {start:.4g}, and smoothed it is never below {smoothed[lowest]:.4g}, "
            f"where the batches' own losses scatter by {scatter:.2g}"
        )
        return Found(smoothed.tolist(), None, reason)
    so_far = np.minimum.accumulate(smoothed[np.minimum(np.arange(len(smoothed)), lowest)])
    _, slopes = local_lines(decades, so_far)
    best = int(slopes.argmin())
    reason = (
        f"the smoothed loss falls most steeply at {rates[best]:.2g}, by {-slopes[best]:.2g} a decade; it starts at "
        f"{start:.4g} and is lowest at {rates[lowest]:.2g} with {smoothed[lowest]:.4g}"
    )
    return Found(smoothed.tolist(), float(rates[best]), reason)


def _first_low(losses: np.ndarray, smoothed: np.ndarray, start: float) -> int:
    """Where the first descent ends: the lowest point after the first decade, before the loss breaks out."""
    low, least = A_DECADE, SHARE * (start - smoothed[A_DECADE:].min())
    for at in range(A_DECADE, len(smoothed)):
        if smoothed[at] < smoothed[low]:
            low = at
        fall = start - smoothed[low]
        risen = smoothed[at] - smoothed[low] > RISES * fall
        if risen and fall > max(least, SCATTERS * _scatter(losses, smoothed, low), ROUNDING * abs(start)):
            break
    return low


def _scatter(losses: np.ndarray, smoothed: np.ndarray, before: int) -> float:
    return float((losses - smoothed)[:before].std())


def local_lines(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(value, slope) at each x of the straight line fitted to all y with Gaussian weights around it (Cleveland 1979:
    locally weighted regression)."""
    apart = x[None, :] - x[:, None]
    weights = np.exp(-0.5 * (apart / WIDTH) ** 2)
    weights /= weights.sum(axis=1, keepdims=True)
    mean_x, mean_y = (weights * apart).sum(axis=1), weights @ y
    spread = (weights * apart**2).sum(axis=1) - mean_x**2
    slope = ((weights * apart) @ y - mean_x * mean_y) / spread
    return mean_y - slope * mean_x, slope


def draw(path: Path, points: Sequence[Point], curve: Found, title: str) -> None:
    """Write the picture.

    Raises:
        OSError: it cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    measured = [point for point in points if math.isfinite(point.loss)]
    rates, losses = [point.learning_rate for point in measured], [point.loss for point in measured]
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(8, 5), layout="constrained")
        axes: Any = figure.subplots()
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:g}")  # the usual one writes powers as mathematics
        axes.plot(rates, losses, ".", color="0.65", markersize=4, label="loss of each step")
        if curve.smoothed:
            axes.plot(rates, curve.smoothed, linewidth=2, label="smoothed")
            low, high = min(curve.smoothed), max(losses[:A_DECADE])
            axes.set_ylim(min(low, min(losses)) - 0.05 * (high - low), high + 0.3 * (high - low))
        if curve.suggestion is not None:
            at = curve.smoothed[rates.index(curve.suggestion)]
            axes.axvline(curve.suggestion, color="tab:red", linewidth=1)
            told = f"steepest descent: {curve.suggestion:.2g}"
            axes.plot([curve.suggestion], [at], "o", color="tab:red", label=told)
        elif not measured:
            axes.text(0.5, 0.5, "not finite at any rate", ha="center", va="center", transform=axes.transAxes)
        axes.set(xlabel="learning rate", ylabel="training loss")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
        if measured:
            axes.legend()
        figure.savefig(path, dpi=110)
