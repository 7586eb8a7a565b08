"""What a run costs: speed, memory, checkpoints, and how long a pipeline's stages wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby
from statistics import median, quantiles
from typing import Any

from toolkit.compare.runs import Measured, Run


def with_costs(measured: Measured, run: Run) -> Measured:
    """The same with what the run's metrics.jsonl and summary.json say of its costs."""
    rates = _rates(run)
    checkpoint = run.summary.get("checkpoint") or {}
    counted = run.summary.get("communication")
    measured = replace(
        measured,
        seconds_to_first_step=run.summary.get("seconds_to_first_step"),
        peak_memory_bytes=tuple(run.summary.get("peak_memory_bytes") or ()),
        checkpoint_bytes=checkpoint.get("bytes"),
        checkpoint_seconds=checkpoint.get("seconds"),
        communication_bytes=sum(each["bytes"] for each in counted.values()) if counted is not None else None,
    )
    if rates:
        lower, _, upper = quantiles(rates, n=4, method="inclusive") if len(rates) > 1 else (None, None, None)
        spread = (lower, upper) if lower is not None and upper is not None else None
        measured = replace(measured, samples_per_second=median(rates), spread=spread)
    stages = run.summary.get("pipeline")
    if stages is not None:
        measured = replace(measured, **idle_shares(stages, int(run.value("gradient_accumulation_steps"))))
    return measured


def _rates(run: Run) -> list[float]:
    """Samples per second of each interval of logging but the first, in which buffers and kernels are made.

    The rows that a run writes together have one rate. Intervals that a save or the end cut to less than half are left
    out: a few steps are no measure.
    """
    intervals = [(rate, len(list(rows))) for rate, rows in groupby(row.get("samples_per_second") for row in run.rows)]
    known = [(float(rate), steps) for rate, steps in intervals if rate is not None]
    known = known[1:] or known
    longest = max((steps for _, steps in known), default=0)
    return [rate for rate, steps in known if 2 * steps >= longest]


def idle_shares(stages: dict[str, Any], micro_batches: int) -> dict[str, Any]:
    """`idle`, `idle_even` and `idle_bound` of `Measured`.

    With p stages and m micro-batches, (p - 1) / (m + p - 1) is GPipe's bubble (Huang et al. 2019, section 2.3), which
    the 1F1B schedule of DeepSpeed has too. For stages that take t_i a micro-batch, forward and backward together, no
    schedule is shorter than the longest of sum(t_i, i < s) + max(m x t_s, sum(t_i, i >= s)) over the stages s: what
    comes before and after the work of s on the way of one micro-batch, and its own work, or the way on to the end.
    """
    working, whole = stages["working_seconds"], stages["step_seconds"]
    count, total = len(working), sum(working)
    lengths = [seconds / micro_batches for seconds in working]
    bound = max(sum(lengths[:s]) + max(working[s], sum(lengths[s:])) for s in range(count))
    return {
        "idle": 1 - total / (count * whole),
        "idle_even": (count - 1) / (micro_batches + count - 1),
        "idle_bound": 1 - total / (count * bound),
    }


def with_efficiencies(measured: Sequence[Measured], families: Sequence[str]) -> list[Measured]:
    """The same with the scaling efficiency of each setup that was started on several numbers of ranks.

    Args:
        families: of each, the setup's name without its number of ranks. `single` is one rank of those without.
    """
    result = []
    for each, family in zip(measured, families, strict=True):
        named = list(zip(measured, families, strict=True))
        siblings = [other for other, name in named if name == family] if family != each.label else []
        alone = [other for other, name in named if name == "single"] if siblings else []
        # The first of the fewest: a sibling goes before `single`.
        rated = [other for other in siblings + alone if other.samples_per_second]
        least = min(rated, key=lambda other: other.ranks, default=each)
        if each.samples_per_second and least.samples_per_second and each.ranks > least.ranks:
            ideal = least.samples_per_second * each.ranks / least.ranks
            each = replace(each, efficiency=each.samples_per_second / ideal)
        result.append(each)
    return result
