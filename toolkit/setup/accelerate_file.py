"""Accelerate's file (`accelerate launch --config_file`), read strictly. JSON by its ending, as Accelerate does."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from toolkit.errors import Place, UserError, fault
from toolkit.setup.accelerate_keys import AccelerateFile, check_settings
from toolkit.setup.jsonfile import read_json, read_text

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


def read_yaml(path: str) -> AccelerateFile:
    """The file with every mistake in it; nothing is raised."""
    try:
        settings, lines = _json(path) if path.endswith(".json") else _yaml(path)
    except UserError as error:
        return AccelerateFile(path, faults=list(error.lines))
    file = AccelerateFile(path, settings, lines)
    return replace(file, settings=check_settings(file))


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
    import yaml

    remedy = "correct it, or run `accelerate config`"
    text = read_text(path)
    try:
        depth = 0
        for event in yaml.parse(text, yaml.SafeLoader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > 20:
                raise RecursionError
            if isinstance(event, yaml.AliasEvent):  # nested ones grow beyond any memory when they are shown
                line = event.start_mark.line + 1 if event.start_mark is not None else None
                where, reason = Place(path, line=line), "aliases are not taken"
                raise UserError(fault(where, f"*{event.anchor}", reason, "write the values out"))
        loader = yaml.SafeLoader(text)
        node = loader.get_single_node()
        faults: list[str] = []
        lines: dict[str, int] = {}
        _walk(path, node, "", lines, faults)
        settings = None if node is None else loader.construct_document(node)
    except RecursionError:
        raise UserError(fault(Place(path), "unreadable", "nested too deep", remedy)) from None
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark is not None else (None, None)
        reason = f"not YAML: {error.problem or error.context} at line {line} column {column}"
        raise UserError(fault(Place(path, line=line), "unreadable", reason, remedy)) from None
    except (ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise UserError(fault(Place(path), "unreadable", reason, "give a readable Accelerate YAML")) from None
    if settings is None:
        reason = "the file is empty (line 1 column 1)"
        raise UserError(fault(Place(path, line=1), "", reason, "run `accelerate config` or copy a preset"))
    if not isinstance(settings, dict):
        reason = f"expected a mapping of keys at line 1 column 1, got {type(settings).__name__}"
        raise UserError(fault(Place(path, line=1), settings, reason, "write key: value"))
    if faults:
        raise UserError(*faults)
    return settings, lines


def _walk(path: str, node: Any, above: str, lines: dict[str, int], faults: list[str]) -> None:
    """Notes the line of each key; a key that stands twice counts as a mistake, YAML takes the last."""
    pairs = node.value if getattr(node, "id", "") == "mapping" else ()
    for key, value in pairs:
        if key.id == "scalar":
            name, line = f"{above}{key.value}", key.start_mark.line + 1
            if name in lines:
                reason = f"stands twice, at lines {lines[name]} and {line}"
                faults.append(fault(Place(path, name, line), key.value, reason, "keep one"))
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
