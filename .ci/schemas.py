"""Writes toolkit/setup/schemas/{accelerate,deepspeed}.json: the keys that the installed versions read.

    python .ci/schemas.py           writes both
    python .ci/schemas.py --check   exits 1 where a file differs from what is installed

A key has `kind`, and `default`, `choices`, `null` (None is taken) and `required` where it has one.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import sys
import types
from pathlib import Path
from typing import Any

from deepspeed_keys import Keys, deepspeed_schema, of_type, plain

FOLDER = Path(__file__).parents[1] / "toolkit" / "setup" / "schemas"


def asked_keys(module: types.ModuleType) -> dict[str, set[str]]:
    """The keys of each `..._config` that `accelerate config` writes as NAME_config["KEY"]: fp8 has names of its own."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name) and node.value.id.endswith("_config"):
            if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
                found.setdefault(node.value.id, set()).add(node.slice.value)
    return found


def accelerate_schema() -> dict[str, Any]:
    import accelerate
    from accelerate.commands.config import cluster, config_args
    from accelerate.commands.launch import launch_command_parser
    from accelerate.utils import ComputeEnvironment, DistributedType, DynamoBackend, PrecisionType

    fields: Keys = {}
    for each in dataclasses.fields(config_args.ClusterConfig):
        fields[each.name] = of_type(each.type)
        if each.default is not dataclasses.MISSING:
            fields[each.name] |= {"null": True} if each.default is None else {"default": plain(each.default)}
    old = {
        node.left.value
        for node in ast.walk(ast.parse(inspect.getsource(config_args.BaseConfig)))
        if isinstance(node, ast.Compare) and isinstance(node.left, ast.Constant) and isinstance(node.left.value, str)
    }
    options: Keys = {}
    groups: dict[str, set[str]] = {}
    for group in launch_command_parser()._action_groups:
        for action in group._group_actions:
            names = [name[2:] for name in action.option_strings if name.startswith("--")]
            if not names or names == ["help"]:
                continue
            kind = {int: "integer", float: "number"}.get(action.type, "text") if action.nargs != 0 else "flag"
            options[names[0].replace("-", "_")] = {"kind": kind, "group": group.title} | (
                {"choices": list(action.choices)} if action.choices else {}
            )
            groups.setdefault(group.title, set()).add(names[0].replace("-", "_"))
    written = asked_keys(cluster)
    sections = {
        "deepspeed_config": groups["DeepSpeed Arguments"],
        "dynamo_config": {name for name in options if name.startswith("dynamo_")},
        "fp8_config": groups["FP8 Arguments"],
        "fsdp_config": groups["FSDP Arguments"],
        "megatron_lm_config": groups["Megatron-LM Arguments"],
        "mpirun_config": groups["MPI Arguments"],
        "parallelism_config": {name for name in options if name.startswith("parallelism_config_")},
    }
    return {
        "version": accelerate.__version__,
        "fields": fields,
        "old_fields": sorted(old - fields.keys()),
        "sagemaker_fields": [each.name for each in dataclasses.fields(config_args.SageMakerConfig)],
        "sections": {name: sorted(keys | written.get(name, set())) for name, keys in sections.items()},
        "options": options,
        "distributed_type": [each.value for each in DistributedType],
        "compute_environment": [each.value for each in ComputeEnvironment],
        "mixed_precision": [each.value for each in PrecisionType],
        "dynamo_backend": [each.value for each in DynamoBackend],
    }


def texts() -> dict[str, str]:
    """{file name: its text}."""
    found = {"accelerate.json": accelerate_schema(), "deepspeed.json": deepspeed_schema()}
    return {name: json.dumps(schema, indent=1, sort_keys=True) + "\n" for name, schema in found.items()}


def main() -> int:
    differ = 0
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        path = FOLDER / name
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.is_file() or path.read_text(encoding="utf-8") != text:
            print(f"{path} differs from what is installed: run python .ci/schemas.py")
            differ = 1
    return differ


if __name__ == "__main__":
    sys.exit(main())
