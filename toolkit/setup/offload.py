"""Offload: which state of ZeRO lives in the host's memory or on NVMe, and what a file must not ask for there."""

import os
from collections.abc import Mapping
from ctypes.util import find_library
from typing import Any

from toolkit.errors import fault
from toolkit.setup.dsjson import DeepSpeedFile

OPTIMIZER, PARAM = "zero_optimization.offload_optimizer", "zero_optimization.offload_param"
DEVICES = ("none", "cpu", "nvme")
_NVME_ALONE = ("nvme_path", "buffer_count", "buffer_size", "max_in_cpu", "pipeline_read", "pipeline_write", "fast_init")


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
    """The sections of `zero_optimization` that switch something on, as DeepSpeed takes them."""
    sections: dict[str, dict[str, Any]] = {}
    for key, least in ((OPTIMIZER, 1), (PARAM, 3)):
        section = file.get(key) if file is not None else None
        device = section.get("device", "none") if isinstance(section, Mapping) else "none"
        if file is None or not isinstance(section, Mapping) or device in ("none", "auto"):
            continue
        where = file.where(key if key in file.names else f"{key}.device")
        if device not in DEVICES:
            faults.append(fault(where, device, "unknown", f"one of {', '.join(DEVICES)}"))
        elif stages > 1:
            faults.append(fault(where, device, "a pipeline keeps its state on its own device", "remove the section"))
        elif stage < least:
            allowed = "stage 3" if least == 3 else "stage 1, 2 or 3"
            reason = f"ZeRO stage {stage} cannot offload that"
            faults.append(fault(where, device, reason, f"write {allowed}, or remove the section"))
        else:
            if device == "nvme":
                faults += _nvme_faults(file, key, section, stage)
            sections[key.rpartition(".")[2]] = taken = {
                name: value
                for name, value in section.items()
                if value not in ("auto", None) and (device == "nvme" or name not in _NVME_ALONE)
            }
            unused = [name for name in section if name not in taken and section[name] not in ("auto", None)]
            if unused:
                notes.append(f"{where} {device}: not used there: {', '.join(unused)}")
    return sections


def _nvme_faults(file: DeepSpeedFile, key: str, section: Mapping[str, Any], stage: int) -> list[str]:
    where, remedy, path = file.where(f"{key}.device"), 'write "cpu"', section.get("nvme_path")
    if stage < 3:
        return [fault(where, "nvme", f"ZeRO stage {stage} offloads to the CPU alone", f"write stage 3, or {remedy}")]
    lines = []
    if not path:
        lines.append(fault(where, "nvme", "no nvme_path is given", f'add "nvme_path": "/a/folder/there", or {remedy}'))
    elif not (os.path.isdir(path) and os.access(path, os.W_OK)):
        where_path, reason = file.where(f"{key}.nvme_path"), "not a folder that can be written to"
        lines.append(fault(where_path, path, reason, f"give a folder on the NVMe disk, or {remedy}"))
    if find_library("aio") is None:
        lines.append(fault(where, "nvme", "libaio is not installed", f"apt install libaio-dev, or {remedy}"))
    return lines
