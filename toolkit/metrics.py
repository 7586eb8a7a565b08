"""Metrics that work offline.

`evaluate.load("accuracy")` fetches the metric's code from the hub at run time; a subclass of `evaluate.Metric` needs no
network. Each takes `predictions` and `references` as int64 class ids.
"""

from typing import Any

import datasets
import evaluate
import numpy as np


class _ClassMetric(evaluate.Metric):
    def __init__(self, **options: Any) -> None:
        # In memory: the files that a metric writes otherwise have one name for all processes of a machine.
        super().__init__(**{"keep_in_memory": True, **options})

    def _info(self) -> evaluate.MetricInfo:
        return evaluate.MetricInfo(
            description=self.__doc__ or "",
            citation="",
            inputs_description="predictions, references: class ids",
            features=datasets.Features({"predictions": datasets.Value("int64"), "references": datasets.Value("int64")}),
        )


class Accuracy(_ClassMetric):
    """Share of the predictions that equal their reference: {"accuracy": 0..1}."""

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        return {"accuracy": float(np.mean(np.asarray(predictions) == np.asarray(references)))}


class F1(_ClassMetric):
    """Macro F1: {"f1": 0..1}, the plain mean over the classes of 2 TP / (2 TP + FP + FN).

    The classes are those that stand among the predictions or the references, so each denominator is above 0.
    """

    def _compute(self, predictions: Any, references: Any) -> dict[str, float]:
        predicted, wanted = np.asarray(predictions), np.asarray(references)
        scores = [
            2
            * np.sum((predicted == number) & (wanted == number))
            / (np.sum(predicted == number) + np.sum(wanted == number))
            for number in np.union1d(predicted, wanted)
        ]
        return {"f1": float(np.mean(scores))}
