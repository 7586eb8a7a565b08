"""--class_weights: how much a sample counts in the loss, by its class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup.words import nearest

ARGUMENT = "--class_weights"


def row_weights(wanted: Any, data: Any) -> list[float] | None:
    """The weight of each training row, by its class; None where no weights are asked for.

    The loss of a global batch is sum(w x loss) / sum(w), as torch's CrossEntropyLoss(weight=...) means it, over all
    ranks and micro-batches together.

    Args:
        wanted: `Setup.class_weights`: "balanced", which is rows / (classes x rows of the class) as in scikit-learn, a
            list of a number for each class, or {name of a class: number}, where a class left out has 1.
        data: `toolkit.data.Data`, with its `labels` and `label_names`.

    Raises:
        UserError: the data do not say their classes, or the weights are not those of their classes.
    """
    if wanted is None:
        return None
    if data.labels is None:
        reason = "the data do not say which class each training row has"
        raise UserError(fault(ARGUMENT, wanted, reason, "give Data labels=, a class id for each row of train"))
    labels, names = np.asarray(data.labels), [str(name) for name in data.label_names]
    weights = _of_classes(wanted, labels, names)
    told = ", ".join(f"{name} {weight:.4g}" for name, weight in list(zip(names, weights, strict=True))[:10])
    say(f"class weights: {told}{', ...' * (len(names) > 10)}")
    return [float(weights[label]) for label in labels]


def _of_classes(wanted: Any, labels: np.ndarray, names: list[str]) -> np.ndarray:
    """[C] float64."""
    if wanted == "balanced":
        counts = np.bincount(labels, minlength=len(names))
        # A class without a row has no weight that balances it, and needs none.
        return np.where(counts > 0, len(labels) / (np.count_nonzero(counts) * np.maximum(counts, 1)), 1.0)
    if isinstance(wanted, Mapping):
        faults = [
            fault(f"{ARGUMENT}: {name}", wanted[name], "is no class", nearest(name, names) or _known(names))
            for name in wanted
            if name not in names
        ]
        if faults:
            raise UserError(*faults)
        return np.array([wanted.get(name, 1.0) for name in names], dtype=np.float64)
    if len(wanted) != len(names):
        reason = f"{len(wanted)} numbers for {len(names)} classes"
        raise UserError(fault(ARGUMENT, list(wanted), reason, f"give one each, in this order: {', '.join(names)}"))
    return np.array(wanted, dtype=np.float64)


def _known(names: Sequence[str]) -> str:
    return f"the classes are {', '.join(names[:10])}{', ...' * (len(names) > 10)}"
