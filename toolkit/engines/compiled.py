"""torch.compile for a model that one process or DDP trains."""

from __future__ import annotations

from functools import wraps
from typing import Any

import torch
from torch import nn

from toolkit.errors import UserError, fault


def compile_forward(model: nn.Module) -> None:
    """Compile `forward` in place, so that parameters keep their names.

    Shapes may change: after the second one, torch compiles for any size of the dimensions that differ. The first call
    raises UserError where the model cannot be compiled, or no part of it is.
    """
    # Inside of DDP: torch asks for the DDP module that is running, and cuts the graph at its buckets.
    model.forward = _told(torch.compile(model.forward), type(model).__name__)


def _told(forward: Any, kind: str) -> Any:
    """`forward`, with one line where torch gives another one than a compiled one."""
    begun = False

    @wraps(forward)
    def call(*args: Any, **kwargs: Any) -> Any:
        from torch._dynamo.exc import TorchDynamoException

        nonlocal begun
        graphs = _graphs()
        try:
            outputs = forward(*args, **kwargs)
        except TorchDynamoException as error:
            reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
            remedy = "leave it out; on a CPU it needs a C++ compiler (CXX names it)"
            raise UserError(fault("--torch_compile", True, f"torch cannot compile {kind}: {reason}", remedy)) from error
        if not begun and _graphs() == graphs:  # without a word it runs what it cannot trace as it is
            reason = f"torch compiled no part of {kind}"
            remedy = "leave it out, or what torch does not trace, such as --gradient_checkpointing beside BatchNorm"
            raise UserError(fault("--torch_compile", True, reason, remedy))
        begun = True
        return outputs

    return call


def _graphs() -> int:
    """How many graphs this process has compiled."""
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])
