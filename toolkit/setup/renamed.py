"""Old names of DeepSpeed's keys: moved to the new ones, with a note that says so.

DeepSpeed takes some of them with a warning of its own, ignores others without a word, and rejects max_grad_norm.
"""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolkit.errors import fault
from toolkit.setup import schema
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.words import came

_CPU = {"device": "cpu"}
# Old switches: what true stands for under the new name; false stands for nothing.
_SWITCHES: dict[str, Any] = {
    "zero_optimization.cpu_offload": _CPU,
    "zero_optimization.cpu_offload_param": _CPU,
    "zero_optimization.cpu_offload_params": _CPU,
    "fp32_allreduce": "fp32",
}
_PIN = "zero_optimization.cpu_offload_use_pin_memory"


def migrate(file: DeepSpeedFile) -> tuple[DeepSpeedFile, list[str], list[str]]:
    """(the file in today's names and without comments, a note for each old name, a line for each that cannot be moved).

    The file's `names` lead from a new key to the old name, so that later lines tell what the user wrote.
    """
    config, names = _without_comments(file.config), dict(file.names)
    notes: list[str] = []
    faults: list[str] = []
    if isinstance(on := config.get("zero_optimization"), bool):
        config["zero_optimization"] = {"stage": int(on)}
        names["zero_optimization.stage"] = "zero_optimization"
        notes.append(f"{file.where('zero_optimization')} {json.dumps(on)}: an older form, taken as stage {int(on)}")
    for old, new in schema.RENAMED.items():
        section, name = _section(config, old), old.rpartition(".")[2]
        home = config.get(new.partition(".")[0], {}) if "." in new else {}
        if section is None or name not in section or not isinstance(home, dict):
            continue
        value, where = section.pop(name), file.where(old)
        if old in (*_SWITCHES, _PIN) and not isinstance(value, bool | None):
            faults.append(fault(where, value, f"expected true or false, got {came(value)}", f"write {new}"))
        elif old == _PIN:
            _move_pin(file, config, names, value, notes, faults)
        elif _get(config, new) is not None:
            faults.append(_twice(replace(file, names=names), old, value, new))
        elif old in _SWITCHES and not value:
            notes.append(f"{where} {json.dumps(value)}: an older name, nothing is switched on")
        else:
            value = _SWITCHES.get(old, value)
            _set(config, new, value)
            for inner in value if isinstance(value, Mapping) else ():
                names[f"{new}.{inner}"] = old if old in _SWITCHES else f"{old}.{inner}"
            names[new] = old
            told = f": {json.dumps(value)}" if old in _SWITCHES else ""
            notes.append(f"{where}: an older name, taken as {new}{told}")
    return replace(file, config=config, names=names), notes, faults


def _move_pin(
    file: DeepSpeedFile,
    config: dict[str, Any],
    names: dict[str, str],
    value: Any,
    notes: list[str],
    faults: list[str],
) -> None:
    """pin_memory of each offload section there is. It comes last, after the old names of those sections."""
    there = {key: _get(config, f"zero_optimization.{key}") for key in ("offload_optimizer", "offload_param")}
    sections = [key for key, section in there.items() if section and isinstance(section, dict)]
    for key in sections if value is not None else ():
        new = f"zero_optimization.{key}.pin_memory"
        if _get(config, new) is not None:
            faults.append(_twice(replace(file, names=names), _PIN, value, new))
            return
        _set(config, new, value)
        names[new] = _PIN
    told = f"taken as pin_memory in {' and '.join(sections)}" if sections else "nothing is offloaded"
    notes.append(f"{file.where(_PIN)}: an older name, {told}")


def _twice(file: DeepSpeedFile, old: str, value: Any, new: str) -> str:
    return fault(file.where(old), value, f"an older name of what {file.where(new)} says too", f"keep {new}")


def _without_comments(node: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_comments(value) if isinstance(value, Mapping) else value
        for key, value in node.items()
        if not key.startswith("_")
    }


def _section(config: dict[str, Any], key: str) -> dict[str, Any] | None:
    node: Any = config
    for name in key.split(".")[:-1]:
        node = node.get(name) if isinstance(node, dict) else None
    return node if isinstance(node, dict) else None


def _get(config: dict[str, Any], key: str) -> Any:
    return (_section(config, key) or {}).get(key.rpartition(".")[2])


def _set(config: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    node = config
    for name in sections:
        node = node.setdefault(name, {})
    node[last] = dict(value) if isinstance(value, Mapping) else value
