"""Metrics that work offline.

`evaluate.load("accuracy")` fetches the metric's code from the hub at run time; a subclass of `evaluate.Metric` needs no
network. Each takes `predictions` and `references` as int64 class ids.
"""

from collections.abc import Sequence
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


class _LabelledMetric(_ClassMetric):
    """`label_names`: the name of each class id, in order."""

    def __init__(self, label_names: Sequence[str], **options: Any) -> None:
        self.label_names = [str(name) for name in label_names]
        super().__init__(**options)

    def _counts(self, predictions: Any, references: Any) -> np.ndarray:
        """[C, C] int64: row is the reference, column the prediction.

        Raises:
            ValueError: a class id has no name.
        """
        size, predicted, wanted = len(self.label_names), np.asarray(predictions), np.asarray(references)
        if len(predicted) and max(predicted.max(), wanted.max()) >= size:
            raise ValueError(f"class {max(predicted.max(), wanted.max())} is none of the {size} classes")
        return np.bincount(wanted * size + predicted, minlength=size * size).reshape(size, size)


class ConfusionMatrix(_LabelledMetric):
    """{"confusion_matrix": C lists of C counts}: row is the reference, column the prediction, as in scikit-learn."""

    def _compute(self, predictions: Any, references: Any) -> dict[str, list[list[int]]]:
        return {"confusion_matrix": self._counts(predictions, references).tolist()}


class PerClass(_LabelledMetric):
    """{"per_class": a {"label", "precision", "recall", "f1", "support"} for each class}.

    Precision is TP / (TP + FP), recall TP / (TP + FN), f1 2 TP / (2 TP + FP + FN); None where the denominator is 0.
    Support counts the references.
    """

    def _compute(self, predictions: Any, references: Any) -> dict[str, list[dict[str, Any]]]:
        counts = self._counts(predictions, references)
        hits, predicted, wanted = counts.diagonal(), counts.sum(axis=0), counts.sum(axis=1)
        return {
            "per_class": [
                {
                    "label": name,
                    "precision": _share(hits[number], predicted[number]),
                    "recall": _share(hits[number], wanted[number]),
                    "f1": _share(2 * hits[number], predicted[number] + wanted[number]),
                    "support": int(wanted[number]),
                }
                for number, name in enumerate(self.label_names)
            ]
        }


class Examples(_LabelledMetric):
    """{"examples": a {"sample", "label", "predicted"} for each of `count` samples}, the same ones each time, evenly
    spread over the evaluation set; `sample` is the row in it."""

    def __init__(self, label_names: Sequence[str], count: int = 8, **options: Any) -> None:
        self.count = count
        super().__init__(label_names, **options)

    def _compute(self, predictions: Any, references: Any) -> dict[str, list[dict[str, Any]]]:
        rows = np.unique(np.linspace(0, len(references) - 1, self.count).round().astype(int)).tolist()
        names = self.label_names
        return {
            "examples": [
                {"sample": row, "label": names[references[row]], "predicted": names[predictions[row]]} for row in rows
            ]
        }


def _share(part: Any, whole: Any) -> float | None:
    return float(part / whole) if whole else None
