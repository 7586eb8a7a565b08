"""A section that is given as one value ("optimizer": "AdamW"): what was meant by it, for the line that refuses it."""

import json
from typing import Any

from toolkit.setup import schema
from toolkit.setup.value_kinds import is_kind, unquoted

# The key of each section that such a value is; "enabled" of the others.
_LEADING = {
    "optimizer": "type",
    "scheduler": "type",
    "optimizer.params": "lr",
    "zero_optimization": "stage",
    "zero_optimization.offload_optimizer": "device",
    "zero_optimization.offload_param": "device",
    "pipeline": "stages",
}
_SWITCHES: dict[str, dict[bool, Any]] = {
    "enabled": {True: True, False: False},
    "stage": {True: 1, False: 0},
    "device": {True: "cpu", False: "none"},
}
# Sections of Accelerate's file, by the type of the value.
_FIELDS = {
    ("deepspeed_config", str): "deepspeed_config_file",
    ("deepspeed_config", int): "zero_stage",
    ("dynamo_config", str): "dynamo_backend",
}


def meant(section: str, value: Any, known: schema.Keys) -> str:
    """ "write {"type": "AdamW"}", "remove the section" where it is off or not taken, or "" where it is not plain.

    Args:
        section: of DeepSpeed's JSON.
        known: the keys that it may have.
    """
    name = _LEADING.get(section, "enabled")
    key = f"{section}.{name}"
    if value is None:
        return ""
    if value == "auto":
        return f'write {{"{name}": "auto"}}' if key in schema.AUTO else ""
    if section == "torch_autocast" and value in ("bfloat16", "float16"):
        return f"write {json.dumps({'enabled': True, 'dtype': value})}"
    inner = _inner(name, value, known[name]) if name in known else None
    if inner is None:
        return "" if value else "remove the section"
    return f"write {json.dumps({name: inner})}" if inner == schema.FIXED.get(key, (inner,))[0] else "remove the section"


def _inner(name: str, value: Any, entry: dict[str, Any]) -> Any:
    """The value of the section's key; None where it is none of that key's kind."""
    kind = entry["kind"]
    if isinstance(value, str):
        bare = [right for each in (kind, "bool") if (right := unquoted(value, each)) is not None]
        value = bare[0] if bare else value
    if isinstance(value, bool) or name == "enabled" and value in (0, 1):
        value = _SWITCHES.get(name, {}).get(bool(value))
    if value in (None, "") or not is_kind(value, kind) or value not in entry.get("choices", [value]):
        return None
    if name == "stage" and value > 3:
        return None
    return int(value) if kind in ("positive", "whole") else value


def meant_field(section: str, value: Any) -> str:
    """The same for a section of Accelerate's file."""
    if section not in ("deepspeed_config", "dynamo_config"):
        return "remove it, not supported yet"
    field = _FIELDS.get((section, type(value)))
    if field and value not in ("", "none"):
        return f"write `{section}:` with `{field}: {value}` under it"
    return "remove it" if value in ("", "none", False) else ""
