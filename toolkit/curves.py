"""curves.png: what a run's metrics.jsonl says, as a picture."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

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


def _points(rows: list[dict[str, Any]], column: str) -> tuple[list[int], list[float]]:
    """Steps and values; what was not finite is null there, and leaves a gap."""
    there = [(row["step"], row[column]) for row in rows if column in row]
    return [step for step, _ in there], [float("nan") if value is None else value for _, value in there]
