"""Offload: which state of ZeRO lives in the host's memory, and what a file must not ask for there."""

import os
from collections.abc import Mapping
from typing import Any

from toolkit.errors import fault
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.words import nearest

# Each section, and the lowest ZeRO stage that has it.
SECTIONS = {"zero_optimization.offload_optimizer": 1, "zero_optimization.offload_param": 3}
_NVME_ALONE = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")


def offloads(file: DeepSpeedFile) -> bool:
    """Whether a section of the file names a device."""
    return any((file.get(f"{key}.device") or "none") != "none" for key in SECTIONS)


def default_offload(strategy: str) -> dict[str, dict[str, str]]:
    """The sections of a strategy whose file has none."""
    if not strategy.endswith("_offload"):
        return {}
    return {"offload_optimizer": {"device": "cpu"}} | (
        {"offload_param": {"device": "cpu"}} if strategy == "zero3_offload" else {}
    )


def settle_offload(
    file: DeepSpeedFile | None, stage: int, stages: int, notes: list[str], faults: list[str]
) -> dict[str, dict[str, Any]]:
    """The sections of `zero_optimization` that switch something on, as DeepSpeed takes them.

    `offload_param` needs no `offload_optimizer`: DeepSpeed then keeps masters and optimizer on the rank's own device.
    """
    sections: dict[str, dict[str, Any]] = {}
    for key, least in SECTIONS.items():
        section = file.get(key) if file is not None else None
        if file is None or not isinstance(section, Mapping) or not section:
            continue
        where, device = file.where(f"{key}.device"), section.get("device")
        if device is None:
            notes.append(f"{where}: no device is given, nothing is offloaded")
        elif device in ("none", "auto"):
            continue
        elif device == "nvme":
            # Plain DeepSpeed, a CNN on two CPU ranks: a loss of 2.3 after 5 steps, and 0.4 from the CPU's memory. What
            # is swapped out could not be saved by name either.
            reason = "DeepSpeed 0.19.8 trains another model with state on NVMe"
            faults.append(fault(where, device, reason, "write cpu"))
            faults += _path_fault(file.where(f"{key}.nvme_path"), section.get("nvme_path"))
        elif device != "cpu":
            faults.append(_device_fault(where, device))
        elif stages > 1:
            faults.append(fault(where, device, "a pipeline keeps its state on its own device", "remove the section"))
        elif stage < least:
            allowed = "stage 3" if least == 3 else "stage 1, 2 or 3"
            reason = f"ZeRO stage {stage} cannot offload that"
            faults.append(fault(where, device, reason, f"write {allowed}, or remove the section"))
        else:
            given = {name: value for name, value in section.items() if value not in ("auto", None)}
            sections[key.rpartition(".")[2]] = {name: v for name, v in given.items() if name not in _NVME_ALONE}
            if unused := [name for name in given if name in _NVME_ALONE]:
                notes.append(f"{where} cpu: not used there: {', '.join(unused)}")
    return sections


def _device_fault(where: str, device: str) -> str:
    """A device that offloads nothing, or that DeepSpeed does not know."""
    if device.lower().partition(":")[0] in ("gpu", "cuda", "npu", "xpu", "hpu", "mps"):
        return fault(where, device, "state on the rank's own device is not offloaded", "write none, or cpu")
    hint = nearest(device.lower(), ("cpu", "none", "nvme"))
    return fault(where, device, "unknown device", hint or "write cpu or none")


def _path_fault(where: str, path: Any) -> list[str]:
    """A line where state could not be swapped out to `path`, whatever trains with it."""
    if path in (None, "", "auto"):
        reason = "nvme needs the path of a folder"
    elif not isinstance(path, str):
        return []  # a wrong type has its own line
    elif not os.path.isdir(path):
        reason = "not a folder" if os.path.lexists(path) else f"no such folder, searched from {os.getcwd()}"
    elif not os.access(path, os.W_OK):
        reason = "the folder cannot be written"
    else:
        return []
    return [fault(where, path, reason, "name a folder that can be written, or write cpu, which needs none")]
