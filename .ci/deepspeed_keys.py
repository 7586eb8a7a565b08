"""The keys of DeepSpeed's JSON, read out of the installed package.

Its sections are pydantic models, or dicts that are read key by key: those keys stand in its source alone.
"""

from __future__ import annotations

import ast
import enum
import importlib
import inspect
import types
import typing
from typing import Any

Keys = dict[str, dict[str, Any]]
READERS = ("get_scalar_param", "get_dict_param", "get_list_param", "get_communication_data_type")
# A module of DeepSpeed, and the section that each of its variables (or a function's own) holds.
DICTS: dict[str, dict[str, str]] = {
    "runtime.config": {
        "param_dict": "",
        "config": "",
        "checkpoint_params": "checkpoint",
        "par_write_params": "checkpoint.parallel_write",
        "data_types_params": "data_types",
    },
    "runtime.zero.config": {"param_dict": ""},
    "runtime.precision_config": {"param_dict": ""},
    "datastates.config": {"param_dict": ""},
    "runtime.activation_checkpointing.config": {"act_chkpt_config_dict": "activation_checkpointing"},
    "runtime.model_checkpointing.config": {"checkpoint_dict": "checkpoint", "writer_dict": "checkpoint.writer"},
    "runtime.swap_tensor.aio_config": {"aio_dict": "aio"},
    "profiling.config": {"flops_profiler_dict": "flops_profiler"},
    "autotuning.config": {"autotuning_dict": "autotuning", "get_model_info_config.param_dict": "autotuning"},
    "module_inject.auto_ep_config": {"param_dict": "expert_parallel"},
}
MODELS = {
    "zero_optimization": "runtime.zero.config.DeepSpeedZeroConfig",
    "fp16": "runtime.precision_config.DeepSpeedFP16Config",
    "bf16": "runtime.precision_config.DeepSpeedBF16Config",
    "comms_logger": "comm.config.CommsLoggerConfig",
    "tensorboard": "monitor.config.TensorBoardConfig",
    "wandb": "monitor.config.WandbConfig",
    "csv_monitor": "monitor.config.CSVConfig",
    "comet": "monitor.config.CometConfig",
    "compile": "compile.config.CompileConfig",
    "hybrid_engine": "runtime.config.HybridEngineConfig",
    "tensor_parallel": "runtime.tensor_parallel.config.TPTrainingConfig",
    "timers.throughput": "utils.config.DeepSpeedThroughputTimerConfig",
    "weight_quantization": "inference.config.WeightQuantConfig",
}
# Keys that DeepSpeed takes out of optimizer.params before it builds its Adam.
ADAM_KEYS = {"torch_adam": False, "adam_w_mode": True, "fp32_optimizer_states": True}
OPTIMIZERS = {
    "adam": ("deepspeed.ops.adam.FusedAdam", "deepspeed.ops.adam.DeepSpeedCPUAdam", "torch.optim.Adam"),
    "adamw": ("deepspeed.ops.adam.FusedAdam", "deepspeed.ops.adam.DeepSpeedCPUAdam", "torch.optim.AdamW"),
    "sgd": ("torch.optim.SGD",),
    "adagrad": ("torch.optim.Adagrad",),
    "lamb": ("deepspeed.ops.lamb.FusedLamb",),
    "lion": ("deepspeed.ops.lion.FusedLion",),
}
KINDS = {bool: "bool", int: "integer", float: "number", str: "text", list: "list", tuple: "list", dict: "object"}


def find(path: str) -> Any:
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def plain(value: Any) -> Any:
    """A default as JSON has it."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value if isinstance(value, bool | int | float | str | dict) else None


def of_default(value: Any) -> dict[str, Any]:
    kind = next((name for type_, name in KINDS.items() if type(value) is type_), "any")
    entry: dict[str, Any] = {"kind": kind}
    if isinstance(value, enum.Enum):
        entry = of_type(type(value))
    return entry | ({"null": True} if value is None else {"default": plain(value)})


def of_type(annotation: Any, limits: tuple[Any, ...] = ()) -> dict[str, Any]:
    """The kind that an annotation names; an integer with a lower limit is `positive` or `whole`."""
    options = typing.get_args(annotation)
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        inner = [each for each in options if each is not type(None)]
        entry = of_type(inner[0], limits) if len(inner) == 1 else {"kind": "any"}
        return entry | ({"null": True} if type(None) in options else {})
    if typing.get_origin(annotation) is typing.Literal:
        return {"kind": "text", "choices": list(options)}
    if inspect.isclass(annotation) and issubclass(annotation, enum.Enum):
        values = [each.value for each in annotation]
        if issubclass(annotation, str):
            return {"kind": "text", "choices": values}
        return {"kind": "whole"} if issubclass(annotation, int) else {"kind": "text"}
    kind = KINDS.get(typing.get_origin(annotation) or annotation, "any")
    if inspect.isclass(annotation) and annotation.__name__ == "Path":
        kind = "text"
    if is_model(annotation):
        kind = "object"
    least = [getattr(limit, "gt", None) for limit in limits], [getattr(limit, "ge", None) for limit in limits]
    if kind == "integer" and 0 in least[0]:
        kind = "positive"
    elif kind == "integer" and 0 in least[1]:
        kind = "whole"
    return {"kind": kind}


def is_model(annotation: Any) -> bool:
    return inspect.isclass(annotation) and hasattr(annotation, "model_fields")


def add_model(sections: dict[str, Keys], deprecated: dict[str, str], section: str, model: Any) -> None:
    """The fields of a pydantic model under the names that a file has, and those of the models in them.

    `deprecated` gets the second name of a field that has two, as it is taken too.
    """
    keys = sections.setdefault(section, {})
    for field, info in model.model_fields.items():
        name, extra = info.alias or field, info.json_schema_extra or {}
        if name != field:
            deprecated[f"{section}.{field}"] = name
        keys[name] = of_type(info.annotation, tuple(info.metadata))
        if not info.is_required() and info.default_factory is None and info.default is not None:
            keys[name]["default"] = plain(info.default)
        if extra.get("deprecated"):
            deprecated[f"{section}.{name}"] = extra.get("new_param", "")
        for inner in (info.annotation, *typing.get_args(info.annotation)):
            if is_model(inner):
                add_model(sections, deprecated, f"{section}.{name}", inner)


def add_reads(sections: dict[str, Keys], module: types.ModuleType, variables: dict[str, str]) -> None:
    """Each key that a module's source reads from one of `variables`: d.get(K), d[K], K in d, get_scalar_param(d, K)."""
    for function in ast.walk(ast.parse(inspect.getsource(module))):
        if isinstance(function, ast.FunctionDef):
            own = {name.removeprefix(f"{function.name}."): section for name, section in variables.items()}
            names = dict(vars(module))
            arguments = function.args.args[-len(function.args.defaults) :] if function.args.defaults else []
            for argument, default in zip(arguments, function.args.defaults, strict=True):
                names[argument.arg] = value_of(default, names)
            for holder, key, default in reads(function):
                where, name = section_of(holder, own, names), value_of(key, names)
                if where is not None and isinstance(name, str):
                    entry = of_default(value_of(default, names))
                    known = sections.setdefault(where, {}).setdefault(name, entry)
                    if known["kind"] == "any":
                        known |= entry


def value_of(node: ast.expr | None, names: dict[str, Any]) -> Any:
    try:
        return None if node is None else eval(compile(ast.Expression(node), "", "eval"), names)
    except Exception:  # a name that has its value at run time alone
        return None


def section_of(node: ast.expr, variables: dict[str, str], names: dict[str, Any]) -> str | None:
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        return variables.get(node.attr.lstrip("_"))  # self._param_dict
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "keys":
        return section_of(node.func.value, variables, names)
    if isinstance(node, ast.Subscript):
        outer, key = section_of(node.value, variables, names), value_of(node.slice, names)
        return f"{outer}.{key}".strip(".") if outer is not None and isinstance(key, str) else None
    return None


def reads(function: ast.FunctionDef) -> typing.Iterator[tuple[ast.expr, ast.expr, ast.expr | None]]:
    """(dict, key, default) of each expression that may read a key."""
    for node in ast.walk(function):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in READERS:
            if len(node.args) > 1:
                yield node.args[0], node.args[1], node.args[2] if len(node.args) > 2 else None
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get":
            yield node.func.value, node.args[0], node.args[1] if len(node.args) > 1 else None
        elif isinstance(node, ast.Subscript):
            yield node.value, node.slice, None
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In):
            yield node.comparators[0], node.left, None


def signature(*classes: Any) -> Keys:
    """Parameters of the constructors, but for the optimizer or the weights that come first."""
    keys: Keys = {}
    for each in classes:
        for name, parameter in list(inspect.signature(each.__init__).parameters.items())[2:]:
            empty = parameter.default is inspect.Parameter.empty
            entry = {"kind": "any", "required": True} if empty else of_default(parameter.default)
            if entry["kind"] in ("any", "integer") and parameter.annotation in KINDS:
                entry["kind"] = KINDS[parameter.annotation]
            keys.setdefault(name, entry)
    return keys


def deepspeed_schema() -> dict[str, Any]:
    import deepspeed
    from deepspeed.runtime import config, lr_schedules
    from deepspeed.runtime.data_pipeline.config import get_data_efficiency_config

    sections: dict[str, Keys] = {"": {}}
    deprecated: dict[str, str] = {}
    for name, path in MODELS.items():
        add_model(sections, deprecated, name, find(f"deepspeed.{path}"))
    for name, variables in DICTS.items():
        add_reads(sections, importlib.import_module(f"deepspeed.{name}"), variables)
    defaults = get_data_efficiency_config({})
    sections["data_efficiency"] = {name: of_default(value) for name, value in defaults.items()}
    # The pipeline engine reads one more key out of this dict, whose default it sets there.
    pipeline = {**config.get_pipeline_config({}), "use_reentrant": True}
    sections["pipeline"] = {name: of_default(value) for name, value in pipeline.items()}
    removed = [*config._REMOVED_TOP_LEVEL_CONFIG_KEYS]
    removed += [f"zero_optimization.{name}" for name in config._REMOVED_ZERO_CONFIG_KEYS]
    top = sections.pop("")
    for path in sorted(sections):
        above, _, name = path.rpartition(".")
        keys = sections.setdefault(above, {}) if above else top
        keys[name] = {"kind": "object"} | ({"null": True} if keys.get(name, {}).get("null") else {})
    for name in {path.partition(".")[0] for path in sections}:
        top[name] = {"kind": "object"}
    optimizers = {name: signature(*map(find, paths)) for name, paths in OPTIMIZERS.items()}
    for keys in optimizers.values():
        for entry in keys.values():
            entry["kind"] = "number" if entry["kind"] == "integer" else entry["kind"]
    for name in ("adam", "adamw"):
        optimizers[name] |= {key: of_default(value) for key, value in ADAM_KEYS.items()}
        del optimizers[name]["adamw_mode"]  # DeepSpeed gives it to its CPU Adam itself
    return {
        "version": deepspeed.__version__.partition("+")[0],
        "top": top,
        "sections": sections,
        "deprecated": deprecated,
        "removed": sorted(removed),
        "optimizer_names": sorted(config.DEEPSPEED_OPTIMIZERS),
        "optimizers": optimizers,
        "schedulers": {name: signature(getattr(lr_schedules, name)) for name in lr_schedules.VALID_LR_SCHEDULES},
    }
