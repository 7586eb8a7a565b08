"""The Adam that steps in the host's memory, where the optimizer's state is offloaded."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

# Steps after which both powers of beta are 0 in fp32: 0.999 ** 150,000 is 7e-66.
POWERS_END = 150_000


def host_adam(
    param_groups: list[dict[str, Any]],
    *,
    lr: float,
    weight_decay: float,
    betas: Sequence[float],
    eps: float,
    decoupled: bool,
) -> torch.optim.Optimizer:
    """DeepSpeed's Adam, or AdamW where the decay is `decoupled`."""
    import cpuinfo  # type: ignore[import-untyped]
    from deepspeed.ops.adam import DeepSpeedCPUAdam

    # Each new optimizer asks for the CPU's maker, by processes that take seconds.
    cpuinfo.get_cpu_info = cache(cpuinfo.get_cpu_info)
    optimizer: torch.optim.Optimizer = DeepSpeedCPUAdam(
        param_groups, lr=lr, weight_decay=weight_decay, betas=betas, eps=eps, adamw_mode=decoupled
    )
    return optimizer


def go_on(optimizer: torch.optim.Optimizer) -> None:
    """After a resume: put the powers of beta where an uninterrupted run has them. Any other optimizer is left alone.

    The C++ side multiplies them up step by step; for a step that does not follow its own last one it takes `pow`, whose
    last digits differ.
    """
    steps = max((state.get("step", 0) for state in optimizer.state.values()), default=0)
    native = getattr(optimizer, "ds_opt_adam", None)
    if native is None or not steps:
        return
    beta1, beta2 = optimizer.defaults["betas"]
    nothing = [torch.zeros(1) for _ in range(4)]
    for step in range(1, steps + 1) if steps < POWERS_END else [steps]:
        native.adam_update(optimizer.opt_id, step, 0.0, beta1, beta2, 1.0, 0.0, True, *nothing)  # type: ignore[attr-defined]
