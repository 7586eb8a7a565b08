"""Mean loss and metrics of the rows that all ranks scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from toolkit.errors import UserError, fault
from toolkit.launch import say


def scores_of(rows: Tensor, metrics: Sequence[Any], tell: bool = True) -> dict[str, Any]:
    """Mean loss and metrics of rows [n, 4]: id, loss, prediction, target. A metric that is undefined is None, and told
    where `tell`.

    Raises:
        UserError: a metric returned something else than numbers.
    """
    whole = bool((rows[:, 2:] == rows[:, 2:].round()).all())
    predictions, references = ((rows[:, i].long() if whole else rows[:, i]).tolist() for i in (2, 3))
    scores: dict[str, Any] = {"loss": rows[:, 1].mean().item()}
    for metric in metrics:
        try:
            found = _plain(metric, metric.compute(predictions=predictions, references=references))
        except ArithmeticError:  # a division by zero
            found = {metric.name: None}
        if tell and (undefined := [name for name, value in found.items() if value is None]):
            say(f"{', '.join(undefined)} undefined for these {len(rows):,} rows: null")
        scores |= found
    return scores


def _plain(metric: Any, scores: Any) -> dict[str, Any]:
    """What a metric returned, by name: floats, and lists where it returned arrays or lists; None where not finite."""
    if isinstance(scores, dict):
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in scores.items()}
        if all(isinstance(value, int | float | list | None) for value in plain.values()):
            return {name: _finite(value) for name, value in plain.items()}
    reason = "compute() must return a number or a list for each name"
    raise UserError(fault(f"metrics: {type(metric).__name__}", scores, reason, "return {name: value}"))


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, list):
        return [_finite(each) if isinstance(each, float | list) else each for each in value]
    return float(value) if value is not None and math.isfinite(value) else None
