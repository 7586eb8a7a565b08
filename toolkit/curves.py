"""curves.png and evaluation.png: what a run's metrics.jsonl and its last evaluation say, as pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from itertools import product
from pathlib import Path
from typing import Any

MATRIX_WITH_NUMBERS = 20  # classes, above which the counts would not be legible
# (column, title); evaluation's share the axes of their own.
_PANELS = (
    ("loss", "loss"),
    ("learning_rate", "learning rate"),
    ("grad_norm", "gradient norm"),
    ("samples_per_second", "samples/s"),
)


def draw(folder: Path, title: str) -> None:
    """Write `folder`/curves.png from its metrics.jsonl; nothing where no step is in it.

    Raises:
        OSError: the picture cannot be written.
    """
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    steps = [row for row in rows if "loss" in row]
    if not steps:
        return
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(9, 6), layout="constrained")
        figure.suptitle(title, fontsize="medium")
        for axes, (column, name) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
            trained, scored = _points(steps, column), _points(rows, f"eval_{column}")
            axes.plot(*trained, linewidth=1, marker="." if len(steps) == 1 else "", label="training")
            if scored[0]:
                axes.plot(*scored, linewidth=1, marker="o", label="evaluation")
                axes.legend()
            if trained[1] and not any(map(math.isfinite, trained[1])):
                axes.text(0.5, 0.5, "not finite at any step", ha="center", va="center", transform=axes.transAxes)
            axes.set(xlabel="step", title=name)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
            if column == "samples_per_second":
                axes.set_ylim(bottom=0)
            axes.grid(alpha=0.3)
        figure.savefig(folder / "curves.png", dpi=110)


def draw_evaluation(folder: Path, title: str, scores: Mapping[str, Any]) -> None:
    """Write `folder`/evaluation.png: the confusion matrix, and F1 of each class; nothing where the scores lack them.

    Raises:
        OSError: the picture cannot be written.
    """
    counts, classes = scores.get("confusion_matrix"), scores.get("per_class")
    if not counts or not classes:
        return
    import matplotlib
    from matplotlib.figure import Figure

    names, places = [f"{row['label']:.20}" for row in classes], range(len(classes))
    side = min(12.0, max(4.0, 0.45 * len(names)))
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(2 * side, side), layout="constrained")
        figure.suptitle(title, fontsize="medium")
        matrix, bars = figure.subplots(1, 2)
        matrix.imshow(counts, cmap="Blues")
        matrix.set(xlabel="predicted", ylabel="label", title="confusion matrix (rows of the evaluation set)")
        matrix.set_xticks(places, names, rotation=90)
        matrix.set_yticks(places, names)
        most = max(map(max, counts))
        if len(names) <= MATRIX_WITH_NUMBERS:
            for row, column in product(places, places):
                count = counts[row][column]
                colour = "white" if count > most / 2 else "black"
                matrix.text(column, row, str(count), ha="center", va="center", color=colour, fontsize="small")
        bars.barh(places, [row["f1"] or 0.0 for row in classes])
        bars.set_yticks(places, [f"{name} ({row['support']})" for name, row in zip(names, classes, strict=True)])
        bars.invert_yaxis()
        bars.set(xlim=(0, 1), xlabel="F1", title="F1 of each class (its rows)")
        bars.grid(axis="x", alpha=0.3)
        figure.savefig(folder / "evaluation.png", dpi=110)


def _points(rows: list[dict[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Steps and values; what was not finite is null there, and leaves a gap."""
    there = [(row["step"], row[column]) for row in rows if column in row]
    return [step for step, _ in there], [float("nan") if value is None else value for _, value in there]
