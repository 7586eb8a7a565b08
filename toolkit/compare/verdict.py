"""Whether a run trained as the reference did: deviations, where they begin, and a verdict."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import torch
from safetensors import SafetensorError
from torch import Tensor

from toolkit.checkpoint import Checkpoint, find, newest_whole
from toolkit.compare.causes import likely_cause, other_precision, paired, relative, said_otherwise
from toolkit.compare.rounding import FACTOR, comparable, explains
from toolkit.compare.runs import DIFFERS, FAILED, SAME, TOLERANCE, Measured, Run
from toolkit.errors import UserError
from toolkit.parity import BOUNDS, OFFLOADED_ADAM, ZERO_GRADIENT, Bounds

# ReLU and max pooling have ties that rounding decides: one flip lifts the CNN's loss deviation to 3e-5 and a
# parameter's to 5e-3, though the mathematics is equal (float64: 2e-16).
TIES = Bounds(1e-4, 1e-2, 1e-2)
# Of the largest gradient, or way for optimizers without second moments: what is smaller is rounding of a gradient that
# is exactly 0. In fp32 a bias before BatchNorm has 2e-8 and a key's bias 1e-10, BERT's smallest other one 1.5e-4.
_NOISE = 1e-6


@dataclass
class Weights:
    """How far the weights at the end are apart, relative to how far the reference's have moved."""

    whole: float | None = None
    worst: float | None = None
    name: str = ""
    zero_gradient: float = 0.0  # largest absolute difference of the parameters whose exact gradient is 0
    buffers: dict[str, float] = field(default_factory=dict)  # relative difference of each that is apart
    start: bool | None = None  # whether both began with the same; None where not both kept it
    optimizers: tuple[str, str] = ("", "")  # class names, as the checkpoints have them
    total_steps: tuple[int, int] | None = None
    note: str = ""  # why they are not related


def describe(run: Run, verdict: str, cause: str = "") -> Measured:
    """What the run says of itself."""
    kind, dtype = str(run.value("mixed_precision") or ""), run.value("weight_dtype")
    precision = "fp32" if kind == "no" else f"{kind} weights" if kind and dtype != "float32" else kind
    metrics = {name: value for name, value in run.summary.get("metrics", {}).items() if isinstance(value, float)}
    return Measured(run.label, str(run.value("strategy") or ""), run.ranks, precision, verdict, cause, metrics=metrics)


def judge(run: Run, reference: Run, rounding: tuple[Run, Measured] | None = None) -> Measured:
    """The run beside the reference, which is whole and shares seed and global batch with it.

    Args:
        rounding: the reference once more, from weights that differ by rounding, beside itself.
    """
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
    limit = bounds[0].loss if bounds[0] is not TIES else BOUNDS["no"].loss
    step = next((step for step, deviation in deviations.items() if deviation > limit), None)
    otherwise = said_otherwise(run, reference, step, weights)
    if any(not each.startswith("precision: ") for each in otherwise):
        bounds = []  # what was asked to differ is not within a tolerance
    for verdict, bound in [(SAME, BOUNDS["no"]), *((TOLERANCE, bound) for bound in bounds)]:
        if _within(told, weights, bound, run, reference):
            ties = "as far apart as ties of ReLU and max pooling bring fp32" if bound is TIES else ""
            said = [other_precision(run, reference), ties, weights.note, _not_finite(run)]
            return replace(told, verdict=verdict, cause="; ".join(filter(None, said)))
    told = replace(told, step=step, cause=likely_cause(run, reference, step, weights))
    return told if rounding is None else _beside_rounding(told, weights, run, reference, *rounding)


def _not_finite(run: Run) -> str:
    """Such losses are the same in both, and prove little."""
    steps = [row["step"] for row in run.rows if row["loss"] is None]
    return f"{len(steps)} of {len(run.rows)} losses are not finite, the first at step {steps[0]}" if steps else ""


def _beside_rounding(
    told: Measured, weights: Weights, run: Run, reference: Run, rounding: Run, measured: Measured
) -> Measured:
    """The same, or the verdict that rounding explains what the numbers alone do not."""
    bounds = BOUNDS[str(run.value("mixed_precision"))]
    if not comparable(run, reference, told) or not explains(rounding, reference, run, bounds):
        return told
    loss, whole, parameter = (FACTOR * (far or 0.0) for far in (measured.loss, measured.weights, measured.parameter))
    reach = Bounds(max(bounds.loss, loss), max(bounds.weights, whole), max(bounds.parameter, parameter))
    if not _within(told, weights, reach, run, reference):
        return told
    said = f"as far apart as rounding brings this training: {measured.loss or 0:.1e} in the loss, see {rounding.label}"
    return replace(told, verdict=TOLERANCE, step=None, cause="; ".join(filter(None, (said, weights.note))))


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
        steps[0] == steps[1] != []
        and samples[0] == samples[1]
        and (told.loss or 0.0) <= bound.loss
        and not told.learning_rate
        and (weights.whole or 0.0) <= bound.weights
        and (weights.worst or 0.0) <= bound.parameter
        and weights.zero_gradient <= moved
        and max(weights.buffers.values(), default=0.0) <= bound.parameter
        and relative(score, other) <= max(10 * bound.loss, 1e-4)
    )


def compare_weights(run: Run, reference: Run) -> Weights:
    """What the last whole checkpoints of two runs hold; what cannot be compared is told in `note`."""
    result = Weights()
    try:
        _compare(run, reference, result)
    except (UserError, SafetensorError, OSError, KeyError) as error:
        result = Weights(note=f"weights not compared: {error}")
    return result


def _compare(run: Run, reference: Run, result: Weights) -> None:
    mine, theirs = _last(run), _last(reference)
    if mine is None or theirs is None:
        result.note = f"weights not compared: {(run if mine is None else reference).label} has no checkpoint"
        return
    result.optimizers = str(mine.about.get("optimizer", "")), str(theirs.about.get("optimizer", ""))
    result.total_steps = mine.about["total_steps"], theirs.about["total_steps"]
    begun, start = _first(run), _first(reference)
    if begun is not None and start is not None and set(begun.names) == set(start.names):
        result.start = all(torch.equal(begun.value(name), start.value(name)) for name in start.names)
    if mine.step != theirs.step:
        damaged = "".join(filter(None, (_damaged(run, mine), _damaged(reference, theirs))))
        steps = f"the last whole checkpoints are of step {mine.step} and of step {theirs.step}"
        result.note = f"weights not compared: {steps}{damaged}"
        return
    if start is None:
        result.note = f"weights not compared: {reference.label} has not kept its first (--save_initial)"
    _by_name(mine, theirs, start, result)


def _by_name(mine: Checkpoint, theirs: Checkpoint, start: Checkpoint | None, result: Weights) -> None:
    apart, moved, ratios = 0.0, 0.0, {}
    if odd := sorted(set(mine.names) ^ set(theirs.names)):
        result.whole = result.worst = math.inf
        result.name = f"{odd[0]} (not in both)"
        return
    noise = _rounding(theirs, start)
    for name in theirs.names:
        if mine.shape(name) != theirs.shape(name):
            result.whole = result.worst = math.inf
            result.name = f"{name} ({list(mine.shape(name))}, not {list(theirs.shape(name))})"
            return
        a, b = mine.value(name).double(), theirs.value(name).double()
        difference = _distance(a, b)
        if not theirs.about["parameters"][name]["trained"]:
            if difference:
                result.buffers[name] = difference / (b.norm().item() or 1.0)
        elif name in noise:
            result.zero_gradient = max(result.zero_gradient, (a - b).abs().max().item())
        elif start is not None:
            way = _distance(b, start.value(name).double())
            apart, moved = apart + difference**2, moved + way**2
            ratios[name] = 0.0 if not difference else difference / way if way and difference < math.inf else difference
    if ratios:
        result.name = max(ratios, key=ratios.__getitem__)
        result.worst, whole = ratios[result.name], apart**0.5
        result.whole = whole / moved**0.5 if moved and whole < math.inf else whole


def _rounding(checkpoint: Checkpoint, start: Checkpoint | None) -> set[str]:
    """Parameters that rounding alone moves: Adam turns even that into whole steps, which no two setups share."""
    trained = [name for name in checkpoint.names if checkpoint.about["parameters"][name]["trained"]]
    sizes = {}
    for name in trained:
        if "exp_avg_sq" in checkpoint.states(name):
            moments = checkpoint.optimizer(name, "exp_avg_sq", 0, math.prod(checkpoint.shape(name)))
            sizes[name] = moments.double().mean().sqrt().item()
        elif start is not None:
            sizes[name] = _distance(checkpoint.value(name).double(), start.value(name).double())
    least = _NOISE * max(filter(math.isfinite, sizes.values()), default=0.0)
    return {name for name in trained if name.endswith(ZERO_GRADIENT) or 0 < sizes.get(name, 0.0) <= least}


def _distance(a: Tensor, b: Tensor) -> float:
    """||a - b||; what is not finite is equal where both are the same, and else infinitely far."""
    same = (a == b) | (a.isnan() & b.isnan())
    distance = torch.where(same, 0.0, a - b).norm().item()
    return distance if math.isfinite(distance) else math.inf


def _last(run: Run) -> Checkpoint | None:
    return newest_whole(run.folder) if find(run.folder / "checkpoints") else None


def _damaged(run: Run, whole: Checkpoint) -> str:
    newest = find(run.folder / "checkpoints")[-1]
    if newest == whole.folder:
        return ""
    return f"; {newest.name} of {run.label} is not whole (oneloop verify tells why)"


def _first(run: Run) -> Checkpoint | None:
    folder = run.folder / "checkpoints" / "step-000000"
    return newest_whole(folder) if folder.is_dir() else None
