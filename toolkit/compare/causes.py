"""What is likely behind a difference: first what the two setups say, then what their numbers show."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from toolkit.compare.runs import Run

if TYPE_CHECKING:
    from toolkit.compare.verdict import Weights

Pairs = list[tuple[dict[str, Any], dict[str, Any]]]  # rows of the same step: of the run, and of the reference

# What rounding alone does, relative: to the losses of fp32 before it is amplified, and to gradient norms.
_ROUNDING = 2e-6
_NORMS = {"fp32": 1e-4, "16 bit": 2e-2}
# 16 bit moves the first step of the CNN and of BERT by less (1e-5 and 2e-4 measured); another seed moves the loss by
# 1e-3 to 4e-3, like 16 bit would, but the gradient's norm by 4e-2 and more.
_SIXTEEN_BIT = 2e-2
_SUDDEN = 10.0  # times the largest deviation before

_OPTIMIZER = ("optimizer", "weight_decay", "momentum", "optimizer_options")
_SCHEDULE = ("learning_rate", "lr_scheduler_type", "num_warmup_steps", "warmup_ratio", "lr_schedule")
_PRECISION = ("mixed_precision", "weight_dtype")
# How a cause begins that the numbers alone make likely.
GUESSES = ("unknown", "optimizer, likely", "clipping, likely")


def paired(run: Run, reference: Run) -> Pairs:
    """The rows of the steps that both have."""
    mine = {row["step"]: row for row in run.rows}
    return [(mine[row["step"]], row) for row in reference.rows if row["step"] in mine]


def relative(mine: float | None, other: float | None) -> float:
    """What was not finite is null in metrics.jsonl: equal where both are."""
    if mine is None or other is None:
        return 0.0 if mine is other else math.inf
    return abs(mine - other) / abs(other) if other else abs(mine)


def likely_cause(run: Run, reference: Run, step: int | None, weights: Weights) -> str:
    """What the setups say otherwise and can have acted, with both values and where they come from; else what the
    numbers alone can tell.

    Args:
        step: at which the losses are too far apart; None where they are not.
    """
    if causes := said_otherwise(run, reference, step, weights):
        return "; ".join(causes)
    pairs = paired(run, reference)
    begins = _begins(pairs, step, run, reference)
    samples = next((b["step"] for a, b in pairs if a["samples"] != b["samples"]), None)
    rates = _first_other_rate(pairs)
    if rates is not None and rates < begins:
        return _schedule(rates, weights)
    if samples is not None and samples <= begins:
        return f"unequal batches: other samples from step {samples}"
    if [row["step"] for row in run.rows] != [row["step"] for row in reference.rows]:
        return _lengths(run, reference)
    if step is None:
        return _at_the_end(run, reference, weights)
    if said := _dropout(run, reference) or _coupled(run, reference, weights):
        return said
    said = _by_numbers(run, reference, begins, weights)
    offloaded = {str(each.value("strategy")).endswith("_offload") for each in (run, reference)}
    adam = str(reference.value("optimizer")).startswith("adam")
    return f"{said}; DeepSpeedCPUAdam updates one of the two" if len(offloaded) > 1 and adam and begins > 1 else said


def said_otherwise(run: Run, reference: Run, step: int | None, weights: Weights) -> list[str]:
    """What the two setups, or their checkpoints, say otherwise and can have acted before `step`."""
    pairs = paired(run, reference)
    begins = _begins(pairs, step, run, reference)
    rates = _first_other_rate(pairs)
    clips = _first_clipped(run, reference)
    told: list[tuple[str, tuple[str, ...], bool]] = [
        ("seed", ("seed",), True),
        ("unequal batches", ("train_batch_size",), True),
        ("loss", ("label_smoothing_factor", "class_weights"), True),
        ("frozen layers", ("freeze",), True),
        ("precision", _PRECISION, True),
        ("schedule", _SCHEDULE, rates is not None and rates < begins),
        ("clipping", ("max_grad_norm",), clips is not None and clips < begins),
        ("optimizer", _OPTIMIZER, begins > 1),
    ]
    causes = [f"{name}: {said}" for name, values, acts in told if acts and (said := differing(run, reference, values))]
    if begins > 1 and len(set(weights.optimizers)) > 1 and run.value("optimizer") == reference.value("optimizer"):
        causes.append("optimizer: {}, not {} (their checkpoints)".format(*weights.optimizers))
    skipped = [sum(bool(row.get("skipped")) for row in each.rows if row["step"] <= begins) for each in (run, reference)]
    if skipped[0] != skipped[1]:
        causes.append("overflow: {} steps skipped, not {}".format(*skipped))
    return causes


def _first_other_rate(pairs: Pairs) -> int | None:
    return next((b["step"] for a, b in pairs if a["learning_rate"] != b["learning_rate"]), None)


def other_precision(run: Run, reference: Run) -> str:
    """ "" where both have the same."""
    said = differing(run, reference, _PRECISION)
    return f"precision: {said}" if said else ""


def differing(run: Run, reference: Run, names: tuple[str, ...]) -> str:
    return ", ".join(
        f"{name} {_shown(run.value(name))} ({run.origin(name)}), not {_shown(reference.value(name))} "
        f"({reference.origin(name)})"
        for name in names
        if run.value(name) != reference.value(name)
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _lengths(run: Run, reference: Run) -> str:
    if len(run.rows) != len(reference.rows):
        return f"{len(run.rows)} steps, and {len(reference.rows)} of {reference.label}"
    return f"steps from {run.rows[0]['step']} on, and from {reference.rows[0]['step']} of {reference.label}"


def _exact(run: Run, reference: Run) -> bool:
    return all(each.value("mixed_precision") in ("no", None) for each in (run, reference))


def _begins(pairs: Pairs, step: int | None, run: Run, reference: Run) -> int:
    """The first step whose losses are further apart than rounding moves them: it may be before `step`."""
    if step is None:
        return pairs[-1][1]["step"] + 1 if pairs else 1
    first = next((b["step"] for a, b in pairs if relative(a["loss"], b["loss"]) > _ROUNDING), step)
    return min(first, step) if _exact(run, reference) else step


def _first_clipped(run: Run, reference: Run) -> int | None:
    """The first step whose gradient one of the two clips."""
    bounds = [bound for each in (run, reference) if (bound := each.value("max_grad_norm"))]
    norms = ((row["step"], row.get("grad_norm")) for row in reference.rows)
    return next((step for step, norm in norms if norm is not None and bounds and norm > min(bounds)), None)


def _schedule(rates: int, weights: Weights) -> str:
    cause = f"schedule: other learning rates from step {rates}"
    if weights.total_steps and len(set(weights.total_steps)) > 1:
        return cause + ", of {} steps in all, not {}".format(*weights.total_steps)
    return f"{cause}, though the setups say the same"


def _dropout(run: Run, reference: Run) -> str:
    """It stands in the model, not in the setup."""
    mine, other = ((each.summary.get("obtained") or {}).get("dropout") or 0.0 for each in (run, reference))
    if mine != other:
        return f"dropout: {mine:g}, not {other:g}"
    return f"dropout is on ({mine:g}): its masks differ from rank to rank" if mine else ""


def _coupled(run: Run, reference: Run, weights: Weights) -> str:
    """BatchNorm's statistics are those of a micro-batch, or of all ranks' together: with others the losses change."""
    mine, other = (
        each.value("train_micro_batch_size_per_gpu") * (each.ranks if each.value("sync_batch_norm") else 1)
        for each in (run, reference)
    )
    if any("running_" in each for each in weights.buffers) and mine != other:
        return f"buffers: BatchNorm over {mine} samples at a time, not {other}"
    return ""


def _at_the_end(run: Run, reference: Run, weights: Weights) -> str:
    if not weights.buffers:
        mine, other = (each.summary.get("metrics", {}).get("loss") for each in (run, reference))
        if weights.name and weights.worst:
            what = f"{weights.name} does not: each update may differ a little, by another decay for one"
        else:
            what = f"the evaluation's does not: {mine}, not {other}"
        return f"unknown: the losses of training agree, {what}"
    worst = max(weights.buffers, key=weights.buffers.__getitem__)
    cause = f"buffers: {worst} differs by {weights.buffers[worst]:.1e} at the end, the losses of training agree"
    name = "gradient_accumulation_steps"
    if "running_" in worst and (said := differing(run, reference, (name,))):
        cause += f"; a rank's statistics move once a micro-batch: {said}"
    return cause


def _by_numbers(run: Run, reference: Run, begins: int, weights: Weights) -> str:
    """The setups say the same: what is the last thing that was equal?"""
    rows = {b["step"]: (a, b) for a, b in paired(run, reference)}
    if begins - 1 not in rows:
        return _at_the_start(run, reference, weights, *rows[begins])
    before = begins - 1
    norm = rows[before][1].get("grad_norm")
    allowed = _NORMS["fp32" if _exact(run, reference) else "16 bit"]
    if norm is None or relative(rows[before][0].get("grad_norm"), norm) > allowed:
        return f"unknown: the gradients of step {before} differ, the loss of that step does not"
    apart = {step: relative(a["loss"], b["loss"]) for step, (a, b) in rows.items() if step <= begins}
    if _exact(run, reference) and apart[begins] < _SUDDEN * max(apart[step] for step in apart if step < begins):
        return (
            f"unknown: the losses drift apart little by little, past rounding at step {begins}: training amplifies "
            "rounding, or each update differs a little (decay, betas, epsilon)"
        )
    return _update(reference, before, norm)


def _update(reference: Run, before: int, norm: float) -> str:
    """Another optimizer differs from its first update on, momentum and betas from the second, a clipping from the
    first gradient that is above its bound; Adam does not see that in full before the gradient after."""
    clip = reference.value("max_grad_norm") or math.inf
    earlier = [row.get("grad_norm") or 0.0 for row in reference.rows if row["step"] < before]
    agree = f"loss and gradient of step {before} agree, what the update made of them does not"
    if not earlier:
        also = f", or a clipping below {norm:.3g}" if norm <= clip else ", or clipping"
        return f"optimizer, likely{also}: {agree}"
    first = max(earlier) < min(norm, clip)  # so that no update before was clipped otherwise
    above = f"{norm:.3g}, is above {clip:g}" if norm > clip else f"{norm:.3g}, is the largest so far"
    clipping = f"step {before} is the first whose gradient norm, {above}"
    if len(earlier) == 1:
        adam = str(reference.value("optimizer")).startswith("adam")
        also = f", or clipping ({clipping})" if first else ", or clipping" if adam else ""
        return f"optimizer, likely (momentum and betas act from the second update on){also}: {agree}"
    return f"clipping, likely: {clipping}" if first else f"unknown: {agree}, after {len(earlier)} equal ones"


def _at_the_start(run: Run, reference: Run, weights: Weights, mine: dict[str, Any], other: dict[str, Any]) -> str:
    loss, norm = (relative(mine.get(name), other.get(name)) for name in ("loss", "grad_norm"))
    told = f"the losses of step {other['step']} are {loss:.1e} apart, the gradient norms {norm:.1e}"
    if weights.start is False:
        return f"other weights at the start: {told}"
    for name in ("parameter_dtype", "autocast_dtype"):
        a, b = ((each.summary.get("obtained") or {}).get(name) for each in (run, reference))
        if a != b:
            return f"precision: {name} {a}, not {b}: {told}"
    if loss < _SIXTEEN_BIT and norm < _SIXTEEN_BIT:
        return f"precision, likely: {told}, as 16 bit would move them"
    return (
        f"other data at the start, likely: {told}" if weights.start else f"other weights or data at the start: {told}"
    )
