"""Mean loss and metrics of scored rows: undefined ones are null, and what reads them copes."""

from __future__ import annotations

import json
from typing import Any

import evaluate
import numpy as np
import pytest
import torch

from toolkit.engines.scores import scores_of
from toolkit.errors import UserError
from toolkit.metrics import F1, Accuracy

ROWS = torch.tensor([[0, 0.5, 1, 1], [1, 1.0, 0, 1], [2, 3.0, 1, 1]], dtype=torch.float64)
NAN, INF = float("nan"), float("inf")


class Given:
    """Returns what it was given, or raises it, in the place of an `evaluate.Metric`."""

    name = "given"

    def __init__(self, scores: Any) -> None:
        self.scores = scores

    def compute(self, **_: Any) -> Any:
        if isinstance(self.scores, Exception):
            raise self.scores
        return self.scores


class Correlation(Accuracy):
    """Pearson's, which is undefined where one side does not vary."""

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        with np.errstate(invalid="ignore"):
            return {"pearson": float(np.corrcoef(predictions, references)[0, 1])}


def test_loss_and_metrics() -> None:
    scores = scores_of(ROWS, [Accuracy(), F1()])
    assert scores == {"loss": 1.5, "accuracy": pytest.approx(2 / 3), "f1": pytest.approx((0.8 + 0) / 2)}


@pytest.mark.parametrize(
    ("returned", "kept", "undefined"),
    [
        ({"f1": NAN}, {"f1": None}, "f1"),
        ({"f1": np.float64("nan"), "g": 0.5, "mcc": -INF}, {"f1": None, "g": 0.5, "mcc": None}, "f1, mcc"),
        ({"f1": None}, {"f1": None}, "f1"),
        ({"per_class": np.array([[0.5, NAN], [1, INF]])}, {"per_class": [[0.5, None], [1.0, None]]}, None),
        ({"counts": [1, 2]}, {"counts": [1, 2]}, None),
        (ZeroDivisionError(), {"given": None}, "given"),
        (FloatingPointError(), {"given": None}, "given"),
    ],
)
def test_what_is_undefined_is_null_and_told(
    capfd: pytest.CaptureFixture[str], returned: Any, kept: dict[str, Any], undefined: str | None
) -> None:
    scores = scores_of(ROWS, [Given(returned)])
    assert scores == {"loss": 1.5, **kept}
    json.dumps(scores, allow_nan=False)
    told = f"oneloop: {undefined} undefined for these 3 rows: null\n" if undefined else ""
    assert capfd.readouterr().err == told


def test_a_metric_of_evaluate_that_is_undefined() -> None:
    constant = ROWS.clone()
    constant[:, 2] = 1
    assert isinstance(Correlation(), evaluate.Metric)
    assert scores_of(constant, [Correlation()]) == {"loss": 1.5, "pearson": None}


@pytest.mark.parametrize("returned", [0.5, None, {"f1": "good"}, {"f1": {"a": 1}}])
def test_what_is_no_number_is_refused(returned: Any) -> None:
    with pytest.raises(UserError, match=r"metrics: Given: .*compute\(\) must return a number or a list for each name"):
        scores_of(ROWS, [Given(returned)])


def test_a_mistake_in_a_metric_is_not_hidden() -> None:
    with pytest.raises(KeyError):
        scores_of(ROWS, [Given(KeyError("accuracy"))])
