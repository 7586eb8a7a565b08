"""Whole tensors and a torch optimizer's own state: Accelerate without DeepSpeed, and DeepSpeed without ZeRO."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from toolkit.foreign.files import COPY, Found, Shape, class_of, load, refuse

NORM_BUFFERS = (".running_mean", ".running_var", ".num_batches_tracked")


def accelerate(folder: Path, names: list[str]) -> Found:
    if several := sorted({"model_1.safetensors", "pytorch_model_1.bin", "optimizer_1.bin"} & set(names)):
        refuse(folder, f"holds several models or optimizers ({several[0]})", "save one model and its optimizer")
    optimizer = load(folder / "optimizer.bin")
    path = folder / "model.safetensors"
    try:
        tensors = load_file(path) if path.exists() else load(folder / "pytorch_model.bin")
    except (OSError, SafetensorError) as error:
        refuse(path, f"is damaged ({error})", COPY)
    buffers = {name for name in tensors if name.endswith(NORM_BUFFERS)}
    # safetensors sorts by name: the model's order, which is the optimizer's, is lost.
    found = unsharded(Found("Accelerate"), tensors, optimizer, buffers, in_order=not path.exists())
    steps = [float(state["step"]) for state in optimizer["state"].values() if "step" in state]
    found.step = found.updates = int(max(steps, default=0))
    found.kind += "" if steps else ", which keeps no step for SGD"
    return found


def unsharded(
    found: Found, tensors: dict[str, Tensor], optimizer: dict[str, Any], buffers: set[str], in_order: bool
) -> Found:
    """Whole tensors, and the state of a torch optimizer, which counts its parameters and does not name them."""
    first: dict[tuple[Any, ...], str] = {}
    for name, tensor in tensors.items():
        if tensor.numel() and first.setdefault((tensor.data_ptr(), tensor.shape, tensor.stride()), name) == name:
            found.weights[name] = (tensor.shape, [tensor.reshape(-1)])
    states = optimizer.get("state", {})
    named = {name: tuple(shape) for name, (shape, _) in found.weights.items() if name not in buffers}
    owners = _owners(optimizer["param_groups"], states, named, in_order) if states else None
    if owners is None:
        found.alone = "as no optimizer state in it tells which parameter it is of"
        return found
    found.optimizer = class_of(optimizer)
    for number, name in owners.items():
        for state, value in states[number].items():
            found.add(name, state, [value.reshape(-1) if isinstance(value, Tensor) else value])
    return found


def _owners(
    groups: list[dict[str, Any]], states: dict[int, dict[str, Any]], named: dict[str, Shape], in_order: bool
) -> dict[int, str] | None:
    """{number: name} of an optimizer's parameters; None where they may be several ways.

    An optimizer that was given names keeps them. For another, shapes decide, and within a group the model's order.
    """
    numbers = [number for group in groups for number in group["params"]]
    shapes: dict[int, Any] = dict.fromkeys(numbers)
    for number in numbers:
        for state, value in states.get(number, {}).items():
            if state != "step" and isinstance(value, Tensor):
                shapes[number] = tuple(value.shape)
    if all("param_names" in group for group in groups):
        owners = dict(zip(numbers, (name for group in groups for name in group["param_names"]), strict=True))
        return owners if all(named.get(name) == shapes[number] for number, name in owners.items()) else None
    owners = {}
    for run in [group["params"] for group in groups] if in_order else [[number] for number in numbers]:
        wanted = [shapes[number] for number in run]
        earliest, latest = _places(wanted, named.items()), _places(wanted[::-1], reversed(named.items()))[::-1]
        if None in earliest or earliest != latest:
            return None
        owners |= dict(zip(run, earliest, strict=True))
    return owners if len(set(owners.values())) == len(numbers) else None


def _places(wanted: list[Any], named: Iterable[tuple[str, Shape]]) -> list[Any]:
    """For each shape the first name that has it after the one before."""
    rest = iter(named)
    return [next((name for name, shape in rest if shape == each), None) for each in wanted]
