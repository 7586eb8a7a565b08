"""Accelerate's file (`accelerate launch --config_file`), read strictly. JSON by its ending, as Accelerate does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import Any

from toolkit.errors import Place, UserError, fault
from toolkit.setup.accelerate_keys import AccelerateFile, check_settings
from toolkit.setup.jsonfile import LARGEST, read_json, read_text
from toolkit.setup.machines import check_machines
from toolkit.setup.words import type_of

# Where one of the script's own arguments says the same.
_OURS = {"gradient_accumulation_steps": "--gradient_accumulation_steps", "gradient_clipping": "--max_grad_norm"}
_OPTIONS_NOT_TAKEN = (
    "fsdp_",
    "fp8_",
    "megatron_lm_",
    "parallelism_config_",
    "use_parallelism_config",
    "use_megatron_lm",
)


def read_yaml(path: str, options: Mapping[str, str] = MappingProxyType({})) -> AccelerateFile:
    """The file with every mistake in it; nothing is raised.

    Args:
        options: of the `accelerate launch` that reads it, which win over the file: an address that stands there is not
            missing here.
    """
    try:
        settings, lines = _json(path) if path.endswith(".json") else _yaml(path)
    except UserError as error:
        return AccelerateFile(path, faults=list(error.lines))
    file = AccelerateFile(path, settings, lines)
    file = replace(file, settings=check_settings(file))
    check_machines(file, options)
    return file


def _json(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    settings, lines = read_json(path)
    try:
        with open(path, encoding="utf-8") as file:
            json.load(file)
    except ValueError as error:
        reason = f"Accelerate reads JSON without comments: {error}"
        raise UserError(fault(Place(path), "not strict", reason, "write it as YAML")) from None
    return settings, lines


def _yaml(path: str) -> tuple[dict[str, Any], dict[str, int]]:
    """The mapping, and the line of each key path."""
    return _parsed(path, read_text(path))


@lru_cache(maxsize=1)  # `oneloop check` reads the file for the launcher and for the script
def _parsed(path: str, text: str) -> tuple[dict[str, Any], dict[str, int]]:
    import yaml

    remedy = "correct it, or run `accelerate config`"
    faults: list[str] = []
    lines: dict[str, int] = {}
    try:
        loader = _loader(path)(text)
        node = loader.get_single_node()
        _walk(path, node, "", lines, faults)
        settings = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise UserError(fault(Place(path), "unreadable", "nested too deep", remedy)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, spot = (mark.line + 1, f" at line {mark.line + 1} column {mark.column + 1}") if mark else (None, "")
        reason = f"not YAML: {error.problem or error.context}{spot}"
        raise UserError(fault(Place(path, line=line), "unreadable", reason, remedy)) from None
    except yaml.reader.ReaderError as error:  # its position counts letters
        before = text[: error.position]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        reason = f"character {ord(text[error.position]):#06x} has no place in YAML, at line {line} column {column}"
        raise UserError(fault(Place(path, line=line), "unreadable", reason, remedy)) from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(fault(Place(path), "unreadable", reason, "give a readable Accelerate YAML")) from None
    if node is None:
        reason = "the file is empty (line 1 column 1)"
        raise UserError(fault(Place(path, line=1), "", reason, "run `accelerate config` or copy a preset"))
    if not isinstance(settings, dict):
        line, column = node.start_mark.line + 1, node.start_mark.column + 1
        reason = f"expected a mapping of keys at line {line} column {column}, got {type_of(settings)}"
        raise UserError(fault(Place(path, line=line), settings, reason, "write key: value"))
    if faults:
        raise UserError(*faults)
    return settings, lines


def _loader(path: str) -> Any:
    """PyYAML's safe loader, which Accelerate reads with, without aliases and deep nesting."""
    import yaml

    class Loader(yaml.SafeLoader):
        depth = 0

        def whole(self, node: Any) -> int:
            try:
                value = self.construct_yaml_int(node)
            except ValueError:  # more than 4,300 digits
                value = LARGEST + 1
            if abs(value) > LARGEST:  # Python does not even show one of thousands of digits
                line, column = node.start_mark.line + 1, node.start_mark.column + 1
                shown = node.value if len(node.value) <= 20 else f"{node.value[:10]}... ({len(node.value)} characters)"
                reason = f"is more than 64 bits hold at line {line} column {column}"
                raise UserError(fault(Place(path, line=line), shown, reason, "write a smaller number"))
            return int(value)

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):  # nested ones grow beyond any memory when they are shown
                event = self.peek_event()
                where = Place(path, line=event.start_mark.line + 1)
                raise UserError(fault(where, f"*{event.anchor}", "aliases are not taken", "write the values out"))
            self.depth += 1
            if self.depth > 20:
                raise RecursionError
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    Loader.add_constructor("tag:yaml.org,2002:int", Loader.whole)
    return Loader


def _walk(path: str, node: Any, above: str, lines: dict[str, int], faults: list[str]) -> None:
    """Notes the line of each key; a key that stands twice counts as a mistake, YAML takes the last."""
    pairs = node.value if getattr(node, "id", "") == "mapping" else ()
    for key, value in pairs:
        if key.id == "scalar":
            name, line = f"{above}{key.value}", key.start_mark.line + 1
            if name in lines:
                reason = f"stands twice, at lines {lines[name]} and {line}"
                shown = value.value if value.id == "scalar" else key.value
                faults.append(fault(Place(path, name, line), shown, reason, "keep one"))
            lines.setdefault(name, line)
            _walk(path, value, f"{name}.", lines, faults)


def unused_options(
    options: Mapping[str, str], fields: Mapping[str, Any], file: AccelerateFile, names: set[str]
) -> list[str]:
    """DeepSpeed's options (`names`) of a launch without DeepSpeed, which Accelerate takes and then drops.

    Args:
        options: of `accelerate launch`, before the script's name.
        fields: of the deepspeed_config of `file`.
    """
    reason = "a launch without DeepSpeed drops it"
    lines = []
    for name in options:
        if name in names:
            ours = _OURS.get(name)
            same = "put it" if ours == f"--{name}" else f"put {ours}"
            remedy = f"{same} after the script's name" if ours else "add --use_deepspeed, or leave it out"
            lines.append(fault(f"accelerate launch --{name}", options[name], reason, remedy))
    remedy = "write distributed_type: DEEPSPEED, or remove it"
    return lines + [fault(file.where(f"deepspeed_config.{name}"), fields[name], reason, remedy) for name in fields]


def other_options(options: Mapping[str, str]) -> list[str]:
    """Options for ways to train that this version does not have."""
    return [
        fault(f"accelerate launch --{name}", options[name], "not part of this version", "leave it out")
        for name in options
        if name.startswith(_OPTIONS_NOT_TAKEN)
    ]
