"""Whether a run trained as the reference did: deviations, where they begin, and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from toolkit.checkpoint import Checkpoint, find, newest_whole
from toolkit.compare.causes import likely_cause, other_precision
from toolkit.compare.runs import DIFFERS, SAME, TOLERANCE, Measured, Run
from toolkit.parity import BOUNDS, OFFLOADED_ADAM, ZERO_GRADIENT, Bounds

# ReLU and max pooling have ties that rounding decides: one flip lifts the CNN's loss deviation to 3e-5 and a
# parameter's to 5e-3, though the mathematics is equal (float64: 2e-16).
TIES = Bounds(1e-4, 1e-2, 1e-2)


@dataclass
class Weights:
    """How far the weights at the end are apart, relative to how far the reference's have moved."""

    whole: float | None = None
    worst: float | None = None
    name: str = ""
    zero_gradient: float = 0.0  # largest absolute difference of the parameters whose exact gradient is 0
    buffers: dict[str, float] = field(default_factory=dict)  # relative difference of each that is apart


def describe(run: Run, verdict: str, cause: str = "") -> Measured:
    """What the run says of itself."""
    kind, dtype = str(run.value("mixed_precision") or ""), run.value("weight_dtype")
    precision = "fp32" if kind == "no" else f"{kind} weights" if kind and dtype != "float32" else kind
    metrics = {name: value for name, value in run.summary.get("metrics", {}).items() if isinstance(value, float)}
    return Measured(run.label, str(run.value("strategy") or ""), run.ranks, precision, verdict, cause, metrics=metrics)


def judge(run: Run, reference: Run) -> Measured:
    """The run beside the reference, with which it shares seed and global batch; both are whole."""
    pairs = list(zip(run.rows, reference.rows, strict=False))
    deviations = [_relative(a.get("loss"), b.get("loss")) for a, b in pairs]
    weights = compare_weights(run, reference)
    bounds = _bounds(run, reference)
    told = replace(
        describe(run, DIFFERS),
        loss=max(deviations, default=None),
        grad_norm=max((_relative(a.get("grad_norm"), b.get("grad_norm")) for a, b in pairs), default=None),
        learning_rate=max((abs(a["learning_rate"] - b["learning_rate"]) for a, b in pairs), default=None),
        weights=weights.whole,
        parameter=weights.worst,
        parameter_name=weights.name,
    )
    for verdict, bound in bounds:
        if _within(told, weights, bound, run, reference):
            return replace(told, verdict=verdict, cause=other_precision(run, reference))
    limit = bounds[0][1].loss
    step = next((a["step"] for (a, _), deviation in zip(pairs, deviations, strict=True) if deviation > limit), None)
    return replace(told, step=step, cause=likely_cause(run, reference, step, weights.buffers))


def _relative(mine: float | None, other: float | None) -> float:
    """What was not finite is null in metrics.jsonl: equal where both are."""
    if mine is None or other is None:
        return 0.0 if mine is other else math.inf
    return abs(mine - other) / abs(other) if other else abs(mine)


def _bounds(run: Run, reference: Run) -> list[tuple[str, Bounds]]:
    """What each verdict allows, the tightest first."""
    kinds = {str(each.value("mixed_precision") or "no") for each in (run, reference)}
    if kinds == {"no"}:
        adam = [
            OFFLOADED_ADAM
            for each in (run, reference)
            if str(each.value("strategy")).endswith("_offload") and each.value("optimizer") != "sgd"
        ]
        return [(SAME, BOUNDS["no"]), *((TOLERANCE, bound) for bound in adam), (TOLERANCE, TIES)]
    coarse = "bf16" if "bf16" in kinds else "fp16"
    if len(kinds) == 1:
        return [(TOLERANCE, BOUNDS[coarse])]
    return [(TOLERANCE, Bounds(max(BOUNDS[kind].fp32 for kind in kinds), math.inf, math.inf))]


def _within(told: Measured, weights: Weights, bound: Bounds, run: Run, reference: Run) -> bool:
    steps = len(reference.rows)
    moved = 2 * steps * float(reference.value("learning_rate") or 0)
    scores = [
        _relative(run.summary["metrics"].get(name), value)
        for name, value in reference.summary.get("metrics", {}).items()
        if name == "loss"
    ]
    return (
        len(run.rows) == steps
        and (told.loss or 0.0) <= bound.loss
        and not told.learning_rate
        and (weights.whole or 0.0) <= bound.weights
        and (weights.worst or 0.0) <= bound.parameter
        and weights.zero_gradient <= moved
        and max(weights.buffers.values(), default=0.0) <= bound.parameter
        and all(score <= max(10 * bound.loss, 1e-4) for score in scores)
        and [row["samples"] for row in run.rows] == [row["samples"] for row in reference.rows]
    )


def compare_weights(run: Run, reference: Run) -> Weights:
    """By name, one tensor at a time. Without the reference's checkpoint of step 0 there is nothing to relate to."""
    mine, theirs, start = _last(run), _last(reference), _first(reference)
    if mine is None or theirs is None or mine.step != theirs.step:
        return Weights()
    trained = {name: entry["trained"] for name, entry in theirs.about["parameters"].items()}
    result, apart, moved, ratios = Weights(), 0.0, 0.0, {}
    for name in theirs.names:
        if name not in mine.names or mine.shape(name) != theirs.shape(name):
            return Weights(math.inf, math.inf, f"{name} (not in both)")
        a, b = mine.value(name).double(), theirs.value(name).double()
        difference = (a - b).norm().item()
        if not trained[name]:
            if difference:
                result.buffers[name] = difference / (b.norm().item() or 1.0)
        elif name.endswith(ZERO_GRADIENT):
            result.zero_gradient = max(result.zero_gradient, (a - b).abs().max().item())
        elif start is not None:
            way = (b - start.value(name).double()).norm().item()
            apart, moved = apart + difference**2, moved + way**2
            ratios[name] = difference / way if way else difference
    if ratios:
        result.name = max(ratios, key=ratios.__getitem__)
        result.worst, result.whole = ratios[result.name], (apart / moved) ** 0.5 if moved else apart**0.5
    return result


def _last(run: Run) -> Checkpoint | None:
    found = find(run.folder / "checkpoints")
    return newest_whole(run.folder) if found else None


def _first(run: Run) -> Checkpoint | None:
    folder = run.folder / "checkpoints" / "step-000000"
    return Checkpoint(folder) if folder.is_dir() else None
