"""A finished run's folder, and what `compare` says of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.compare.written import check_row, check_summary, read_object
from toolkit.errors import UserError, fault

# Verdicts, from the best to the worst.
REFERENCE, SAME, TOLERANCE, DIFFERS, FAILED = "reference", "same", "same within tolerance", "differs", "failed"
ROUNDING = "for scale"  # no setup: what rounding alone does to the reference


@dataclass(frozen=True)
class Run:
    """What a run left: its rows of steps, its evaluations, and its summary."""

    label: str  # "zero2", "my.json", "zero2 x4"
    folder: Path
    rows: tuple[dict[str, Any], ...] = ()  # of metrics.jsonl, one a step, in order
    scored: tuple[dict[str, Any], ...] = ()  # its rows of evaluation
    summary: Mapping[str, Any] = field(default_factory=dict)
    errors: tuple[str, ...] = ()  # why there is no whole run; the rest may then be empty

    def value(self, name: str) -> Any:
        """A value of the setup, as summary.json has it; None where it is not in it."""
        return self.summary.get("setup", {}).get(name, {}).get("value")

    def origin(self, name: str) -> str:
        return str(self.summary.get("setup", {}).get(name, {}).get("origin", ""))

    @property
    def ranks(self) -> int:
        return int(self.value("world_size") or 0)


def read_run(folder: Path, label: str | None = None, errors: tuple[str, ...] = ()) -> Run:
    """The run in `folder`.

    Args:
        errors: of a run that is known to have failed; then what is missing is no fault.

    Raises:
        UserError: what is no folder of a run, or one that cannot be read.
    """
    name = folder.name if label is None else label
    rows: list[dict[str, Any]] = []
    summary: Any = {}
    where = str(folder / "metrics.jsonl")
    try:
        for number, line in enumerate((folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines(), 1):
            where = f"{folder / 'metrics.jsonl'}: line {number}"
            rows.append(read_object(line))
            check_row(rows[-1])
        where = str(folder / "summary.json")
        summary = read_object((folder / "summary.json").read_text(encoding="utf-8"))
        check_summary(summary)
    except (OSError, UnicodeDecodeError) as error:
        if errors:
            return Run(name, folder, errors=errors)
        file = Path(getattr(error, "filename", None) or where).name
        reason = f"no run of oneloop stands there ({file}: {getattr(error, 'strerror', None) or error})"
        raise UserError(fault("--runs", str(folder), reason, "name folders that a run has written")) from None
    except ValueError as error:
        if errors:
            return Run(name, folder, errors=errors)
        raise UserError(fault(where, "unreadable", str(error), "name another run")) from None
    if not errors and (ended := summary.get("error")):
        errors = (f"rank {ended.get('rank')}, step {ended.get('step')}: {ended.get('message')}",)
    steps = tuple(row for row in rows if "loss" in row)
    return Run(name, folder, steps, tuple(row for row in rows if "loss" not in row), summary, errors)


@dataclass
class Measured:
    """One setup beside the reference. What a run does not tell, or what cannot be compared, is None."""

    label: str
    strategy: str
    ranks: int
    precision: str  # fp32, bf16, fp16, "bf16 weights", "fp16 weights"
    verdict: str
    cause: str = ""  # of a difference, where it can be known; of a failure its lines
    step: int | None = None  # at which the difference begins
    # Largest deviations from the reference: of the loss and the gradient norm relative, at every step.
    loss: float | None = None
    grad_norm: float | None = None
    learning_rate: float | None = None  # absolute
    weights: float | None = None  # ||a - b|| / ||b - start||, of the whole model
    parameter: float | None = None  # the same of the worst parameter
    parameter_name: str = ""
    metrics: Mapping[str, float] = field(default_factory=dict)  # the last evaluation's
    samples_per_second: float | None = None  # median over the intervals of logging after the first
    spread: tuple[float, float] | None = None  # lower and upper quartile of them
    efficiency: float | None = None  # of the same setup on fewer ranks: its rate times the ratio of ranks is 1
    seconds_to_first_step: float | None = None
    peak_memory_bytes: tuple[int, ...] = ()  # of each rank
    checkpoint_bytes: int | None = None
    checkpoint_seconds: float | None = None
    communication_bytes: int | None = None  # on rank 0, where the JSON has DeepSpeed count it
    idle: float | None = None  # share of a pipeline's step in which its stages wait
    idle_even: float | None = None  # (p - 1) / (m + p - 1): of p equal stages and m micro-batches, nothing else
    idle_bound: float | None = None  # of stages as long as they were measured, nothing else


@dataclass(frozen=True)
class Comparison:
    """What compare.json holds: `measured` in the order of `runs`."""

    script: str  # "" for runs that were there
    runs: tuple[Run, ...]
    measured: tuple[Measured, ...]
    environment: Mapping[str, Any]  # machine, libraries, command
    notes: tuple[str, ...] = ()

    def pairs(self) -> Iterator[tuple[Run, Measured]]:
        return zip(self.runs, self.measured, strict=True)

    @property
    def reference(self) -> Run | None:
        """What the others are compared with; None where nothing ran."""
        return next((run for run, measured in self.pairs() if measured.verdict == REFERENCE), None)

    @property
    def alike(self) -> bool:
        return all(each.verdict in (REFERENCE, SAME, TOLERANCE, ROUNDING) for each in self.measured)
