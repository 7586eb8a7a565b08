"""What the first step of a process shows: every parameter trains, in the formats asked for, alike on every rank."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from toolkit.errors import UserError, fault
from toolkit.setup import Setup


class FirstStep:
    """Watches gradients, and what autocast casts to where a layer runs, until `remove`."""

    def __init__(self, model: nn.Module, device: torch.device, compiled: bool = False) -> None:
        # Names whose gradient no backward pass has reached.
        self.untrained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
        self.gradients: set[str | None] = set()
        self.autocast: set[str | None] = set()
        self.dropout = _dropout(model)
        self._device = device.type
        self._hooks: list[Any] = [
            parameter.register_hook(lambda gradient, name=name: self._backward(name, gradient))
            for name, parameter in model.named_parameters()
            if parameter.requires_grad
        ]
        # What is `compiled` is watched from outside: hooks within would be compiled too, and stay.
        for module in [model] if compiled else model.modules():
            if compiled or any(parameter.requires_grad for parameter in module.parameters(recurse=False)):
                self._hooks.append(module.register_forward_pre_hook(self._forward))

    def _forward(self, *_: Any) -> None:
        on = torch.is_autocast_enabled(self._device)
        self.autocast.add(_name(torch.get_autocast_dtype(self._device)) if on else None)

    def _backward(self, name: str, gradient: Tensor) -> None:
        self.untrained.discard(name)
        self.gradients.add(_name(gradient.dtype))

    def remove(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()

    def check_all_trained(self, names: Collection[str]) -> None:
        """Raise UserError if the step left out one of these parameters.

        One process skips it, ZeRO decays it with a gradient of zero, and DDP stops to average: three different models.
        """
        left_out = sorted(self.untrained & set(names))
        if left_out:
            reason = "no part of the loss depends on it, and setups would treat it differently"
            remedy = "freeze it with requires_grad_(False), or use it"
            raise UserError(*(fault("model", name, reason, remedy) for name in left_out))

    def formats(self, setup: Setup, parameters: Iterable[nn.Parameter], buffers: Iterable[Tensor]) -> dict[str, Any]:
        """What the step ran in, by name; None where this rank has nothing of the kind. `dropout` is the largest rate.

        Raises:
            RuntimeError: it is not what was asked for.
        """
        asked = {
            "parameter_dtype": setup.weight_dtype,
            "gradient_dtype": setup.weight_dtype,
            "buffer_dtype": "float32",
            "autocast_dtype": setup.autocast_dtype,
        }
        found: dict[str, set[str | None]] = {
            "parameter_dtype": {_name(p.dtype) for p in parameters if p.requires_grad},
            "gradient_dtype": self.gradients,
            "buffer_dtype": {_name(buffer.dtype) for buffer in buffers if buffer.is_floating_point()},
            "autocast_dtype": self.autocast,
        }
        doubles = {"float64"} if setup.weight_dtype == "float32" else set()  # a model of the user's own may be double
        for name, dtypes in found.items():
            if dtypes - {asked[name]} - (doubles if name != "autocast_dtype" else set()):
                got = ", ".join(sorted(str(dtype) for dtype in dtypes))
                precision = "fp32" if setup.mixed_precision == "no" else setup.mixed_precision
                raise RuntimeError(f"asked for {precision} with {name} {asked[name]}, the libraries gave {got}")
        formats = {name: ", ".join(sorted(map(str, dtypes - {None}))) or None for name, dtypes in found.items()}
        return {**formats, "dropout": self.dropout}


def check_ranks_agree(
    parameters: Iterable[nn.Parameter], rank: int, size: int, group: dist.ProcessGroup | None
) -> None:
    """Raise RuntimeError unless all data-parallel ranks hold equal weights: ranks that train alone drift apart.

    One number a parameter and rank, compared bit for bit, after the first step.
    """
    if size == 1:
        return
    mine = torch.stack([p.detach().double().sum() for p in parameters] or [torch.zeros(1).double().sum()])
    sums = [torch.empty_like(mine) for _ in range(size)]
    dist.all_gather(sums, mine, group=group)
    for other_rank, other in enumerate(sums):
        # Bits, not values: NaN is not equal to itself, and ranks that agree on it do not train alone.
        if not torch.equal(other.view(torch.int64), mine.view(torch.int64)):
            raise RuntimeError(
                f"data-parallel ranks {rank} and {other_rank} hold different weights after step 1: they train alone"
            )


def _dropout(model: nn.Module) -> float:
    """The largest rate of its layers; attention and recurrent layers keep theirs as a number."""
    rates = (
        module.p if isinstance(module, nn.modules.dropout._DropoutNd) else getattr(module, "dropout", 0.0)
        for module in model.modules()
    )
    return max((float(rate) for rate in rates if isinstance(rate, int | float)), default=0.0)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
