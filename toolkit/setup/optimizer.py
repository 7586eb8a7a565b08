"""The JSON's `optimizer` section by the setup's names, with DeepSpeed's meaning under every strategy."""

import json
import sys
from collections.abc import Mapping
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup.batch import Given
from toolkit.setup.checks import told
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.schema import OPTIMIZERS

# As DeepSpeed takes them: its own two in any case, a class of torch.optim by its exact name.
_TYPES = {"adam": "adam", "adamw": "adamw"}
_TORCH_TYPES = {"SGD": "sgd"}
# Each parameter that is a value of the setup, and what DeepSpeed's optimizers take where it is missing.
_VALUES: dict[str, tuple[str, Any]] = {"lr": ("learning_rate", 1e-3), "weight_decay": ("weight_decay", 0.0)}
_VALUES |= {"momentum": ("momentum", 0.0), "nesterov": ("nesterov", False)}
# With torch_adam DeepSpeed takes torch's own two, whose other defaults are the same; its own, fused or for offload,
# decay by 0.
TORCH_ADAM = {("adamw", "weight_decay"): 1e-2}
# The further numbers of each optimizer, torch's defaults and DeepSpeed's.
_ADAM: dict[str, Any] = {"betas": [0.9, 0.999], "eps": 1e-8}
OPTIONS: dict[str, dict[str, Any]] = {"sgd": {"dampening": 0.0, "nesterov": False}, "adam": _ADAM, "adamw": _ADAM}
# Parameters that not every optimizer has.
_ADAMS = ("adam", "adamw")
_OWNERS: dict[str, tuple[str, ...]] = dict.fromkeys(("momentum", "dampening", "nesterov"), ("sgd",))
_OWNERS |= dict.fromkeys(("betas", "eps", "adam_w_mode", "torch_adam", "bias_correction", "amsgrad"), _ADAMS)
# Another value has no engine: the one right value, and why.
_KERNEL = "the optimizer's kernel is chosen here"
_FIXED: dict[str, tuple[object, str]] = {
    "amsgrad": (False, "DeepSpeed's Adam has none"),
    "bias_correction": (True, "torch's Adam always corrects"),
    "fp32_optimizer_states": (True, "optimizer state is kept in fp32"),
    "set_grad_none": (True, "gradients are dropped after each step in every setup"),
    "decoupled_weight_decay": (False, "that is AdamW"),
    "maximize": (False, "training makes the loss smaller"),
    "foreach": (None, _KERNEL),
    "fused": (None, _KERNEL),
    "capturable": (False, _KERNEL),
    "differentiable": (False, _KERNEL),
}


def read_optimizer(
    file: DeepSpeedFile, written: dict[str, Given], missing: dict[str, Given], faults: list[str], notes: list[str]
) -> None:
    """Adds what the section says: to `written` what binds, to `missing` DeepSpeed's defaults where it names a type."""
    params = file.get("optimizer.params")
    params = params if isinstance(params, Mapping) else {}
    kind = _kind(file, faults, notes)
    if kind is not None:
        written["optimizer"] = Given(kind, file.where("optimizer.type"))
    torch_adam = params.get("torch_adam") is True
    for param, (name, default) in _VALUES.items():
        value, where = params.get(param), file.where(f"optimizer.params.{param}")
        given = value if isinstance(default, bool) and isinstance(value, bool) else _number(value)
        if given is not None:
            written[name] = Given(given, where)
        elif param not in params and kind is not None and kind in _OWNERS.get(param, OPTIMIZERS):
            whose = "torch's default, which torch_adam takes" if torch_adam else "DeepSpeed's default"
            default = TORCH_ADAM.get((kind, param), default) if torch_adam else default
            missing[name] = Given(default, f"{where} ({whose})")


def _kind(file: DeepSpeedFile, faults: list[str], notes: list[str]) -> str | None:
    """--optimizer's name for the type. DeepSpeed's Adam decays as AdamW unless adam_w_mode is false."""
    value = file.get("optimizer.type")
    if not isinstance(value, str):
        return None
    where, kind = file.where("optimizer.type"), _name(value)
    if kind is None:
        exact = next((f"write {name}" for name in _TORCH_TYPES if name.lower() == value.lower()), "")
        reason = "DeepSpeed knows no optimizer of this name" if exact else "not supported yet"
        faults.append(fault(where, value, reason, exact or "one of AdamW, Adam, SGD"))
    elif kind == "adam" and file.get("optimizer.params.adam_w_mode") is not False:
        notes.append(f"{where} {value} is AdamW, as in DeepSpeed; adam_w_mode: false gives Adam")
        kind = "adamw"
    return kind


def _name(kind: str) -> str | None:
    return _TYPES.get(kind.lower()) or _TORCH_TYPES.get(kind)


def settle_options(
    file: DeepSpeedFile | None,
    values: dict[str, Given],
    typed: Mapping[str, Given],
    faults: list[str],
    notes: list[str],
) -> Given:
    """betas and eps of the Adams, dampening and nesterov of SGD, by torch's names; the rest of `optimizer.params` is
    checked against the optimizer that was settled. Takes `nesterov` out of `values`."""
    kind, momentum, nesterov = values["optimizer"].value, values["momentum"], values.pop("nesterov")
    defaults = OPTIONS.get(kind, {})
    options, origin = dict(defaults), "default"
    params = file.get("optimizer.params") if file is not None else None
    # Of an optimizer that is refused nothing more is told.
    if file is not None and isinstance(params, Mapping) and options and not told(file.where("optimizer.type"), faults):
        origin = _read_options(file, params, kind, options, faults)
    if nesterov.value:
        binds = "nesterov" in typed or isinstance(nesterov.origin, Place)
        if "nesterov" not in options:  # in a file it has its line already
            if "nesterov" in typed:
                faults.append(fault(nesterov.origin, True, f"{kind} has none", "leave it out, or choose sgd"))
        elif not options["dampening"] and momentum.value:
            options["nesterov"] = True
            origin = nesterov.origin if origin == "default" else origin
        elif binds:
            reason = "needs a momentum above 0, and dampening 0"
            faults.append(fault(nesterov.origin, True, reason, "correct one of the three"))
        else:
            notes.append(f"nesterov ({nesterov.origin}) is not used: it needs a momentum above 0, and dampening 0")
    return Given(options, origin).over(Given(defaults, "default"))


def _read_options(
    file: DeepSpeedFile, params: Mapping[str, Any], optimizer: str, options: dict[str, Any], faults: list[str]
) -> str:
    """Puts the file's numbers into `options`, and returns where they stand."""
    origin: str = "default"
    for name, value in params.items():
        where, owners = file.where(f"optimizer.params.{name}"), _OWNERS.get(name, OPTIMIZERS)
        if value == "auto":
            continue
        if optimizer not in owners:
            reason = f"{optimizer} has none, only {' and '.join(owners)}"
            faults.append(fault(where, value, reason, "remove it, or choose that optimizer"))
        elif name in _FIXED and value != _FIXED[name][0]:
            right, reason = _FIXED[name]
            faults.append(fault(where, value, reason, f"write {json.dumps(right)}, or remove it"))
        elif name == "adam_w_mode" and value != (optimizer == "adamw"):
            faults.append(fault(where, value, f"the optimizer is {optimizer}", "remove it, or name the other"))
        elif name == "momentum" and (_number(value) or 0.0) >= 1:
            faults.append(fault(where, value, "must be at least 0 and below 1", "correct the value"))
        elif name in options:
            origin = file.where("optimizer.params")
            if name not in _VALUES:
                options[name] = _option(where, name, value, faults)
    return origin


def _option(where: str, name: str, value: Any, faults: list[str]) -> Any:
    """The value as torch takes it. One of a wrong type has its own line already."""
    if name != "betas" or not isinstance(value, list):
        number = _number(value)
        return value if number is None else number
    betas = [number for each in value if (number := _number(each)) is not None and number < 1]
    if len(value) != 2 or len(betas) != 2:
        faults.append(fault(where, value, "expected two numbers, each at least 0 and below 1", "correct the value"))
    return betas


def _number(value: Any) -> float | None:
    """A finite number of 0 or more."""
    right = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    return float(value) if right else None
