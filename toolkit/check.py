"""`oneloop check`: what a command would train with, or everything that is wrong with its files, without starting it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.arguments import read_arguments
from toolkit.errors import Fault, UserError, fault
from toolkit.setup import Setup
from toolkit.setup.hostfile import read_hostfile
from toolkit.setup.planned import plan
from toolkit.setup.run import resolve
from toolkit.setup.script import Script, read_script

SCRIPTS_DEFAULT, UNDECIDED = "script's default", "decided by the script"
_ROWS = """strategy world_size mixed_precision train_batch_size train_micro_batch_size_per_gpu
    gradient_accumulation_steps optimizer learning_rate weight_decay lr_scheduler_type num_warmup_steps max_grad_norm
    offload stages""".split()


@dataclass(frozen=True)
class Report:
    """`setup` is empty where there are errors: {name: {"value", "origin", "overrode"}}."""

    setup: Mapping[str, Mapping[str, Any]]
    errors: Sequence[str]
    warnings: Sequence[str]

    def as_json(self) -> str:
        errors = [each.as_dict() if isinstance(each, Fault) else {"reason": each} for each in self.errors]
        told = {"ok": not errors, "setup": self.setup, "errors": errors, "warnings": list(self.warnings)}
        return json.dumps(_plain(told), indent=2, allow_nan=False)

    def table(self) -> str:
        """A row for each name: value, where it comes from, and what else was said."""
        rows = []
        for name in _ROWS:
            value, origin, overrode = (self.setup[name][key] for key in ("value", "origin", "overrode"))
            rows.append((name, _shown(value, origin), f"{origin}, not {overrode}" if overrode else str(origin)))
        widths = [max(len(row[column]) for row in rows) for column in (0, 1)]
        return "\n".join(f"{name:<{widths[0]}}  {value:<{widths[1]}}  {origin}" for name, value, origin in rows)


def _plain(value: Any) -> Any:
    """The same with the text of what JSON does not have: infinity, NaN, dates, bytes and keys that are no text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple | set):
        return [_plain(each) for each in value]
    if isinstance(value, int) and value.bit_length() > 64:
        return hex(value)
    plain = value is None or isinstance(value, str | int) or isinstance(value, float) and math.isfinite(value)
    return value if plain else str(value)


def _shown(value: Any, origin: str) -> str:
    if value is None:
        return "-" if origin == UNDECIDED else "none"
    if isinstance(value, Mapping):
        return ", ".join(f"{name.removeprefix('offload_')} on {device}" for name, device in value.items())
    return f"{value:g}" if isinstance(value, float) else "fp32" if value == "no" else str(value)


def check(
    environ: Mapping[str, str],
    *,
    config_file: str | None = None,
    deepspeed_config: str | None = None,
    hostfile: str | None = None,
    num_processes: int | None = None,
    script: str | None = None,
    script_arguments: Sequence[str] = (),
) -> Report:
    """Settles a command as its run would, with the launcher that its files belong to (see `plan`).

    Args:
        environ: of the command.
        config_file: of `accelerate launch`.
        deepspeed_config: as the script's argument of that name.
        script: a path; without one, values that are a script's matter are shown as decided by it.
    """
    faults: list[str] = []
    told = Script("")
    hosts = None
    try:
        told = read_script(script) if script is not None else told
    except UserError as error:
        faults += error.lines
    try:
        hosts = read_hostfile(hostfile) if hostfile is not None else None
    except UserError as error:
        faults += error.lines
    known = told.arguments is not None
    read = told.arguments or {"description": "", "defaults": {}}
    arguments, lines = read_arguments(script_arguments, script=script or "SCRIPT", **read)
    faults += lines if known else ()  # the others are what every script on toolkit has, and the files they name
    if deepspeed_config is not None:
        other = arguments.deepspeed_config
        if other is not None and os.path.realpath(other) != os.path.realpath(deepspeed_config):
            faults.append(fault("--deepspeed_config", deepspeed_config, f"{script} is given {other}", "name one file"))
        arguments.deepspeed_config = deepspeed_config
    planned = plan(
        environ,
        script or "SCRIPT",
        config_file=config_file,
        deepspeed=arguments.deepspeed_config is not None,
        num_processes=num_processes,
        hosts=hosts,
    )
    resolved = resolve(arguments, planned.environ, planned.parent)
    faults = list(dict.fromkeys([*faults, *planned.faults, *resolved.faults]))
    notes = [*told.notes, *resolved.notes]
    if not known:
        notes = [note for note in notes if SCRIPTS_DEFAULT not in note]
    if faults or resolved.setup is None:
        return Report({}, faults, notes)
    settled = _settled(resolved.setup, known)
    if planned.processes is not None:  # a run sees no more than its launcher's WORLD_SIZE
        settled["world_size"]["origin"] = planned.processes.origin
    return Report(settled, (), notes)


def _settled(setup: Setup, known: bool) -> dict[str, dict[str, Any]]:
    """Every value; those that only the script decides are null where its defaults are not known."""
    result = setup.as_dict()
    if known:
        return result
    default_batch = result["train_batch_size"]["origin"] == SCRIPTS_DEFAULT
    for name, row in result.items():
        follows = default_batch and name in ("train_micro_batch_size_per_gpu", "padding_rows", "deepspeed_config")
        follows = follows or name == "gradient_accumulation_steps" and row["origin"] == "default"
        if row["origin"] == SCRIPTS_DEFAULT or follows:
            row |= {"value": None, "origin": UNDECIDED}
        if SCRIPTS_DEFAULT in (row["overrode"] or ""):
            row["overrode"] = None
    return result
