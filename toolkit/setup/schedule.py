"""The JSON's `scheduler` section: DeepSpeed's schedules, each number settled with the setup's own.

The learning rates are `toolkit.optim.lr_at`'s; DeepSpeed itself gets no scheduler, under any strategy.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup.batch import Given
from toolkit.setup.checks import told
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.schema import SCHEDULER_PARAMS

REQUIRED = object()
_KINDS = ("WarmupLR", "WarmupDecayLR", "WarmupCosineLR", "OneCycle")
# Parameters with DeepSpeed's defaults. WarmupLR's warmup_max_lr is the optimizer's rate where it is missing.
SCHEDULERS: dict[str, dict[str, Any]] = {
    kind: {
        name: entry.get("default", None if entry.get("null") else REQUIRED)
        for name, entry in SCHEDULER_PARAMS[kind].items()
        if name != "last_batch_iteration"
    }
    for kind in _KINDS
}
_MOMENTUM = ("cycle_momentum", "cycle_min_mom", "cycle_max_mom", "decay_mom_rate")
# The parameter that is --learning_rate, and the --lr_scheduler_type of the same kind.
_PEAK = {"WarmupLR": "warmup_max_lr", "WarmupDecayLR": "warmup_max_lr", "OneCycle": "cycle_max_lr"}
_ALIKE = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
# Counts of steps and stairs with the least value, and numbers with the largest.
_COUNTS = {"total_num_steps": 1, "warmup_num_steps": 1, "cycle_first_step_size": 1, "cycle_second_step_size": 0}
_COUNTS |= {"cycle_first_stair_count": 0, "cycle_second_stair_count": 0, "decay_step_size": 0}
_LARGE = sys.float_info.max
_NUMBERS = {"warmup_min_ratio": 1.0, "cos_min_ratio": 1.0, "cycle_min_lr": _LARGE, "cycle_max_lr": _LARGE}
# What "auto" is; learning rate and warm-up are then the setup's.
_AUTO: dict[str, Any] = {"warmup_min_lr": 0.0, "warmup_max_lr": 0.0, "warmup_num_steps": 1, "total_num_steps": "auto"}


@dataclass(frozen=True)
class Section:
    """A schedule of DeepSpeed's: what the file writes, "auto" included, and the defaults of what is missing."""

    file: DeepSpeedFile
    kind: str
    written: Mapping[str, Any]

    def where(self, param: str) -> Place:
        return self.file.where(f"scheduler.params.{param}")

    @property
    def type_where(self) -> Place:
        return self.file.where("scheduler.type")


def read_schedule(file: DeepSpeedFile | None, faults: list[str], notes: list[str]) -> Section | None:
    """The section, checked alone; None where there is none. Unknown keys and wrong types have been told before."""
    section = file.get("scheduler") if file is not None else None
    if file is None or not isinstance(section, Mapping):
        return None
    kind, params = section.get("type"), section.get("params") or {}
    where, remedy = file.where("scheduler.type"), f"one of {', '.join(SCHEDULERS)}"
    if kind is None:
        if params and not told(where, faults):
            faults.append(fault(where, kind, "DeepSpeed ignores a schedule without its type", f"write {remedy}"))
        return None
    if kind not in SCHEDULERS:
        exact = next((f"write {name}" for name in SCHEDULERS if name.lower() == str(kind).lower()), "")
        reason = "DeepSpeed knows no schedule of this name" if exact else "not supported yet"
        faults.append(fault(where, kind, reason, exact or remedy))
        return None
    return _checked(Section(file, kind, params), faults, notes)


def _checked(section: Section, faults: list[str], notes: list[str]) -> Section:
    usable: dict[str, Any] = {}
    for name, default in SCHEDULERS[section.kind].items():
        value, where = section.written.get(name), section.where(name)
        if value is None:
            if default is REQUIRED and not told(where, faults):
                remedy = 'write "auto" for the steps of the run' if name in _AUTO else "write it"
                faults.append(fault(where, None, f"{section.kind} needs it", remedy))
        elif value == "auto" and name in _AUTO:
            usable[name] = value
        elif line := _range_fault(where, name, value):
            faults.append(line)
        else:
            usable[name] = int(value) if name in _COUNTS else value
    where, value = section.where("last_batch_iteration"), section.written.get("last_batch_iteration", -1)
    if value != -1:
        faults.append(fault(where, value, "a run goes on where its checkpoint stands", "remove it"))
    if section.kind == "OneCycle":
        _without_momentum(section, faults, notes)
    return Section(section.file, section.kind, usable)


def _range_fault(where: Place, name: str, value: Any) -> str | None:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if name == "warmup_type" and value not in ("log", "linear"):
        return fault(where, value, "DeepSpeed would take log in its place", "write log or linear")
    if name == "warmup_num_steps" and value == 0:
        reason, remedy = "DeepSpeed 0.19.8 takes no warm-up of 0 steps", "remove scheduler and give --lr_scheduler_type"
        return fault(where, value, reason, f"write 1, or {remedy}")
    if name in _COUNTS and not (number and value >= _COUNTS[name] and value % 1 == 0):
        return fault(where, value, f"expected an integer of {_COUNTS[name]} or more", "correct the value")
    if name in _NUMBERS and not (number and 0 <= value <= _NUMBERS[name]):
        high = f" to {_NUMBERS[name]:g}" if _NUMBERS[name] < _LARGE else " or more"
        return fault(where, value, f"expected one number of 0{high}", "correct the value")
    return None


def _without_momentum(section: Section, faults: list[str], notes: list[str]) -> None:
    where, value = section.where("cycle_momentum"), section.written.get("cycle_momentum")
    if value is not False and not told(where, faults):
        shown = True if value is None else value
        reason = "a momentum that moves with the learning rate is not supported yet" + " (the default)" * (
            value is None
        )
        faults.append(fault(where, shown, reason, "write cycle_momentum: false"))
    if unused := [name for name in _MOMENTUM[1:] if value is False and name in section.written]:
        notes.append(f"{where} false: not used: {', '.join(unused)}")


def schedule_values(
    section: Section,
    typed: Mapping[str, Given],
    written: dict[str, Given],
    missing: dict[str, Given],
    faults: list[str],
) -> None:
    """Adds the section's share of the setup's values; what `written` or a typed kind of schedule says otherwise is
    refused."""
    kind, params = section.kind, section.written
    written["lr_scheduler_type"] = Given(kind, section.type_where)
    asked, warmup = typed.get("lr_scheduler_type"), typed.get("num_warmup_steps")
    if asked is not None and asked.value != _ALIKE.get(kind):
        remedy = "leave one of the two out"
        faults.append(fault(section.type_where, kind, f"{asked.origin} says {asked.value!r}", remedy))
    if kind == "OneCycle":
        written["num_warmup_steps"] = Given(0, section.type_where)
        if warmup is not None and warmup.value:
            reason = f"{warmup.origin} says {warmup.value}, and this schedule has no warm-up"
            faults.append(fault(section.type_where, kind, reason, "leave it out, or write cycle_first_step_size"))
    elif "warmup_num_steps" not in params:
        default = SCHEDULERS[kind]["warmup_num_steps"]
        missing["num_warmup_steps"] = Given(default, f"{section.where('warmup_num_steps')} (DeepSpeed's default)")
    elif params["warmup_num_steps"] != "auto":
        written["num_warmup_steps"] = Given(params["warmup_num_steps"], section.where("warmup_num_steps"))
    _peak(section, written, missing, faults)


def _peak(section: Section, written: dict[str, Given], missing: dict[str, Given], faults: list[str]) -> None:
    """The learning rate that the section gives, beside the optimizer's."""
    name = _PEAK.get(section.kind, "")
    where, value, optimizers = section.where(name), section.written.get(name), written.get("learning_rate")
    default = SCHEDULERS[section.kind].get(name)
    if value == "auto" or not name:
        return
    remedy = 'make them equal, or write "auto" for one'
    if isinstance(value, int | float):
        if optimizers is not None and optimizers.value != value:
            faults.append(fault(where, value, f"{optimizers.origin} is {optimizers.value}", remedy))
        written["learning_rate"] = Given(float(value), where)
    elif default is not None and default is not REQUIRED:
        if optimizers is None:
            missing["learning_rate"] = Given(default, f"{where} (DeepSpeed's default)")
        elif optimizers.value != default and not told(where, faults):
            reason = f"missing, DeepSpeed takes {default}, but {optimizers.origin} is {optimizers.value}"
            faults.append(fault(where, None, reason, 'write it, or "auto"'))


def settle_schedule(
    section: Section | None, typed: Mapping[str, Given], values: dict[str, Given], faults: list[str], notes: list[str]
) -> Given:
    """{"type": ..., parameter: number, ...} with the settled learning rate and warm-up; {} without a section.

    `total_num_steps` is "auto" where it is the run's. A warm-up of 0 behind an "auto" becomes 1 in `values`.
    """
    if section is None:
        return Given({}, "default")
    kind, warmup = section.kind, values["num_warmup_steps"]
    if section.written.get("warmup_num_steps") == "auto" and warmup.value == 0:
        where, why = section.where("warmup_num_steps"), "DeepSpeed 0.19.8 takes no warm-up of 0 steps"
        if "num_warmup_steps" in typed:
            remedy = "give 1 or more, or remove scheduler and give --lr_scheduler_type"
            faults.append(fault(warmup.origin, 0, f'{where} is "auto", and {why}', remedy))
        else:
            notes.append(f'{where} "auto" is 1, not 0 ({warmup.origin}): {why}')
        warmup = values["num_warmup_steps"] = Given(1, where).over(warmup)
    params = {name: section.written.get(name, default) for name, default in SCHEDULERS[kind].items()}
    params = {name: _AUTO[name] if value == "auto" else value for name, value in params.items()}
    for name in _MOMENTUM:
        params.pop(name, None)
    if (peak := _PEAK.get(kind, "")) in params:
        params[peak] = values["learning_rate"].value
    if "warmup_num_steps" in params:
        params["warmup_num_steps"] = warmup.value
    total = params.get("total_num_steps")
    if isinstance(total, int) and total < warmup.value:
        reason = f"the warm-up alone takes {warmup.value} ({warmup.origin})"
        faults.append(fault(section.where("total_num_steps"), total, reason, "correct one of the two"))
    return Given({"type": kind, **params}, section.file.where("scheduler"))


def settle_ratio(
    section: Section | None, typed: Mapping[str, Given], values: dict[str, Given], faults: list[str]
) -> None:
    """One of `num_warmup_steps` and `warmup_ratio` holds, the other is 0: a typed one, else the ratio where it is not
    0. A JSON's schedule and one_cycle have a warm-up of their own."""
    ratio, steps, kind = values["warmup_ratio"], values["num_warmup_steps"], values["lr_scheduler_type"]
    if not ratio.value:
        return
    of_file = section is not None or kind.value == "one_cycle"
    if "warmup_ratio" in typed and of_file:
        where = section.type_where if section is not None else kind.origin
        remedy = "leave it out, and write the warm-up there" if section is not None else "give pct_start instead"
        faults.append(fault(ratio.origin, ratio.value, f"{kind.value} ({where}) has a warm-up of its own", remedy))
    elif "warmup_ratio" in typed and "num_warmup_steps" in typed:
        reason = f"{steps.origin} says {steps.value}"
        faults.append(fault(ratio.origin, ratio.value, reason, "give one of the two"))
    if of_file or ("num_warmup_steps" in typed and "warmup_ratio" not in typed):
        values["warmup_ratio"] = Given(0.0, steps.origin).over(ratio)
    else:
        values["num_warmup_steps"] = Given(0, ratio.origin).over(steps)


def length_notes(warmup: int, schedule: Mapping[str, Any], total_steps: int) -> list[str]:
    """What of a schedule does not fit a run of `total_steps` steps; `schedule` is the setup's `lr_schedule`."""
    rises = {"num_warmup_steps": warmup, "cycle_first_step_size": schedule.get("cycle_first_step_size", 0)}
    notes = [
        f"{name} {steps} takes all {total_steps} steps: the peak is not reached"
        for name, steps in rises.items()
        if steps >= total_steps
    ]
    end = schedule.get("total_num_steps", "auto")
    if end not in ("auto", total_steps):
        notes.append(f"the schedule's total_num_steps is {end}, this run has {total_steps} steps")
    return notes


def warmup_fault(warmup: int, origin: str, total_steps: int, end: str) -> list[str]:
    """A line where a warm-up that the user wrote or typed is longer than the run, which `end` bounds."""
    if warmup <= total_steps or not (isinstance(origin, Place) or origin.startswith("--")):
        return []
    reason = f"the warm-up is longer than the run: {end} gives {total_steps} steps"
    return [fault(origin, warmup, reason, "warm up for fewer steps, or train for more")]
