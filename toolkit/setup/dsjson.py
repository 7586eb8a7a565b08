"""DeepSpeed's JSON: one strict parser and one check for both launchers, so a file is taken or refused alike by each.

DeepSpeed itself reads hjson (comments, trailing commas), Accelerate reads json and takes the last of two equal keys.
"""

import copy
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup import schema
from toolkit.setup.jsonfile import read_json
from toolkit.setup.shorthand import meant
from toolkit.setup.value_kinds import EXPECTED, is_kind, unquoted
from toolkit.setup.words import came, closest

# Sections whose keys are the parameters of the class that `type` names.
PARAMS: dict[str, dict[str, schema.Keys]] = {
    "optimizer.params": {name: schema.OPTIMIZER_PARAMS[name] for name in schema.OPTIMIZERS},
    "scheduler.params": schema.SCHEDULER_PARAMS,
}


@dataclass(frozen=True)
class DeepSpeedFile:
    """`config` in DeepSpeed's form with its source; `names` maps a key path to the name the user wrote it under.

    `places` are those of values that "auto" took from another file.
    """

    path: str
    config: Mapping[str, Any]
    names: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)  # of the names
    places: Mapping[str, Place] = field(default_factory=dict)

    def where(self, key: str) -> Place:
        name = self.names.get(key, key)
        return self.places.get(key) or Place(self.path, name, self.lines.get(name))

    def get(self, key: str) -> Any:
        """The value at a dotted key path; None where it is absent or "auto"."""
        value = self._raw(key)
        return None if value == "auto" else value

    def _raw(self, key: str) -> Any:
        node: Any = self.config
        for name in key.split("."):
            if not isinstance(node, Mapping) or name not in node:
                return None
            node = node[name]
        return node

    def filled(self, key: str, value: Any, place: Place) -> "DeepSpeedFile":
        """The same with this value where the key is "auto"."""
        if self._raw(key) != "auto":
            return self
        config = copy.deepcopy(dict(self.config))
        *sections, last = key.split(".")
        node: Any = config
        for section in sections:
            node = node[section]
        node[last] = value
        return replace(self, config=config, places={**self.places, key: place})

    def without(self, names: Iterable[str]) -> "DeepSpeedFile":
        """The same without the keys of these names, as the user wrote them."""
        config = copy.deepcopy(dict(self.config))
        renamed = {name: key for key, name in self.names.items()}
        renamed |= {place.key: key for key, place in self.places.items()}
        for name in names:
            *sections, last = renamed.get(name, name).split(".")
            node: Any = config
            for section in sections:
                node = node.get(section) if isinstance(node, dict) else None
            if isinstance(node, dict):
                node.pop(last, None)
        return replace(self, config=config)


def read_deepspeed_json(path: str) -> DeepSpeedFile:
    """The file as it stands; see `read_json` for what is refused."""
    config, lines = read_json(path)
    return DeepSpeedFile(path, config, lines=lines)


def check_keys(file: DeepSpeedFile) -> list[str]:
    """One line for each key that is unknown, misplaced, removed, of the wrong type, or not taken by this version.

    Keys that begin with `_` are comments, at every level.
    """
    return _check_section(file, "", file.config, schema.SECTIONS[""], taken=True)


def _check_section(
    file: DeepSpeedFile, section: str, values: Mapping[str, Any], known: schema.Keys, taken: bool
) -> list[str]:
    faults: list[str] = []
    for name, value in values.items():
        if not name.startswith("_"):
            faults += _check_key(file, f"{section}.{name}" if section else name, value, known, taken)
    return faults


def _check_key(file: DeepSpeedFile, key: str, value: Any, known: schema.Keys, taken: bool) -> list[str]:
    where, name = file.where(key), key.rpartition(".")[2]
    if key in schema.REMOVED:
        reason = f"DeepSpeed {schema.VERSION} has removed this feature and rejects the key"
        # What is switched off has nothing that could take its place.
        return [fault(where, value, reason, "remove it" if switches_nothing_on(value) else schema.REMOVED[key])]
    if key in schema.RENAMED:
        return [fault(where, value, "an older name", f"write {schema.RENAMED[key]}")]
    if name not in known:
        return [_unknown(file, key, value, known)]
    kind = known[name]["kind"]
    faults: list[str] = []
    if key in schema.NOT_TAKEN:
        taken = False
        if not switches_nothing_on(value, schema.SECTIONS.get(key, {})):
            faults = [fault(where, value, *schema.NOT_TAKEN[key])]
    if value is None and (known[name].get("null") or not taken):
        return faults
    if value == "auto" and (key in schema.AUTO or not taken):
        return faults
    if value == "auto" and kind != "any":
        remedy = meant(key, value, keys_in(file, key) or {}) or "write a value or remove the key"
        return [fault(where, value, 'there is no rule for "auto" here', remedy)]
    if not is_kind(value, kind):
        return faults or [_wrong_type(file, key, value, kind)]
    if key in schema.FIXED and value != schema.FIXED[key][0]:
        right, reason = schema.FIXED[key]
        return [fault(where, value, reason, f"write {json.dumps(right)} or remove the key")]
    if key == "optimizer.type" and (instead := schema.REMOVED_OPTIMIZERS.get(value.lower())):
        reason = f"DeepSpeed {schema.VERSION} has removed the 1-bit optimizers"
        return [fault(where, value, reason, f"write {instead}, without the parameters of the 1-bit one")]
    inner = keys_in(file, key)
    return faults + (_check_section(file, key, value, inner, taken) if inner is not None else [])


def keys_in(file: DeepSpeedFile, section: str) -> schema.Keys | None:
    """The keys that a section may have; None where it is free-form, as the parameters of an unknown optimizer are.

    Which of the three optimizers has a parameter is told by `toolkit.setup.optimizer`.
    """
    if section not in PARAMS:
        return schema.SECTIONS.get(section)
    kind = file.get(section.replace("params", "type"))
    if not isinstance(kind, str):
        return _union(PARAMS[section])
    if section == "scheduler.params":
        return schema.SCHEDULER_PARAMS.get(kind)
    return _union(PARAMS[section]) if kind.lower() in schema.OPTIMIZERS else schema.OPTIMIZER_PARAMS.get(kind.lower())


def _union(kinds: Mapping[str, schema.Keys]) -> schema.Keys:
    return {name: entry for keys in kinds.values() for name, entry in keys.items()}


def switches_nothing_on(section: Any, known: schema.Keys | None = None) -> bool:
    """True for null, {}, {"enabled": false, ...}, {"device": "none"} and sections of false, empty or default values."""
    if not isinstance(section, Mapping):
        return not section
    if section.get("enabled") is False or section.get("device") in ("none", "auto"):
        return True
    defaults = {name: str(entry.get("default")).lower() for name, entry in (known or {}).items() if name != "enabled"}
    return not any(
        value and value != "auto" and str(value).lower() != defaults.get(name)
        for name, value in section.items()
        if not str(name).startswith("_")
    )


def _wrong_type(file: DeepSpeedFile, key: str, value: Any, kind: str) -> str:
    remedy = "write a value or remove the key" if value is None else "correct the value"
    if isinstance(value, str) and (right := unquoted(value, kind)) is not None:
        remedy = f"write {json.dumps(right)}, without quotes"
    elif kind == "object":
        remedy = meant(key, value, keys_in(file, key) or {}) or remedy
    return fault(file.where(key), value, f"expected {EXPECTED[kind]}, got {came(value)}", remedy)


def _unknown(file: DeepSpeedFile, key: str, value: Any, known: schema.Keys) -> str:
    """Where a misplaced key belongs, else the nearest name."""
    section, _, name = key.rpartition(".")
    where, reason = file.where(key), "unknown key, it would be ignored"
    owners = [each for each, keys in schema.SCHEDULER_PARAMS.items() if section == "scheduler.params" and name in keys]
    if owners:
        reason = f"{file.get('scheduler.type')} has none, only {' and '.join(owners)}"
        return fault(where, value, reason, "remove it, or choose that schedule")
    likeness, close = closest(name, known)
    if likeness >= 0.9:
        return fault(where, value, reason, close)
    if name in schema.SECTIONS[""]:
        return fault(where, value, reason, f"{name} belongs at the top level")
    homes = [place for place in _HOMES.get(name, ()) if place != section]
    homes = [place for place in homes if place.partition(".")[0] not in schema.NOT_TAKEN] or homes
    if 0 < len(homes) <= 2:
        return fault(where, value, reason, f"{name} belongs under {' or '.join(homes)}")
    return fault(where, value, reason, schema.ELSEWHERE.get(name) or close or "remove it")


def _sections_of_each() -> dict[str, list[str]]:
    homes: dict[str, list[str]] = {}
    for place, keys in (schema.SECTIONS | {place: _union(kinds) for place, kinds in PARAMS.items()}).items():
        for name in keys if place else ():
            homes.setdefault(name, []).append(place)
    return homes


_HOMES = _sections_of_each()  # the sections below the top level that have a key of this name


def plain_config(file: DeepSpeedFile, settled: Mapping[str, Any]) -> dict[str, Any]:
    """The checked file with `settled` numbers written in: no "auto", whole numbers as int, no optimizer section."""
    config = {
        key: copy.deepcopy(value)
        for key, value in file.config.items()
        if key not in schema.NOT_TAKEN
        and key not in ("optimizer", "scheduler", "pipeline", "fp16", "bf16", "torch_autocast")
    }
    config = _without_auto(config, "")
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


def _without_auto(node: Mapping[str, Any], section: str) -> dict[str, Any]:
    """Without "auto", null and comments; whole numbers as int."""
    result: dict[str, Any] = {}
    known = schema.SECTIONS.get(section, {})
    for key, value in node.items():
        if value == "auto" or value is None or key.startswith("_"):
            continue
        if isinstance(value, Mapping):
            value = _without_auto(value, f"{section}.{key}".lstrip("."))
        elif isinstance(value, float) and known.get(key, {}).get("kind") in ("positive", "whole", "integer"):
            value = int(value)
        result[key] = value
    return result
