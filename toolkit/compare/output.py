"""What `compare` leaves: a table on the terminal, compare.json and compare.csv."""

from __future__ import annotations

import csv
import json
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from toolkit.compare.runs import FAILED, REFERENCE, ROUNDING, SAME, TOLERANCE, Comparison, Measured

_COLORS = {REFERENCE: "dim", ROUNDING: "dim", SAME: "green", TOLERANCE: "green", FAILED: "red"}
_TRAINING = ("setup", "ranks", "precision", "verdict", "loss", "grad norm", "weights", "worst parameter", "metrics")
_COST = (
    *("setup", "samples/s", "(quartiles)", "scaling", "first step", "memory", "communicated", "checkpoint"),
    *("idle", "even", "bound"),
)


def show(comparison: Comparison) -> None:
    """Two tables, on stdout: whether the setups train alike, and what each costs."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    alike = _table("whether they train alike: largest deviations from the reference", _TRAINING)
    for each in comparison.measured:
        alike.add_row(*map(_cell, _training(each)), style=_COLORS.get(each.verdict, "red"))
    console.print(alike)
    rows = [_cost(each) for each in comparison.measured if each.verdict not in (FAILED, ROUNDING)]
    known = [column for column in range(len(_COST)) if any(row[column] for row in rows)]
    cost = _table("what they cost", [_COST[column] for column in known])
    for row in rows:
        cost.add_row(*(_cell(row[column]) for column in known))
    console.print(cost)
    for note in comparison.notes:
        console.print(Text(f"note: {note}"))
    for each in comparison.measured:
        if each.cause:
            console.print(Text(f"{each.label} {_verdict(each)}: {each.cause}"))


def _table(title: str, columns: Iterable[str]) -> Table:
    table = Table(title=title)
    for column in columns:
        table.add_column(column)
    return table


def _cell(text: str) -> Text:
    """Not markup: a label is the user's."""
    return Text(text)


def _verdict(each: Measured) -> str:
    return f"{each.verdict} from step {each.step}" if each.step is not None else each.verdict


def _training(each: Measured) -> list[str]:
    metrics = ", ".join(f"{name} {value:.4f}" for name, value in sorted(each.metrics.items()))
    worst = f"{_number(each.parameter)} {each.parameter_name}".rstrip()
    deviations = [_number(each.loss), _number(each.grad_norm), _number(each.weights), worst]
    return [each.label, str(each.ranks or ""), each.precision, _verdict(each), *deviations, metrics]


def _cost(each: Measured) -> list[str]:
    spread = f"({each.spread[0]:.0f} to {each.spread[1]:.0f})" if each.spread is not None else ""
    saved = ""
    if each.checkpoint_bytes is not None:
        saved = f"{each.checkpoint_bytes / 2**20:.1f} MiB, {each.checkpoint_seconds or 0:.2f} s"
    return [
        each.label,
        f"{each.samples_per_second:.0f}" if each.samples_per_second is not None else "",
        spread,
        _share(each.efficiency),
        f"{each.seconds_to_first_step:.1f} s" if each.seconds_to_first_step is not None else "",
        f"{max(each.peak_memory_bytes) / 2**20:.0f} MiB" if each.peak_memory_bytes else "",
        f"{each.communication_bytes / 2**20:.1f} MiB" if each.communication_bytes is not None else "",
        saved,
        *map(_share, (each.idle, each.idle_even, each.idle_bound)),
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.1e}"


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.0%}"


def write_json(comparison: Comparison, path: Path) -> None:
    """compare.json: {"script", "reference", "environment", "notes", "setups": [every field of `Measured`]}."""
    reference = comparison.reference
    told: dict[str, Any] = {
        "script": comparison.script,
        "reference": reference.label if reference is not None else None,
        "environment": comparison.environment,
        "notes": comparison.notes,
        "setups": [{**asdict(each), "folder": str(run.folder)} for run, each in comparison.pairs()],
    }
    path.write_text(json.dumps(_finite(told), indent=2, allow_nan=False) + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON has no infinity, which is how far a loss that is not finite is from one that is: its text instead."""
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def write_csv(comparison: Comparison, path: Path) -> None:
    """compare.csv: a row a setup, with the columns of `Measured`; lists are joined by spaces, metrics stand alone."""
    metrics = sorted({name for each in comparison.measured for name in each.metrics})
    names = [each.name for each in fields(Measured) if each.name != "metrics"]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, *(f"metric_{name}" for name in metrics)])
        for each in comparison.measured:
            values = [getattr(each, name) for name in names] + [each.metrics.get(name) for name in metrics]
            writer.writerow([" ".join(map(str, value)) if isinstance(value, tuple) else value for value in values])
