"""The Adam that steps in the host's memory, where the optimizer's state is offloaded."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch


def host_adam(
    param_groups: list[dict[str, Any]], *, lr: float, weight_decay: float, decoupled: bool
) -> torch.optim.Optimizer:
    """DeepSpeed's Adam, or AdamW where the decay is `decoupled`, with torch's other numbers."""
    import cpuinfo  # type: ignore[import-untyped]
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    # Each new optimizer asks for the CPU's maker, by processes that take seconds.
    cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)
    optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(
        param_groups, lr=lr, weight_decay=weight_decay, adamw_mode=decoupled
    )
    return optimizer
