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
# DeepSpeed's defaults, written out: the loss scale moves by the same numbers in every setup.
LOSS_SCALE: dict[str, Any] = {
    "loss_scale": 0,  # 0 is a dynamic one
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}


@dataclass(frozen=True)
class Precision:
    """`weight_dtype` is the parameters'; `sections` are those of DeepSpeed's JSON; `loss_scale` is empty but in
    fp16."""

    kind: Given = Given("no", "default")
    weight_dtype: str = "float32"
    sections: Mapping[str, Any] = field(default_factory=dict)
    loss_scale: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def asked_precision(
    typed: Given | None, launched: Given, file: DeepSpeedFile | None, default: Given
) -> tuple[Given, list[str]]:
    """The one precision that is asked for, and a line for each contradiction. `launched` "no" asks for nothing: it is
    what Accelerate sets when nobody says anything."""
    asked = [] if typed is None else [typed]
    if launched.value not in ("no", "none", ""):
        asked.append(launched)
    if file is not None:
        asked += [Given(kind, file.where(f"{kind}.enabled")) for kind in ("fp16", "bf16") if _on(file, kind)]
        if _on(file, "torch_autocast"):
            kind = {"float16": "fp16"}.get(_short(file.get("torch_autocast.dtype") or "bfloat16"), "bf16")
            asked.append(Given(kind, file.where("torch_autocast.enabled")))
    chosen = asked[-1] if asked else default
    if chosen.value not in DTYPES:
        return default, [fault(chosen.origin, chosen.value, "not a precision here", f"one of {', '.join(DTYPES)}")]
    for given in asked[:-1]:
        if given.value != chosen.value or given.origin.endswith(".enabled"):
            reason = f"{chosen.origin} says {chosen.value}, and both cannot hold"
            return chosen, [fault(given.origin, given.value, reason, "keep one precision")]
    return chosen, []


def settle_precision(kind: Given, file: DeepSpeedFile | None, strategy: str) -> tuple[Precision, list[str]]:
    """The format of the weights and DeepSpeed's sections, and a line for each number that cannot be."""
    name = kind.value
    if name == "no":
        return Precision(kind), []
    faults: list[str] = []
    loss_scale = _loss_scale(file, faults) if name == "fp16" else {}
    of_file = file is not None and file.config.get(name, {}).get("enabled") in (True, "auto")
    if strategy in ("single", "ddp"):
        where = file.where(name) if of_file and file is not None else ""
        notes = (f"{where}: {strategy} keeps weights in fp32 and casts in the forward pass",) if where else ()
        return Precision(kind, loss_scale=loss_scale, notes=notes), faults
    if not of_file and name == "bf16":
        return Precision(kind, sections={"torch_autocast": _autocast(file, faults)}), faults
    if file is not None and _on(file, "torch_autocast"):
        where, reason = file.where("torch_autocast.dtype"), "DeepSpeed clips scaled gradients there and trains wrong"
        faults.append(fault(where, file.get("torch_autocast.dtype"), reason, 'write "fp16": {"enabled": true} instead'))
    section: dict[str, Any] = {"enabled": True, **loss_scale}
    if name == "bf16":
        # A step is skipped in fp16 alone, in every setup.
        section |= {"check_grad_overflow": False}
    elif file is not None and file.get("fp16.auto_cast"):
        section |= {"auto_cast": True}
    return Precision(kind, DTYPES[name], {name: section}, loss_scale), faults


def _loss_scale(file: DeepSpeedFile | None, faults: list[str]) -> dict[str, Any]:
    given = {name: file.get(f"fp16.{name}") if file is not None else None for name in LOSS_SCALE}
    numbers = {name: LOSS_SCALE[name] if value is None else value for name, value in given.items()}
    if file is not None and numbers["initial_scale_power"] > 32:
        where, reason = file.where("fp16.initial_scale_power"), "a scale above 2 ** 32 overflows"
        faults.append(fault(where, numbers["initial_scale_power"], reason, "write 32 or less"))
    return numbers


def _autocast(file: DeepSpeedFile | None, faults: list[str]) -> dict[str, Any]:
    # Gradients of modules named in the list travel in 16 bit, by DeepSpeed's default those of every Linear and Conv:
    # that moves the CNN's losses by 1e-3. In an empty one all travel in fp32, as under DDP.
    section: dict[str, Any] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
    if file is not None and _on(file, "torch_autocast"):
        section |= file.config["torch_autocast"]
        where, dtype = file.where("torch_autocast.dtype"), section["dtype"]
        if _short(dtype) not in ("bfloat16", "float16"):
            faults.append(fault(where, dtype, "not a format of autocast", "write bfloat16"))
    return section


def _on(file: DeepSpeedFile, section: str) -> bool:
    return file.get(f"{section}.enabled") is True


def _short(dtype: str) -> str:
    name = dtype.removeprefix("torch.")
    return {"bf16": "bfloat16", "fp16": "float16", "half": "float16"}.get(name, name)
