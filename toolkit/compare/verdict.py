"""Whether a run trained as the reference did: deviations, where they begin, and a verdict."""

from __future__ import annotations

import math
from dataclasses import replace

from toolkit.compare.causes import likely_cause, other_precision, paired, relative
from toolkit.compare.runs import DIFFERS, FAILED, SAME, TOLERANCE, Measured, Run
from toolkit.compare.weights import Weights, compare_weights
from toolkit.parity import BOUNDS, OFFLOADED_ADAM, Bounds

# ReLU and max pooling have ties that rounding decides: one flip lifts the CNN's loss deviation to 3e-5 and a
# parameter's to 5e-3, though the mathematics is equal (float64: 2e-16).
TIES = Bounds(1e-4, 1e-2, 1e-2)


def describe(run: Run, verdict: str, cause: str = "") -> Measured:
    """What the run says of itself."""
    kind, dtype = str(run.value("mixed_precision") or ""), run.value("weight_dtype")
    precision = "fp32" if kind == "no" else f"{kind} weights" if kind and dtype != "float32" else kind
    metrics = {name: value for name, value in run.summary.get("metrics", {}).items() if isinstance(value, float)}
    return Measured(run.label, str(run.value("strategy") or ""), run.ranks, precision, verdict, cause, metrics=metrics)


def judge(run: Run, reference: Run) -> Measured:
    """The run beside the reference, which is whole and shares seed and global batch with it."""
    if run.errors:
        return describe(run, FAILED, cause="\n".join(run.errors))
    pairs = paired(run, reference)
    deviations = {b["step"]: relative(a.get("loss"), b.get("loss")) for a, b in pairs}
    weights = compare_weights(run, reference)
    bounds = _bounds(run, reference)
    told = replace(
        describe(run, DIFFERS),
        loss=max(deviations.values(), default=None),
        grad_norm=max((relative(a.get("grad_norm"), b.get("grad_norm")) for a, b in pairs), default=None),
        learning_rate=max((abs(a["learning_rate"] - b["learning_rate"]) for a, b in pairs), default=None),
        weights=weights.whole,
        parameter=weights.worst,
        parameter_name=weights.name,
    )
    for verdict, bound in [(SAME, BOUNDS["no"]), *((TOLERANCE, bound) for bound in bounds)]:
        if _within(told, weights, bound, run, reference):
            said = [other_precision(run, reference), weights.note]
            return replace(told, verdict=verdict, cause="; ".join(filter(None, said)))
    limit = bounds[0].loss if bounds[0] is not TIES else BOUNDS["no"].loss
    step = next((step for step, deviation in deviations.items() if deviation > limit), None)
    return replace(told, step=step, cause=likely_cause(run, reference, step, weights))


def _bounds(run: Run, reference: Run) -> list[Bounds]:
    """What the tolerance of their precision allows, the tightest first."""
    kinds = {str(each.value("mixed_precision") or "no") for each in (run, reference)}
    if kinds == {"no"}:
        adam = any(
            str(each.value("strategy")).endswith("_offload") and each.value("optimizer") != "sgd"
            for each in (run, reference)
        )
        return [*([OFFLOADED_ADAM] if adam else []), TIES]
    if len(kinds) == 1:
        return [BOUNDS[kind] for kind in kinds]
    return [Bounds(max(BOUNDS[kind].fp32 for kind in kinds), math.inf, math.inf)]


def _within(told: Measured, weights: Weights, bound: Bounds, run: Run, reference: Run) -> bool:
    moved = 2 * len(reference.rows) * float(reference.value("learning_rate") or 0)
    score, other = (each.summary.get("metrics", {}).get("loss") for each in (run, reference))
    steps, samples = ([[row[name] for row in each.rows] for each in (run, reference)] for name in ("step", "samples"))
    return (
        steps[0] == steps[1]
        and samples[0] == samples[1]
        and (told.loss or 0.0) <= bound.loss
        and not told.learning_rate
        and (weights.whole or 0.0) <= bound.weights
        and (weights.worst or 0.0) <= bound.parameter
        and weights.zero_gradient <= moved
        and max(weights.buffers.values(), default=0.0) <= bound.parameter
        and relative(score, other) <= max(10 * bound.loss, 1e-4)
    )
