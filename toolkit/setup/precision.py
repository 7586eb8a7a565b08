"""Precision: what the arguments, the YAML and the JSON's sections ask for, and which format the weights get.

Under one process and DDP bf16 and fp16 are autocast: fp32 weights, products in 16 bit. DeepSpeed's `bf16` and `fp16`
sections hold the weights themselves in 16 bit, with fp32 masters in the optimizer. Its `torch_autocast` section
trains as DDP does.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import fault
from toolkit.setup.batch import Given
from toolkit.setup.dsjson import DeepSpeedFile

DTYPES = {"no": "float32", "bf16": "bfloat16", "fp16": "float16"}
# DeepSpeed's names for the two formats that autocast may have here.
AUTOCAST = dict.fromkeys(("bfloat16", "bf16", "torch.bfloat16"), "bf16")
AUTOCAST |= dict.fromkeys(("float16", "fp16", "torch.float16", "half"), "fp16")
# DeepSpeed's defaults, written out: the loss scale moves by the same numbers in every setup.
LOSS_SCALE: dict[str, Any] = {
    "loss_scale": 0,  # 0 is a dynamic one
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}
_LARGEST = {"loss_scale": 2**32, "initial_scale_power": 32}


@dataclass(frozen=True)
class Precision:
    """`weight_dtype` is the parameters'; `sections` are those of DeepSpeed's JSON; `loss_scale` holds the numbers of
    fp16, else nothing."""

    weight_dtype: str = "float32"
    sections: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: Given = Given({}, "default")
    notes: tuple[str, ...] = ()


def asked_precision(
    typed: Given | None, launched: Given | None, file: DeepSpeedFile | None, default: Given
) -> tuple[Given, list[str]]:
    """The one precision that is asked for, and a line for each contradiction. `launched` "no" asks for nothing: it is
    what `accelerate config` writes into every file."""
    written, faults = _written(file) if file is not None else (None, [])
    if faults:
        return default, faults
    binding = launched if launched is not None and launched.value != "no" else None
    asked = [given for given in (typed, binding, written) if given is not None]
    chosen = (asked[-1] if asked else launched or default).over(launched, default)
    if chosen.value not in DTYPES:
        return default, [fault(chosen.origin, chosen.value, "not a precision here", f"one of {', '.join(DTYPES)}")]
    faults = [
        fault(given.origin, given.value, f"{chosen.origin} says {chosen.value}", "keep one precision")
        for given in asked
        if given.value != chosen.value
    ]
    off = _switched_off(file, chosen.value) if file is not None else None
    if off is None:
        return chosen, faults
    if not asked:
        return Given("no", off), []
    return chosen, [fault(off, False, f"{chosen.origin} says {chosen.value}", 'write true or "auto", or keep fp32')]


def _written(file: DeepSpeedFile) -> tuple[Given | None, list[str]]:
    """What the file's sections switch on."""
    on = [f"{name}.enabled" for name in ("fp16", "bf16", "torch_autocast") if file.get(f"{name}.enabled") is True]
    if "torch_autocast.enabled" in on and file.config.get("bf16", {}).get("enabled") == "auto":
        on.insert(0, "bf16.enabled")  # it would take autocast's bf16 for 16-bit weights
    if len(on) > 1:
        value = file.config[on[0].partition(".")[0]]["enabled"]
        reason = f"{file.where(on[1])} is true, and both cannot hold"
        return None, [fault(file.where(on[0]), value, reason, "keep one of the sections")]
    if on != ["torch_autocast.enabled"]:
        return (Given(on[0].partition(".")[0], file.where(on[0])) if on else None), []
    where, dtype = file.where("torch_autocast.dtype"), file.get("torch_autocast.dtype") or "bfloat16"
    if dtype not in AUTOCAST:
        return None, [fault(where, dtype, "not a format of autocast here", 'write "bfloat16"')]
    return Given(AUTOCAST[dtype], file.where(on[0])), []


def _switched_off(file: DeepSpeedFile, kind: str) -> str | None:
    """The key that says false where `kind` would have to be true."""
    own = file.config.get(kind, {}).get("enabled")
    if own is False:
        return file.where(f"{kind}.enabled")
    if kind == "bf16" and own is None and file.get("torch_autocast.enabled") is False:
        return file.where("torch_autocast.enabled")
    return None


def settle_precision(kind: Given, file: DeepSpeedFile | None, strategy: str) -> tuple[Precision, list[str]]:
    """The format of the weights and DeepSpeed's sections, and a line for each number that cannot be."""
    name, faults = kind.value, list[str]()
    if name == "no":
        return Precision(), []
    loss_scale = _loss_scale(file, faults) if name == "fp16" else Given({}, "default")
    held = file is not None and file.config.get(name, {}).get("enabled") in (True, "auto")
    if strategy in ("single", "ddp"):
        where = file.where(name) if held and file is not None else ""
        notes = (f"{where}: {strategy} keeps weights in fp32 and casts in the forward pass",) if where else ()
        return Precision(loss_scale=loss_scale, notes=notes), faults
    if name == "bf16" and not held:
        # Gradients of modules named in the list travel in 16 bit, by DeepSpeed's default those of every Linear and
        # Conv: that moves the CNN's losses by 1e-3. In an empty one all travel in fp32, as under DDP.
        section = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        return Precision(sections={"torch_autocast": section}), faults
    if file is not None and file.get("torch_autocast.enabled") is True:
        where, reason = file.where("torch_autocast.dtype"), "DeepSpeed clips scaled gradients there and trains wrong"
        faults.append(fault(where, file.get("torch_autocast.dtype"), reason, 'write "fp16": {"enabled": true} instead'))
    section = {"enabled": True, **loss_scale.value}
    if name == "bf16":
        # A step is skipped in fp16 alone, in every setup.
        section |= {"check_grad_overflow": False}
    elif file is not None and file.get("fp16.auto_cast"):
        section |= {"auto_cast": True}
    return Precision(DTYPES[name], {name: section}, loss_scale), faults


def _loss_scale(file: DeepSpeedFile | None, faults: list[str]) -> Given:
    """DeepSpeed's numbers, with the file's in the place of the defaults."""
    given = {name: file.get(f"fp16.{name}") for name in LOSS_SCALE} if file is not None else {}
    given = {name: value for name, value in given.items() if value is not None}
    if file is None or not given:
        return Given(LOSS_SCALE, "default")
    for name, largest in _LARGEST.items():
        if given.get(name, 0) > largest:
            where, reason = file.where(f"fp16.{name}"), "losses scaled by more than 2 ** 32 overflow"
            faults.append(fault(where, given[name], reason, f"write {largest} or less"))
    whole = {n: int(v) if isinstance(v, float) and v.is_integer() else v for n, v in given.items()}
    return Given(LOSS_SCALE | whole, file.where("fp16"))
