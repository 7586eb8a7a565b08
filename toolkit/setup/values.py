"""Clipping, optimizer, schedule and the rest: typed, else the file's, else DeepSpeed's default for a section that the
file has, else the script's default."""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import fault
from toolkit.setup.batch import Given
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.optimizer import read_optimizer, settle_options
from toolkit.setup.schedule import read_schedule, schedule_values, settle_ratio, settle_schedule
from toolkit.setup.scheduler_kwargs import settle_kwargs

VALUES: dict[str, Any] = {
    "max_grad_norm": 1.0,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "nesterov": False,
    "lr_scheduler_type": "constant",
    "lr_scheduler_kwargs": None,
    "num_warmup_steps": 0,
    "warmup_ratio": 0.0,
    "label_smoothing_factor": 0.0,
    "class_weights": None,
    "seed": 42,
    "freeze": None,
    "torch_compile": False,
    "gradient_checkpointing": False,
    "sync_batch_norm": False,
    "timeout": 120,
    "verbose": False,
}


def choose(
    typed: Given | None, written: Given | None, default: Given, faults: list[str], spelt: str | None = None
) -> Given:
    """Typed, else the file's, else the default; typed and file must agree. `spelt` is how the file writes its value."""
    if typed is not None and written is not None and typed.value != written.value:
        remedy = f'make them equal, or drop one ("auto" in the file takes {typed.origin})'
        means = f"means {written.value}, and " if spelt is not None and spelt.lower() != written.value else ""
        shown = written.value if spelt is None else spelt
        faults.append(fault(written.origin, shown, f"{means}{typed.origin} says {typed.value!r}", remedy))
    return typed or written or default


def _spelt(file: DeepSpeedFile | None, name: str) -> str | None:
    spelt = file.get("optimizer.type") if file is not None and name == "optimizer" else None
    return spelt if isinstance(spelt, str) else None


def settle_values(
    file: DeepSpeedFile | None,
    typed: Mapping[str, Given],
    defaults: Mapping[str, Given],
    faults: list[str],
    notes: list[str],
) -> dict[str, Given]:
    """One `Given` for each of `VALUES`, `lr_scheduler_kwargs` as `lr_schedule` and `nesterov` in `optimizer_options`.

    Args:
        typed: what the user gave; a file that says otherwise is refused.
        defaults: the script's, of every name in `VALUES`.
    """
    written: dict[str, Given] = {}
    missing: dict[str, Given] = {}
    section = read_schedule(file, faults, notes)
    if file is not None:
        clipping = file.get("gradient_clipping")
        if clipping is not None:
            written["max_grad_norm"] = Given(float(clipping), file.where("gradient_clipping"))
        read_optimizer(file, written, missing, faults, notes)
    if section is not None:
        schedule_values(section, typed, written, missing, faults)
    values = {}
    for name in VALUES:
        # A schedule of DeepSpeed's, and a warm-up that it has not, are compared where they are read.
        mine = None if section is not None and name == "lr_scheduler_type" else typed.get(name)
        if section is not None and section.kind == "OneCycle" and name == "num_warmup_steps":
            mine = None
        chosen = choose(mine, written.get(name), missing.get(name, defaults[name]), faults, _spelt(file, name))
        values[name] = chosen.over(typed.get(name), written.get(name), missing.get(name), defaults[name])
    options = settle_options(file, values, typed, faults, notes)
    settle_ratio(section, typed, values, faults)
    schedule = settle_schedule(section, typed, values, faults, notes)
    schedule = settle_kwargs(section, typed, defaults, values, faults, notes) or schedule
    return values | {"optimizer_options": options, "lr_schedule": schedule}
