"""The figures of report.html, drawn by matplotlib, each in a wide and a narrow form."""

from __future__ import annotations

import math
import unicodedata
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup

from toolkit.compare.runs import REFERENCE, Comparison, Run
from toolkit.compare.svg import BAR, INK, LINES, PAGE, STYLE, clean, inline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLOOR = 1e-8  # of the axis of deviations: below what one rounding of fp32 makes
NARROW = 330  # px: what a telephone of 390 px leaves beside the page's margins
_BINS = 120  # of a line, five points each at most
_DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.5, 1.5), (7, 2, 1.5, 2))
_CIRCLE = tuple((math.cos(n * math.pi / 8), math.sin(n * math.pi / 8)) for n in range(16))
_SHAPES = (  # outlines within -1..1, the y axis up
    _CIRCLE,
    ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    ((-1, -0.9), (1, -0.9), (0, 1)),
    ((0, -1), (1, 0), (0, 1), (-1, 0)),
    ((-1, 0.9), (1, 0.9), (0, -1)),
    ((-1, -0.35), (-0.35, -0.35), (-0.35, -1), (0.35, -1), (0.35, -0.35), (1, -0.35), (1, 0.35), (0.35, 0.35),
     (0.35, 1), (-0.35, 1), (-0.35, 0.35), (-1, 0.35)),
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """How a setup's line looks, in the figures and in their legends."""

    label: str
    number: int  # 0: the reference

    @property
    def colour(self) -> int:
        return 0 if self.number == 0 else 1 + (self.number - 1) % 6

    @property
    def width(self) -> float:
        return 2.6 if self.number == 0 else 1.3

    @property
    def dashes(self) -> tuple[float, ...]:
        return () if self.number == 0 else _DASHES[(self.number - 1) % 4]

    @property
    def outline(self) -> tuple[tuple[float, float], ...]:
        """Of the marker; none on the reference's line."""
        return () if self.number == 0 else _SHAPES[(self.number - 1) % 6]


@dataclass(frozen=True)
class Drawn:
    """A figure of the page."""

    title: str
    caption: str
    wide: Markup
    narrow: Markup
    legend: tuple[Line, ...] = ()
    across: bool = False  # over both columns of a wide page


@dataclass(frozen=True)
class _Bar:
    label: str
    told: str  # its value
    values: tuple[float, ...]  # a bar each
    spread: tuple[float, float] | None = None


_Curve = tuple[Line, list[float], list[float]]  # x, y: not a number where a run tells none


def draw_all(comparison: Comparison) -> list[Drawn]:
    """The figures for which there is something to draw, in the page's order."""
    import matplotlib

    lines = _lines(comparison)
    reference = comparison.reference
    with matplotlib.rc_context(STYLE), warnings.catch_warnings():
        # The page's font has glyphs that matplotlib's lacks; what it measures of a label is of no weight here.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        steps = [(line, _steps(run), _column(run.rows, "loss")) for line, run in lines]
        times = [(line, _seconds(run), _column(run.rows, "loss")) for line, run in lines]
        apart = [
            (line, *_deviation(run, reference)) for line, run in lines if reference is not None and run is not reference
        ]
        alike = "The thick line is the reference. Where lines lie on each other their markers stand side by side."
        zero = f"What is below {FLOOR:.0e}, also 0, is drawn there. Gaps: no finite loss."
        about = "Training steps alone, from the samples and the rate of each logging interval."
        drawn = [
            _curves("loss", "Loss at each step", alike, steps, "step", "loss"),
            _curves("time", "Loss over time", about, times, "time (s)", "loss"),
            _curves(
                "deviation", "Deviation of the loss from the reference", f"|a − b| / |b| at each step. {zero}",
                apart, "step", "relative deviation", log=True,
            ),
            _bars("speed", "Speed", "Median over the logging intervals after the first; whiskers: quartiles.",
                  _speeds(comparison), "samples/s"),
            _memory(comparison),
        ]  # fmt: skip
    return [each for each in drawn if each is not None]


def _lines(comparison: Comparison) -> list[tuple[Line, Run]]:
    """Runs that have steps, also of failed ones; a line keeps its looks in every figure."""
    found: list[tuple[Line, Run]] = []
    number = 0
    for run, measured in comparison.pairs():
        number += measured.verdict != REFERENCE
        if run.rows:
            found.append((Line(run.label, 0 if measured.verdict == REFERENCE else number), run))
    return found


def _number(value: Any) -> float:
    """NaN for what is no finite number."""
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else math.nan


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [_number(row.get(name)) for row in rows]


def _steps(run: Run) -> list[float]:
    return _column(run.rows, "step")


def _seconds(run: Run) -> list[float]:
    """Of training since the run's first row; NaN from where a row tells no rate."""
    found, seconds, before = [], 0.0, 0.0
    for number, row in enumerate(run.rows):
        samples, rate = _number(row.get("samples")), _number(row.get("samples_per_second"))
        if number == 0:  # of a run that was resumed, too
            before = samples - samples / max(1.0, _number(row.get("step")))
        seconds += (samples - before) / rate if rate > 0 else math.nan
        before = samples
        found.append(seconds)
    return found


def _deviation(run: Run, reference: Run) -> tuple[list[float], list[float]]:
    """Steps that both have, and |a - b| / |b| there, at least `FLOOR`."""
    there = {row.get("step"): _number(row.get("loss")) for row in reference.rows}
    steps, values = [], []
    for row in run.rows:
        if row.get("step") in there:
            a, b = _number(row.get("loss")), there[row["step"]]
            steps.append(_number(row["step"]))
            values.append(0.0 if a == b else abs(a - b) / abs(b) if b else math.nan)
    return steps, list(np.maximum(values, FLOOR))


def _thinned(x: Sequence[float], y: Sequence[float]) -> tuple[np.ndarray, np.ndarray]:
    """At most 5 points a bin: its first, its last, its extremes and a gap."""
    xs, ys = np.asarray(x, float), np.asarray(y, float)
    if len(xs) <= 5 * _BINS:
        return xs, ys
    kept: set[int] = set()
    for part in np.array_split(np.arange(len(xs)), _BINS):
        kept |= {int(part[0]), int(part[-1])}
        gaps = np.isnan(ys[part])
        if gaps.any():
            kept.add(int(part[gaps][0]))
        if not gaps.all():
            kept |= {int(part[np.nanargmin(ys[part])]), int(part[np.nanargmax(ys[part])])}
    order = sorted(kept)
    return xs[order], ys[order]


def _curves(
    name: str, title: str, caption: str, curves: Sequence[_Curve], x_label: str, y_label: str, log: bool = False
) -> Drawn | None:
    curves = [curve for curve in curves if any(not math.isnan(a + b) for a, b in zip(*curve[1:], strict=True))]
    if not curves:
        return None

    def draw(width: int) -> Figure:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, MaxNLocator

        figure = Figure(figsize=(width / 72, min(300, 60 + width * 0.5) / 72), layout="constrained")
        axes = figure.subplots()
        for number, (line, *points) in enumerate(curves):
            x, y = _thinned(*points)
            every = max(1, len(x) // 5)  # markers of lines that lie on each other stand side by side
            axes.plot(
                x, y, color=LINES[line.colour], linewidth=line.width, dashes=line.dashes or (None, None),
                marker=[*line.outline, line.outline[0]] if line.outline else "." if len(x) == 1 else "",
                markersize=7, markeredgecolor=PAGE, markeredgewidth=0.8,
                markevery=(number * every // len(curves), every), zorder=2 + (line.number > 0) * 0.1,
            )  # fmt: skip
        axes.set(xlabel=x_label, ylabel=y_label)
        if x_label == "step":
            axes.xaxis.set_major_locator(MaxNLocator(8 if width > NARROW else 5, integer=True, steps=[1, 2, 5, 10]))
        if log:
            axes.set_yscale("log")
            axes.set_ylim(FLOOR / 2, max(axes.get_ylim()[1], 1e-4))  # what is alike looks small
            axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0e}"))
            axes.minorticks_off()
        axes.grid(linewidth=0.8)
        return figure

    wide, narrow = _svgs(name, title, draw, 1136 if log else 556)
    return Drawn(title, caption, wide, narrow, tuple(line for line, *_ in curves), across=log)


def rate(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _speeds(comparison: Comparison) -> list[_Bar]:
    return [
        _Bar(each.label, rate(each.samples_per_second), (each.samples_per_second,), each.spread)
        for each in comparison.measured
        if each.samples_per_second is not None
    ]


def _memory(comparison: Comparison) -> Drawn | None:
    measured = [each for each in comparison.measured if each.peak_memory_bytes]
    most = max((max(each.peak_memory_bytes) for each in measured), default=0)
    unit, size, digits = ("GiB", 2**30, 2) if most >= 2**31 else ("MiB", 2**20, 0)
    bars = []
    for each in measured:
        values = tuple(value / size for value in each.peak_memory_bytes)
        bars.append(_Bar(each.label, f"{max(values):,.{digits}f}", values))
    caption = "A bar for each rank, rank 0 on top; the number is the largest."
    return _bars("memory", "Peak memory of each rank", caption, bars, f"peak memory ({unit})")


def _bars(name: str, title: str, caption: str, bars: Sequence[_Bar], label: str) -> Drawn | None:
    """The setups' names stand above their bars, so that both may be long."""
    if not bars:
        return None

    def draw(width: int) -> Figure:
        from matplotlib.figure import Figure

        thick = [max(1.5, min(10.0, 48 / len(bar.values))) for bar in bars]
        tall = sum(24 + each * len(bar.values) for each, bar in zip(thick, bars, strict=True))
        figure = Figure(figsize=(width / 72, (tall + 40) / 72))
        axes = figure.add_axes((8 / width, 36 / (tall + 40), 1 - 24 / width, tall / (tall + 40)))
        across, top = axes.get_yaxis_transform(), 0.0
        for bar, each in zip(bars, thick, strict=True):
            axes.text(0, top + 12, _short(bar.label, width // 9), transform=across, va="baseline")
            axes.text(1, top + 12, bar.told, transform=across, va="baseline", ha="right")
            places = top + 17 + each * (np.arange(len(bar.values)) + 0.5)
            axes.barh(places, bar.values, each - 1 if each > 2 else each, color=BAR, linewidth=0)
            if bar.spread is not None:
                axes.plot(bar.spread, [places[0]] * 2, color=INK, linewidth=1.2, marker="|", markersize=8)
            top += 24 + each * len(bar.values)
        axes.set(xlabel=label, ylim=(top, 0))
        axes.set_xlim(0, 1.02 * max([*(v for bar in bars for v in (*bar.values, *(bar.spread or ()))), 1e-9]))
        axes.yaxis.set_visible(False)
        axes.spines["left"].set_visible(False)
        axes.locator_params(axis="x", nbins=5)
        axes.grid(axis="x", linewidth=0.8)
        return figure

    wide, narrow = _svgs(name, title, draw, 556)
    return Drawn(title, caption, wide, narrow)


def _short(label: str, columns: int) -> str:
    """At most `columns` wide: long names keep both ends."""
    label = " ".join(clean(label).split())
    widths = [2 if unicodedata.east_asian_width(c) in "WF" else 1 for c in label]
    if sum(widths) <= columns:
        return label
    start = end = len(label) // 2
    while sum(widths[:start]) + sum(widths[end:]) >= columns:
        start, end = (start, end + 1) if (end - start) % 2 else (start - 1, end)
    return f"{label[:start]}…{label[end:]}"


def _svgs(name: str, title: str, draw: Callable[[int], Figure], wide: int) -> tuple[Markup, Markup]:
    return inline(draw(wide), f"{name}-wide", title), inline(draw(NARROW), f"{name}-narrow", title)
