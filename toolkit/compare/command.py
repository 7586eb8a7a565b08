"""`oneloop compare`: from the command line to tables and files."""

from __future__ import annotations

import os
import platform
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from toolkit.compare.runner import Interrupted, deferred, run_all
from toolkit.compare.runs import FAILED, REFERENCE, ROUNDING, Comparison, Measured, Run, read_run
from toolkit.compare.setups import Start, plan_starts
from toolkit.errors import UserError, fault
from toolkit.launch import say


def compare_setups(
    script: str,
    setups: Sequence[str],
    num_processes: Sequence[int],
    steps: int,
    output_dir: Path | None,
    script_arguments: Sequence[str],
) -> int:
    """Start every setup and tell how it trains beside the first that ran. Returns the exit code.

    Raises:
        UserError: see `plan_starts`; an `output_dir` that is not empty.
    """
    name = f"compare-{Path(script).stem}-{datetime.now():%Y%m%d-%H%M%S}"
    folder = output_dir if output_dir is not None else Path("runs", name)
    _check_new(folder)
    starts, notes = plan_starts(script, setups, num_processes, steps, folder, script_arguments)
    _make(folder)
    for note in notes:
        say(note)
    families = [start.label.rpartition(" x")[0] or start.label for start in starts]
    with deferred() as came:
        runs, code = _run(starts, steps)
        comparison = _compared(script, runs, families, notes)
        reference = comparison.reference
        if code is None and not came and reference is not None:
            rounding, code = _rounded(comparison, starts[runs.index(reference)], reference, folder)
            if rounding is not None:
                comparison = _beside(comparison, reference, rounding)
        told = _tell(comparison, folder)
    return code if code is not None else 128 + came[0] if came else told


def _run(starts: Sequence[Start], steps: int) -> tuple[list[Run], int | None]:
    """(a run of each start, the exit code of a signal that came)."""
    runs: list[Run] = []
    try:
        for run in run_all(starts, steps):
            runs.append(run)
    except Interrupted as end:
        left = [Run(start.label, start.folder, errors=("interrupted",)) for start in starts[len(runs) :]]
        return [*runs, *left], end.code
    return runs, None


def _rounded(comparison: Comparison, start: Start, reference: Run, folder: Path) -> tuple[Run | None, int | None]:
    """(the reference once more, from weights changed by rounding, where a verdict asks for it; the exit code of a
    signal that came)."""
    from safetensors import SafetensorError

    from toolkit.compare.rounding import needed, once_more

    if not needed(reference, list(comparison.pairs())):
        return None, None
    say("a setup differs and was told nothing that explains it: how far does rounding bring this training apart?")
    try:
        again = once_more(start, reference, folder)
    except (OSError, UserError, SafetensorError) as error:
        say(f"not known, the first weights of {reference.label} cannot be changed: {error}")
        return None, None
    (run,), code = _run([again], len(reference.rows))
    return None if run.errors else run, code


def compare_runs(folders: Sequence[Path], output_dir: Path | None) -> int:
    """The same of runs that were there; the first is the reference."""
    runs = [read_run(folder) for folder in folders]
    folder = output_dir if output_dir is not None else Path("runs", f"compare-{datetime.now():%Y%m%d-%H%M%S}")
    _check_new(folder)
    _make(folder)
    labels: list[str] = []
    for run in runs:
        others = (f"{run.label} ({n})" for n in range(2, len(runs) + 2))
        labels.append(next(name for name in (run.label, *others) if name not in labels))
    runs = [replace(run, label=label) for run, label in zip(runs, labels, strict=True)]
    return _tell(_compared("", runs, [run.label for run in runs], []), folder)


def _check_new(folder: Path) -> None:
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        reason = "is not empty" if folder.is_dir() else "is a file"
        raise UserError(fault("--output_dir", str(folder), reason, "name a new folder"))


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        line = fault("--output_dir", str(folder), f"cannot be made ({error.strerror})", "name another folder")
        raise UserError(line) from None


def _compared(script: str, runs: Sequence[Run], families: Sequence[str], notes: Sequence[str]) -> Comparison:
    """Everything measured against the first run that is whole."""
    from toolkit.compare.speed import with_costs, with_efficiencies
    from toolkit.compare.verdict import describe, judge

    reference = next((run for run in runs if not run.errors), None)
    notes = list(notes)
    if reference is not None and reference is not runs[0]:
        notes.append(f"{runs[0].label} failed, the reference is {reference.label}")
    measured: list[Measured] = []
    for run in runs:
        if reference is None:
            each = describe(run, FAILED, cause="\n".join(run.errors))
        elif run is reference:
            each = describe(run, REFERENCE)
        else:
            each = judge(run, reference)
        measured.append(with_costs(each, run))
    measured = with_efficiencies(measured, families)
    return Comparison(script, tuple(runs), tuple(measured), _environment(), tuple(notes))


def _beside(comparison: Comparison, reference: Run, rounding: Run) -> Comparison:
    """The same with what rounding may explain judged anew, and the run that shows it as the last.

    Args:
        rounding: the reference once more, from weights changed by rounding.
    """
    from toolkit.compare.rounding import CHANGED, comparable
    from toolkit.compare.verdict import judge

    scale = judge(rounding, reference)
    measured = []
    for run, each in comparison.pairs():
        if comparable(run, reference, each):
            told = judge(run, reference, (rounding, scale))
            each = replace(each, verdict=told.verdict, step=told.step, cause=told.cause)
        measured.append(each)
    last = replace(scale, verdict=ROUNDING, step=None, cause=f"the reference once more, {CHANGED}")
    return replace(comparison, runs=(*comparison.runs, rounding), measured=(*measured, last))


def _environment() -> dict[str, Any]:
    from toolkit.checkpoint.keep import versions
    from toolkit.setup.device import count_gpus

    return {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "date": f"{datetime.now():%Y-%m-%d %H:%M}",
        "machine": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "cores": len(os.sched_getaffinity(0)),
        "gpus": count_gpus(os.environ),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "cores / ranks"),
        **versions(),
    }


def _tell(comparison: Comparison, folder: Path) -> int:
    from toolkit.compare.output import show, write_csv, write_json
    from toolkit.compare.page import write_page

    lost = None
    try:
        show(comparison)  # first: a full disk must not take what was measured
    except OSError as error:  # nor may a terminal that is gone
        lost = error
    try:
        write_json(comparison, folder / "compare.json")
        write_csv(comparison, folder / "compare.csv")
        write_page(comparison, folder / "report.html")
    except OSError as error:
        reason = f"cannot be written ({error.strerror})"
        remedy = "make room, and draw the runs in it with oneloop compare --runs"
        raise UserError(fault("--output_dir", str(folder), reason, remedy)) from None
    if lost is not None:
        reason = f"the table cannot be written ({lost.strerror})"
        raise UserError(fault("standard output", "", reason, f"see {folder / 'report.html'}"))
    say(f"report: {folder / 'report.html'}, compare.json and compare.csv beside it")
    return 0 if comparison.alike else 1
