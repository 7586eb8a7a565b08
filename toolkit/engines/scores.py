"""Mean loss and metrics of the rows that all ranks scored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from toolkit.errors import UserError, fault


def scores_of(rows: Tensor, metrics: Sequence[Any]) -> dict[str, Any]:
    """Mean loss and metrics of rows [n, 4]: id, loss, prediction, target."""
    whole = bool((rows[:, 2:] == rows[:, 2:].round()).all())
    predictions, references = ((rows[:, i].long() if whole else rows[:, i]).tolist() for i in (2, 3))
    scores: dict[str, Any] = {"loss": rows[:, 1].mean().item()}
    for metric in metrics:
        scores |= _plain(metric, metric.compute(predictions=predictions, references=references))
    return scores


def _plain(metric: Any, scores: Any) -> dict[str, Any]:
    """What a metric returned, by name: floats, and lists where it returned arrays or lists.

    Raises:
        UserError: it returned something else.
    """
    if isinstance(scores, dict):
        plain = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in scores.items()}
        if all(isinstance(value, int | float | list) for value in plain.values()):
            return {name: value if isinstance(value, list) else float(value) for name, value in plain.items()}
    reason = "compute() must return a number or a list for each name"
    raise UserError(fault(f"metrics: {type(metric).__name__}", scores, reason, "return {name: value}"))
