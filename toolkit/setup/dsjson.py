"""DeepSpeed's JSON: one strict parser and one check for both launchers, so a file is taken or refused alike by each.

DeepSpeed itself reads hjson (comments, trailing commas), Accelerate reads json and takes the last of two equal keys.
"""

import copy
import difflib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup import schema
from toolkit.setup.jsonfile import read_json

_EXPECTED = {
    "positive": "integer of 1 or more",
    "whole": "integer of 0 or more",
    "number": "number of 0 or more",
    "bool": "true or false",
    "text": "string",
    "list": "list",
    "object": "object",
}


@dataclass(frozen=True)
class DeepSpeedFile:
    """`config` in DeepSpeed's form with its source; `names` maps a key path to the name the user wrote it under."""

    path: str
    config: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)  # of the names

    def where(self, key: str) -> Place:
        name = self.names.get(key, key)
        return Place(self.path, name, self.lines.get(name))

    def get(self, key: str) -> Any:
        """The value at a dotted key path; None where it is absent or "auto"."""
        node: Any = self.config
        for name in key.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return None
            node = node[name]
        return None if node == "auto" else node


def read_deepspeed_json(path: str) -> DeepSpeedFile:
    """The file as it stands; see `read_json` for what is refused."""
    config, lines = read_json(path)
    return DeepSpeedFile(path, config, lines=lines)


def check_keys(file: DeepSpeedFile) -> list[str]:
    """One line for each key that is unknown, misplaced, removed, of the wrong type, or not taken by this version."""
    faults: list[str] = []
    for key, value in file.config.items():
        if key in schema.SECTIONS:
            if not isinstance(value, Mapping):
                faults.append(_wrong_type(file, key, value, "object"))
                continue
            for name, nested in value.items():
                faults += _check_key(file, f"{key}.{name}", nested, schema.SECTIONS[key])
        else:
            faults += _check_key(file, key, value, schema.TOP)
    params = file.get("optimizer.params")
    if isinstance(params, Mapping):
        for name, value in params.items():
            faults += _check_key(file, f"optimizer.params.{name}", value, schema.OPTIMIZER_PARAMS)
    return faults


def _check_key(file: DeepSpeedFile, key: str, value: Any, known: Mapping[str, str]) -> list[str]:
    where, name = file.where(key), key.rpartition(".")[2]
    if key in schema.REMOVED:
        return [fault(where, value, "DeepSpeed 0.19.8 has removed this feature and rejects the key", "remove it")]
    if key in schema.RENAMED:
        return [fault(where, value, "an older name", f"write {schema.RENAMED[key]}")]
    if key in schema.NOT_TAKEN:
        reason, remedy = schema.NOT_TAKEN[key]
        unknown = _nested_faults(file, key, value)
        return unknown if switches_nothing_on(value) else [fault(where, value, reason, remedy), *unknown]
    if name not in known:
        return [fault(where, value, "unknown key, it would be ignored", _remedy(name, key, known))]
    if value == "auto" and key in schema.AUTO or value is None and key in schema.NULL:
        return []
    if value == "auto" and known[name] != "any":
        return [fault(where, value, 'there is no rule for "auto" here', "write a value or remove the key")]
    if not _is_kind(value, known[name]):
        return [_wrong_type(file, key, value, known[name])]
    if key in schema.FIXED and value != schema.FIXED[key][0]:
        right, reason = schema.FIXED[key]
        return [fault(where, value, reason, f"write {json.dumps(right)} or remove the key")]
    faults: list[str] = []
    for nested in value if key in schema.SUBSECTIONS else ():
        faults += _check_key(file, f"{key}.{nested}", value[nested], schema.SUBSECTIONS[key])
    return faults


def _nested_faults(file: DeepSpeedFile, key: str, section: Any) -> list[str]:
    """Unknown keys in a section that is not taken: it may be off by a typo only."""
    known = schema.NESTED.get(key)
    if not isinstance(section, Mapping) or known is None:
        return []
    return [
        fault(
            file.where(f"{key}.{name}"), value, "unknown key, it would be ignored", nearest(name, known) or "remove it"
        )
        for name, value in section.items()
        if name not in known
    ]


def switches_nothing_on(section: Any) -> bool:
    """True for null, {}, {"enabled": false, ...}, {"device": "none"} and sections of false or empty values."""
    if not isinstance(section, Mapping):
        return not section
    if section.get("enabled") is False or section.get("device") in ("none", "auto"):
        return True
    return not any(value and value != "auto" for value in section.values())


def _is_kind(value: Any, kind: str) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    match kind:
        case "positive" | "whole":
            whole = number and abs(value) <= schema.LARGEST and value == int(value)
            return whole and value >= (kind == "positive")
        case "number":
            return number and 0 <= value <= sys.float_info.max
        case "any":
            return True
        case "object":
            return isinstance(value, Mapping)
    return isinstance(value, {"bool": bool, "text": str, "list": list}[kind])


def _wrong_type(file: DeepSpeedFile, key: str, value: Any, kind: str) -> str:
    got = {str: "string", bool: "boolean", dict: "object", list: "list", int: "integer", float: "number"}
    shown = json.dumps(value)
    came = "null" if value is None else f"{got[type(value)]} {shown}"
    return fault(file.where(key), value, f"expected {_EXPECTED[kind]}, got {came}", "correct the value")


def _remedy(name: str, key: str, known: Mapping[str, str]) -> str:
    """Where a misplaced key belongs, else the nearest name."""
    section = key.rpartition(".")[0]
    if section and name in {**schema.TOP, **schema.SECTIONS, **schema.NOT_TAKEN}:
        return f"{name} belongs at the top level"
    for other, names in schema.SECTIONS.items():
        if name in names and other != section:
            return f"{name} belongs under {other}"
    everything = [*known] if section else [*known, *schema.SECTIONS, *schema.NOT_TAKEN]
    return nearest(name, everything) or "remove it"


def nearest(name: str, names: Iterable[str]) -> str:
    """ "did you mean x?", or "" where nothing is near."""
    close = difflib.get_close_matches(name, list(names), n=1, cutoff=0.7)
    return f"did you mean {close[0]}?" if close else ""


def plain_config(file: DeepSpeedFile, settled: Mapping[str, Any]) -> dict[str, Any]:
    """The checked file with `settled` numbers written in: no "auto", whole numbers as int, no optimizer section."""
    config = {
        key: copy.deepcopy(value)
        for key, value in file.config.items()
        if key not in schema.NOT_TAKEN and key not in ("optimizer", "pipeline", "fp16", "bf16", "torch_autocast")
    }
    config = _without_auto(config)
    config.setdefault("zero_optimization", {})
    for key in ("offload_optimizer", "offload_param", "zenflow", "leaf_module"):
        config["zero_optimization"].pop(key, None)
    # Without the first DeepSpeed refuses SGD under ZeRO; without the second it would put its own Adam in SGD's place.
    config |= {"zero_allow_untested_optimizer": True, "zero_force_ds_cpu_optimizer": False}
    config |= {"fp16": {"enabled": False}, "bf16": {"enabled": False}}
    for key, value in settled.items():
        section, _, name = key.rpartition(".")
        (config[section] if section else config)[name] = value
    return config


def _without_auto(node: dict[str, Any]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in node.items():
        if value == "auto" or value is None:
            continue
        if isinstance(value, dict):
            value = _without_auto(value)
        elif isinstance(value, float) and value == int(value) and _integer_key(key):
            value = int(value)
        result[key] = value
    return result


def _integer_key(key: str) -> bool:
    kinds = (schema.TOP.get(key), *(names.get(key) for names in schema.SECTIONS.values()))
    return any(kind in ("positive", "whole") for kind in kinds)
