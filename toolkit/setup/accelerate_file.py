"""Accelerate's YAML, read strictly: what it would drop, or do and oneloop does not, is refused."""

from collections.abc import Mapping
from typing import Any

from toolkit.errors import fault

# Sections that Accelerate reads, each for a way to train that this version does not have.
_SECTIONS_NOT_TAKEN = ("fsdp_config", "fp8_config", "megatron_lm_config", "parallelism_config", "ipex_config")
_OPTIONS_NOT_TAKEN = (
    "fsdp_",
    "fp8_",
    "megatron_lm_",
    "parallelism_config_",
    "use_parallelism_config",
    "use_megatron_lm",
)
# Where one of the script's own arguments says the same.
_OURS = {"gradient_accumulation_steps": "--gradient_accumulation_steps", "gradient_clipping": "--max_grad_norm"}


def read_yaml(path: str) -> tuple[dict[str, Any], list[str]]:
    """The settings and a line for each mistake in them; a key that stands twice counts as one, YAML takes the last."""
    import yaml

    faults: list[str] = []

    class Loader(yaml.SafeLoader):
        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            lines: dict[str, int] = {}
            for key, _ in node.value:
                line = key.start_mark.line + 1
                if key.value in lines and isinstance(key, yaml.ScalarNode):
                    reason = f"stands twice, at lines {lines[key.value]} and {line}"
                    faults.append(fault(f"{path}: {key.value}", key.value, reason, "keep one"))
                if isinstance(key, yaml.ScalarNode):
                    lines[key.value] = line
            found: dict[Any, Any] = super().construct_mapping(node, deep)
            return found

    try:
        with open(path, encoding="utf-8") as file:
            settings = yaml.load(file, Loader)
    except RecursionError:
        return {}, [fault(path, "unreadable", "nested too deep", "give a readable Accelerate YAML")]
    except (OSError, ValueError, yaml.YAMLError) as error:
        return {}, [fault(path, "unreadable", " ".join(str(error).split()), "give a readable Accelerate YAML")]
    if not isinstance(settings, dict):
        return {}, [fault(path, settings, "expected a mapping of keys", "run `accelerate config` or copy a preset")]
    for name in _SECTIONS_NOT_TAKEN:
        if settings.get(name):
            faults.append(
                fault(
                    f"{path}: {name}", settings[name], "not part of this version", "remove the section, or leave it {}"
                )
            )
    fields = settings.get("deepspeed_config") or {}
    if not isinstance(fields, dict):
        faults.append(fault(f"{path}: deepspeed_config", fields, "expected a mapping of keys", "correct it"))
        return {}, faults
    return settings, faults


def unused_options(options: Mapping[str, str], fields: Mapping[str, Any], where: str, names: set[str]) -> list[str]:
    """DeepSpeed's options (`names`) of a launch without DeepSpeed, which Accelerate takes and then drops.

    Args:
        options: of `accelerate launch`, before the script's name.
        fields: of the YAML's deepspeed_config; `where` names that section.
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
    return lines + [fault(f"{where}.{name}", fields[name], reason, remedy) for name in fields]


def other_options(options: Mapping[str, str]) -> list[str]:
    """Options for ways to train that this version does not have."""
    return [
        fault(f"accelerate launch --{name}", options[name], "not part of this version", "leave it out")
        for name in options
        if name.startswith(_OPTIONS_NOT_TAKEN)
    ]
