"""Which device and which backend a rank uses."""

import glob
from collections.abc import Mapping

from toolkit.errors import UserError, fault


def choose_device(
    local_rank: int, device_count: int, use_cpu: bool, local_ranks: int = 1
) -> tuple[str, int | None, str]:
    """One device a rank: ("cuda", index, "nccl"), or ("cpu", None, "gloo") without GPUs or where the CPU is asked for.

    Args:
        device_count: GPUs this process sees.
        local_ranks: ranks on this machine.

    Raises:
        UserError: more ranks on this machine than GPUs; two ranks on one GPU would hang in NCCL.
    """
    if use_cpu or device_count == 0:
        return "cpu", None, "gloo"
    if max(local_ranks, local_rank + 1) > device_count:
        ranks = max(local_ranks, local_rank + 1)
        remedy = (
            f"start at most {device_count} processes here, or use the CPU with use_cpu: true or ACCELERATE_USE_CPU=true"
        )
        raise UserError(
            fault("processes on this machine", ranks, f"a rank needs a GPU of its own, {device_count} here", remedy)
        )
    return "cuda", local_rank, "nccl"


def count_gpus(environ: Mapping[str, str]) -> int:
    """NVIDIA GPUs that a process here would see, told without the driver and without torch."""
    here = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = environ.get("CUDA_VISIBLE_DEVICES")
    return (
        here
        if visible is None
        else min(here, len([name for name in visible.split(",") if name.strip() not in ("", "-1")]))
    )
