"""--lr_scheduler_kwargs: the numbers of --lr_scheduler_type, by the names of transformers and torch."""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import fault
from toolkit.kinds import Kind, as_typed, one_of, real, switch, whole
from toolkit.setup.batch import Given
from toolkit.setup.schedule import Section
from toolkit.setup.words import nearest

NAME = "lr_scheduler_kwargs"
# {lr_scheduler_type: {name: (kind, default)}}: transformers' get_scheduler 5.23 and torch's OneCycleLR 2.13.
KWARGS: dict[str, dict[str, tuple[Kind, Any]]] = {
    "cosine_with_restarts": {"num_cycles": (whole(1), 1)},
    "polynomial": {"power": (real(0, above=True), 1.0), "lr_end": (real(0), 1e-7)},
    "one_cycle": {
        "pct_start": (real(0, 1, above=True), 0.3),
        "anneal_strategy": (one_of("cos", "linear"), "cos"),
        "div_factor": (real(1), 25.0),
        "final_div_factor": (real(1), 1e4),
        "three_phase": (switch, False),
    },
}


def defaults_of(kind: str) -> dict[str, Any]:
    """{name: number} of a schedule's own; empty where it has none."""
    return {name: default for name, (_, default) in KWARGS.get(kind, {}).items()}


def settle_kwargs(
    section: Section | None,
    typed: Mapping[str, Given],
    defaults: Mapping[str, Given],
    values: dict[str, Given],
    faults: list[str],
    notes: list[str],
) -> Given | None:
    """{"type": ..., name: number, ...} of a schedule with numbers of its own; None of one without.

    Takes `lr_scheduler_kwargs` out of `values`; a warm-up that nobody typed is 0 there beside one_cycle. Numbers that a
    script gives its own schedule go with that alone.
    """
    kind, given = values["lr_scheduler_type"], values.pop(NAME)
    if section is not None and NAME in typed:
        reason = f"{section.type_where} decides the schedule"
        faults.append(fault(given.origin, given.value, reason, "write its numbers there, or remove scheduler there"))
    elif given.value and NAME not in typed and kind.value != defaults["lr_scheduler_type"].value:
        notes.append(f"{NAME} ({given.origin}) are not used: {kind.value} ({kind.origin}) has none of them")
        given = Given(None, kind.origin)
    if section is not None or kind.value not in KWARGS:
        if section is None and given.value:
            having = ", ".join(KWARGS)
            reason = f"{kind.value} ({kind.origin}) takes none"
            faults.append(fault(given.origin, given.value, reason, f"leave it out, or choose one of {having}"))
        return None
    numbers = defaults_of(kind.value) | _checked(kind.value, given, faults)
    rate = values["learning_rate"]
    if (end := numbers.get("lr_end", 0.0)) and end >= rate.value:  # of a rate of 0 it would make one above
        reason = f"the schedule falls to it, and learning_rate is {rate.value} ({rate.origin})"
        faults.append(fault(f"{given.origin}: lr_end", end, reason, "give a lower one"))
    if numbers.get("three_phase") and numbers["pct_start"] >= 0.5:
        reason = "the rise takes pct_start of the steps, and so does the fall that follows"
        faults.append(fault(f"{given.origin}: pct_start", numbers["pct_start"], reason, "give one below 0.5"))
    if kind.value == "one_cycle":
        _without_warmup(kind, typed, values, faults)
    return Given({"type": kind.value, **numbers}, given.origin if given.value else kind.origin)


def _checked(schedule: str, given: Given, faults: list[str]) -> dict[str, Any]:
    """What is given, as numbers of the kinds that the schedule has; what is not is told."""
    known, numbers = KWARGS[schedule], {}
    for name, value in (given.value or {}).items():
        where = f"{given.origin}: {name}"
        if name not in known:
            remedy = nearest(name, known) or f"{schedule} has {', '.join(known)}"
            faults.append(fault(where, value, f"{schedule} has no such number", remedy))
            continue
        kind, default = known[name]
        try:
            if isinstance(value, str) != isinstance(default, str) or isinstance(value, bool) != (kind is switch):
                raise ValueError(f"expected a value like {default!r}")
            numbers[name] = kind(as_typed(value))
        except ValueError as error:
            faults.append(fault(where, value, str(error), "correct the value"))
    return numbers


def _without_warmup(kind: Given, typed: Mapping[str, Given], values: dict[str, Given], faults: list[str]) -> None:
    """The cycle's own rise is the warm-up."""
    warmup = values["num_warmup_steps"]
    if warmup.value and "num_warmup_steps" in typed:
        reason = f"one_cycle ({kind.origin}) rises by itself"
        faults.append(fault(warmup.origin, warmup.value, reason, f"leave it out, or give pct_start in --{NAME}"))
    values["num_warmup_steps"] = Given(0, kind.origin).over(warmup)
