"""Keys of Accelerate's file: what each may hold, what oneloop takes, and what Accelerate sets where one is absent."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup import schema
from toolkit.setup.dsjson import switches_nothing_on
from toolkit.setup.shorthand import meant_field
from toolkit.setup.value_kinds import EXPECTED, is_kind, unquoted
from toolkit.setup.words import came, closest, nearest

_DATA: dict[str, Any] = json.loads((Path(__file__).parent / "schemas" / "accelerate.json").read_text(encoding="utf-8"))
VERSION: str = _DATA["version"]
OPTIONS: dict[str, dict[str, Any]] = _DATA["options"]  # of `accelerate launch`: {name: {"kind", "group", "choices"}}
SECTIONS: dict[str, list[str]] = _DATA["sections"]
DEFAULTS: dict[str, Any] = {name: entry.get("default") for name, entry in _DATA["fields"].items()}
# Narrower than Accelerate's own fields, which take any type and fail later or start something else.
_KINDS = {name: entry["kind"] for name, entry in _DATA["fields"].items()} | {
    "distributed_type": "text",
    "num_processes": "positive",
    "num_machines": "positive",
    "machine_rank": "whole",
    "main_process_port": "whole",
    "downcast_bf16": "any",  # `accelerate config` writes 'no'
}
_NULL = {name for name, entry in _DATA["fields"].items() if entry.get("null")} | {"mixed_precision"}
_DEEPSPEED_KINDS = {name: OPTIONS[name]["kind"] for name in SECTIONS["deepspeed_config"]} | {
    "zero_stage": "whole",
    "gradient_accumulation_steps": "positive",
    "zero3_init_flag": "bool",
    "zero3_save_16bit_model": "bool",
}
_AUTO = ("gradient_accumulation_steps", "gradient_clipping")
_OLD_NAMES = ("fp16", "dynamo_backend")
# What earlier versions of Accelerate wrote.
_REMOVED = ("ipex_config", "use_xpu", "use_mps_device", "mpirun_ccl")
_TAKEN = ("NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED")
# Sections of ways to train that this version does not have, and the types that they belong to.
_NOT_TAKEN = {"fsdp_config": "FSDP", "megatron_lm_config": "MEGATRON_LM", "parallelism_config": "", "fp8_config": ""}
_INSTEAD = {
    "FSDP": "write DEEPSPEED and zero_stage: 3 in deepspeed_config, which shards the same",
    "MEGATRON_LM": "write DEEPSPEED, and a pipeline section in its JSON",
}
_TPU = ("tpu_name", "tpu_zone", "tpu_use_cluster", "tpu_use_sudo", "tpu_vm", "tpu_env", "command_file", "commands")


@dataclass(frozen=True)
class AccelerateFile:
    """`settings` holds what passed the checks, old names moved to new ones, without comments.

    `lines` has the line of each key path, `names` leads from a new key to the old name in the file, `faults` has a line
    for each mistake, `notes` what must be said at the start of a run.
    """

    path: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    lines: Mapping[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def where(self, key: str) -> Place:
        name = self.names.get(key, key)
        return Place(self.path, name, self.lines.get(name))

    def get(self, key: str) -> Any:
        """A top-level setting; what Accelerate takes where it is absent."""
        if key == "num_processes" and key not in self.settings and self.settings.get("distributed_type") == "NO":
            return 1
        return self.settings.get(key, DEFAULTS.get(key))

    @property
    def dynamo_backend(self) -> str:
        """Of torch.compile, by Accelerate's names: "NO" where it is off."""
        section = {name.removeprefix("dynamo_"): value for name, value in (self.get("dynamo_config") or {}).items()}
        return str(section.get("backend") or "NO").upper()

    def refuse(self, key: str, value: Any, reason: str, remedy: str) -> None:
        self.faults.append(fault(self.where(key), value, reason, remedy))


def check_settings(file: AccelerateFile) -> dict[str, Any]:
    """The settings of a file as it was read that pass; its `faults`, `notes` and `names` get the rest."""
    settings = dict(file.settings)
    if settings.get("compute_environment", "LOCAL_MACHINE") != "LOCAL_MACHINE":
        _refuse_environment(file, settings["compute_environment"])
        return {}
    _move_old_names(file, settings)
    for name in [name for name in settings if not _top_level_passes(file, name, settings[name])]:
        del settings[name]
    _settle_type(file, settings)
    kind = file.settings.get("distributed_type")
    for name in SECTIONS:
        if isinstance(section := settings.get(name), dict):
            if name not in _NOT_TAKEN or switches_nothing_on(section):
                settings[name] = _section(file, name, section)
            elif kind != _NOT_TAKEN[name]:
                file.refuse(name, section, "not supported yet", "remove the section, or leave it {}")
    for name in _TPU:
        if settings.get(name) and kind not in ("XLA", "TPU"):
            file.refuse(name, settings[name], "TPUs are not supported yet", "remove it")
    if hosts := (settings.get("mpirun_config") or {}).get("mpirun_hostfile"):
        remedy = "remove it, and start with torchrun on each machine"
        file.refuse("mpirun_config.mpirun_hostfile", hosts, "mpirun is not supported yet", remedy)
        settings.pop("num_processes", None)  # how many it would start is no further mistake
    if settings.get("downcast_bf16") not in (None, False, "no", "NO", "false"):
        file.refuse("downcast_bf16", settings["downcast_bf16"], "it acts on TPUs alone", "remove it")
    return settings


def _refuse_environment(file: AccelerateFile, value: Any) -> None:
    if value == "AMAZON_SAGEMAKER":
        file.refuse("compute_environment", value, "not supported yet", "write LOCAL_MACHINE")
    else:
        file.refuse("compute_environment", value, "unknown", "write LOCAL_MACHINE")


def _move_old_names(file: AccelerateFile, settings: dict[str, Any]) -> None:
    """`fp16: true` is mixed_precision, dynamo_backend stands in dynamo_config, as Accelerate moves them."""
    for old, new in (("fp16", "mixed_precision"), ("dynamo_backend", "dynamo_config")):
        if old not in settings:
            continue
        value = settings.pop(old)
        if old == "fp16" and not isinstance(value, bool | None):
            file.refuse(old, value, f"expected true or false, got {came(value)}", "write mixed_precision: fp16")
        elif old == "dynamo_backend" and value is False and settings.get("distributed_type") != "DEEPSPEED":
            _refuse_unquoted(file, old, "NO")
        elif new in settings and (old == "dynamo_backend" or value and settings[new] != "fp16"):
            reason = f"{file.where(new)} says {settings[new]!r}, and Accelerate takes one of the two"
            file.refuse(old, value, reason, f"keep {new}")
        elif old == "fp16":
            told = f"an older name, taken as {new}: fp16" if value else "an older name, nothing is switched on"
            file.notes.append(f"{file.where(old)} {json.dumps(value)}: {told}")
            if value:
                settings[new] = "fp16"
                file.names[new] = old
        elif value is not None:
            settings[new] = {"dynamo_backend": value or "NO"}
            file.names[f"{new}.dynamo_backend"] = file.names[new] = old


def _refuse_unquoted(file: AccelerateFile, key: str, text: str) -> None:
    reason = f"YAML reads {text} without quotes as false, and Accelerate fails on that"
    file.refuse(key, False, reason, f"write '{text}' in quotes")


def _top_level_passes(file: AccelerateFile, name: Any, value: Any) -> bool:
    if name not in _KINDS:
        file.refuse(str(name), value, "unknown key, Accelerate refuses the file", _remedy(str(name), ""))
    elif name == "distributed_type":
        return True
    elif name == "mixed_precision" and value is False:
        _refuse_unquoted(file, name, "no")
    elif value is None and name in _NULL or _passes(value, _KINDS[name]):
        return True
    else:
        _wrong_type(file, name, value, _KINDS[name])
    return False


def _passes(value: Any, kind: str) -> bool:
    """Accelerate hands numbers on as text: 2.0 is no number of processes there."""
    return is_kind(value, kind) and not (isinstance(value, float) and kind in ("positive", "whole"))


def _settle_type(file: AccelerateFile, settings: dict[str, Any]) -> None:
    """distributed_type by Accelerate's names; one that is not taken is removed from `settings`."""
    key, one_of = "distributed_type", "one of 'NO', MULTI_GPU, DEEPSPEED"
    if key not in file.settings:
        file.refuse(key, None, "missing, Accelerate refuses a file without it", f"write {one_of}")
        return
    value = settings[key]
    if value is False and "num_processes" in settings:
        value = settings[key] = "NO"
    if value in _TAKEN:
        return
    del settings[key]
    if value is False:
        reason = "YAML reads NO without quotes as false, and Accelerate then wants num_processes"
        file.refuse(key, value, reason, "write 'NO' in quotes")
    elif not isinstance(value, str):
        _wrong_type(file, key, value, "text")
    elif value in (*_DATA[key], "TPU"):
        file.refuse(key, value, "not supported yet", _INSTEAD.get(value, f"write {one_of}"))
    else:
        file.refuse(key, value, "unknown, Accelerate refuses it", nearest(value, _TAKEN) or f"write {one_of}")


def _section(file: AccelerateFile, section: str, values: dict[Any, Any]) -> dict[str, Any]:
    """The keys that pass. Accelerate takes those of dynamo, fsdp and fp8 without their prefix too."""
    prefix = "" if section == "deepspeed_config" else f"{section.removesuffix('_config')}_"
    passed: dict[str, Any] = {}
    for name, value in values.items():
        key, kind = f"{section}.{name}", _DEEPSPEED_KINDS.get(name) if section == "deepspeed_config" else "any"
        if str(name).startswith("_"):
            continue
        if name not in SECTIONS[section] and f"{prefix}{name}" not in SECTIONS[section]:
            file.refuse(key, value, "unknown key, Accelerate ignores it", _remedy(str(name), section))
        elif value is None or kind is None or _passes(value, kind) or value == "auto" and name in _AUTO:
            passed[name] = value
        else:
            _wrong_type(file, key, value, kind)
    if passed.get("zero3_init_flag"):
        where = file.where(f"{section}.zero3_init_flag")
        file.notes.append(f"{where} true is not used: the script's model is built whole, then sharded")
    return passed


def _wrong_type(file: AccelerateFile, key: str, value: Any, kind: str) -> None:
    remedy = "correct the value"
    if isinstance(value, str) and (right := unquoted(value, kind)) is not None:
        remedy = f"write {json.dumps(right)}, without quotes"
    elif kind == "text" and isinstance(value, int | float) and not isinstance(value, bool):
        remedy = f"write '{value}' in quotes"
    elif isinstance(value, float) and value.is_integer() and kind in ("positive", "whole"):
        remedy = f"write {value:.0f}"
    elif kind == "object":
        remedy = meant_field(key, value) or remedy
    expected = "mapping of keys" if kind == "object" else EXPECTED[kind]
    file.refuse(key, value, f"expected {expected}, got {came(value)}", remedy)


def _remedy(name: str, section: str) -> str:
    """Where a misplaced key belongs, else the nearest name."""
    known = SECTIONS[section] if section else [*_KINDS, *_OLD_NAMES]
    homes = [place for place, keys in SECTIONS.items() if name in keys and place != section]
    if name in _REMOVED:
        return f"remove it, Accelerate {VERSION} has it no more"
    likeness, close = closest(name, known)
    if likeness >= 0.9:
        return close
    if name in _KINDS:
        return f"{name} belongs at the top level"
    if homes:
        return f"{name} belongs under {' or '.join(homes)}"
    if name in schema.SECTIONS[""]:
        return f"{name} belongs in DeepSpeed's JSON, which deepspeed_config.deepspeed_config_file names"
    if name in OPTIONS:
        return f"give accelerate launch --{name}"
    return close or "remove it"
