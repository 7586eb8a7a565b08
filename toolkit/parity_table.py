"""Tables of what `parity` measured."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from toolkit.parity import BOUNDS, ZERO_GRADIENT, Result


def show(results: Sequence[Result]) -> None:
    """Print every case, then the worst of each setup over its variants."""
    console = Console(width=None if sys.stdout.isatty() else 180)
    precision = results[0].case.variant.mixed_precision
    table = _table("every case against one process", "variant", precision)
    for result in results:
        table.add_row(*_row([result], result.case.variant.name))
    console.print(table)
    setups = dict.fromkeys((r.case.variant.model, r.case.setup, r.case.ranks) for r in results)
    table = _table("the largest deviations of each setup", "variants", precision)
    for key in setups:
        cases = [r for r in results if (r.case.variant.model, r.case.setup, r.case.ranks) == key]
        table.add_row(*_row(cases, str(len(cases))))
    console.print(table)
    if moved := max((r.zero_gradient for r in results), default=0.0):
        names = ", ".join(ZERO_GRADIENT)
        console.print(
            f"Not in these figures: {names}, whose exact gradient is 0 (softmax does not see it), so that rounding "
            f"alone moves it. At most {moved:.1e} apart, held to 2 x steps x learning rate."
        )


def _table(title: str, variants: str, precision: str) -> Table:
    b = BOUNDS[precision]
    bounds = f"bounds: loss {b.loss:g}, weights {b.weights:g}, worst parameter {b.parameter:g}"
    bounds += f"; loss from fp32's {b.fp32:g}" if b.fp32 else ""
    table = Table(title=f"{title}; {bounds}")
    for column in (
        "model",
        "setup",
        "ranks",
        variants,
        "engine",
        "loss",
        "weights",
        "worst parameter",
        "from fp32",
        "verdict",
    ):
        table.add_column(column)
    return table


def _row(cases: Sequence[Result], variants: str) -> list[str]:
    case, worst = cases[0].case, max(cases, key=lambda r: r.parameter)
    return [
        case.variant.model,
        case.setup,
        str(case.ranks),
        variants,
        cases[0].obtained["engine"],
        f"{max(r.loss for r in cases):.1e}",
        f"{max(r.weights for r in cases):.1e}",
        f"{worst.parameter:.1e} {worst.parameter_name}",
        f"{max(r.fp32 for r in cases):.1e}" if case.variant.mixed_precision != "no" else "",
        "same" if all(r.same for r in cases) else "[red]differs[/red]",
    ]
