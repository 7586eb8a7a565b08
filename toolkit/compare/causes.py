"""What is likely behind a difference: first what the two setups say, then what their numbers show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from toolkit.compare.runs import Run

_EQUAL = 1e-4  # relative: rounding alone moves the gradient norm of fp32 by less
_SIXTEEN_BIT = 2e-2  # relative: it moves a loss by less

_OPTIMIZER = ("optimizer", "weight_decay", "momentum", "optimizer_options")
_SCHEDULE = ("learning_rate", "lr_scheduler_type", "num_warmup_steps", "lr_schedule")
_BATCH = ("train_batch_size",)
_PRECISION = ("mixed_precision", "weight_dtype")


def likely_cause(run: Run, reference: Run, step: int | None, buffers: Mapping[str, float]) -> str:
    """One cause with both values and where they come from, or what the numbers alone can tell.

    Args:
        step: at which the losses begin to differ; None where they do not.
        buffers: relative difference at the end of those that are apart.
    """
    rows = list(zip(run.rows, reference.rows, strict=False))
    samples = next((a["step"] for a, b in rows if a["samples"] != b["samples"]), None)
    rates = next((a["step"] for a, b in rows if a["learning_rate"] != b["learning_rate"]), None)
    clips = _first_clipped(run, reference)
    begins = step if step is not None else len(rows) + 1
    told: list[tuple[str, tuple[str, ...], bool]] = [
        ("seed", ("seed",), True),
        ("unequal batches", _BATCH, True),
        ("precision", _PRECISION, True),
        ("schedule", _SCHEDULE, rates is not None and rates <= begins),
        ("clipping", ("max_grad_norm",), clips is not None and clips < begins),
        ("optimizer", _OPTIMIZER, begins > 1),
    ]
    for cause, names, acts in told:
        if acts and (said := _differing(run, reference, names)):
            return f"{cause}: {said}"
    if len(run.rows) != len(reference.rows):
        return f"{len(run.rows)} steps, and {len(reference.rows)} of {reference.label}"
    if samples is not None and samples <= begins:
        return f"unequal batches: other samples from step {samples}"
    if rates is not None and rates <= begins:
        return f"schedule: other learning rates from step {rates}, though the setups say the same"
    if step is None:
        return _at_the_end(run, reference, buffers)
    return _by_numbers(run, reference, step, buffers)


def other_precision(run: Run, reference: Run) -> str:
    """ "" where both have the same."""
    said = _differing(run, reference, _PRECISION)
    return f"precision: {said}" if said else ""


def _differing(run: Run, reference: Run, names: tuple[str, ...]) -> str:
    return ", ".join(
        f"{name} {_shown(run.value(name))} ({run.origin(name)}), not {_shown(reference.value(name))} "
        f"({reference.origin(name)})"
        for name in names
        if run.value(name) != reference.value(name)
    )


def _shown(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _first_clipped(run: Run, reference: Run) -> int | None:
    """The first step whose gradient one of the two clips."""
    bounds = [bound for each in (run, reference) if (bound := each.value("max_grad_norm"))]
    norms = ((row["step"], row.get("grad_norm")) for row in reference.rows)
    return next((step for step, norm in norms if norm is not None and bounds and norm > min(bounds)), None)


def _near(run: Run, reference: Run, step: int, column: str) -> bool:
    mine, other = ({row["step"]: row.get(column) for row in each.rows}.get(step) for each in (run, reference))
    if mine is None or other is None:
        return mine is other
    return abs(mine - other) <= _EQUAL * abs(other)


def _dropout(run: Run) -> float:
    try:
        told = json.loads((run.folder / "config" / "arguments.json").read_text(encoding="utf-8"))
        return float(told.get("dropout") or 0.0)
    except (OSError, ValueError, TypeError):
        return 0.0


def _coupled(run: Run, reference: Run, buffers: Mapping[str, float]) -> str:
    """BatchNorm's statistics are those of a micro-batch: with another one they, and the losses, are others."""
    name = "train_micro_batch_size_per_gpu"
    mine, other = run.value(name), reference.value(name)
    if any("running_" in each for each in buffers) and mine != other:
        return f"buffers: BatchNorm over micro-batches of {mine}, not {other}"
    return ""


def _at_the_end(run: Run, reference: Run, buffers: Mapping[str, float]) -> str:
    if buffers:
        worst = max(buffers, key=buffers.__getitem__)
        return f"buffers: {worst} differs by {buffers[worst]:.1e} at the end, the losses of training agree"
    return "the losses of training agree; weights or evaluation do not"


def _by_numbers(run: Run, reference: Run, step: int, buffers: Mapping[str, float]) -> str:
    """The setups say the same: what is the last thing that was equal?"""
    if max(_dropout(run), _dropout(reference)) > 0:
        return "dropout is on: its masks differ from rank to rank"
    if said := _coupled(run, reference, buffers):
        return said
    if step == 1:
        return _at_the_start(run, reference)
    before = step - 1
    if not _near(run, reference, before, "grad_norm"):
        return f"the gradients of step {before} differ, the loss of that step does not"
    norms = {row["step"]: row["grad_norm"] or 0.0 for row in reference.rows}
    norm, clip = norms[before], reference.value("max_grad_norm")
    if before > 1:
        # Another optimizer would differ from its first update on.
        largest = all(norm > norms[earlier] for earlier in norms if earlier < before)
        if largest and not (clip and norm <= clip):
            return f"clipping, likely: step {before} is the first whose gradient norm comes to {norm:.3g}"
        return f"the update of step {before} differs, after {before - 1} equal ones"
    if clip and norm > clip:
        return f"the first update differs: the optimizer, or clipping (its gradient norm is {norm:.3g})"
    return "optimizer, likely: loss and gradient of step 1 agree, what the update made of them does not"


def _at_the_start(run: Run, reference: Run) -> str:
    mine, other = run.rows[0]["loss"], reference.rows[0]["loss"]
    apart = abs(mine - other) / abs(other) if mine is not None and other else 1.0
    if apart < _SIXTEEN_BIT:
        return f"precision, likely: the losses of step 1 are {apart:.1e} apart, as products in 16 bit are"
    return f"other weights or other data at the start: the losses of step 1 are {apart:.1e} apart"
