"""Formats of numbers: what a model may come in, what 16-bit weights need, and what was obtained in the first step."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from toolkit.errors import UserError, fault
from toolkit.setup import Setup


def check_fp32(model: nn.Module) -> None:
    """Raise UserError for parameters to train that come in another format: precision is the setup's matter."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype != torch.float32:
            dtype = str(parameter.dtype).removeprefix("torch.")
            remedy = "build or load it with dtype=torch.float32; --mixed_precision bf16 or fp16 sets the precision"
            raise UserError(fault("model", name, f"is {dtype}, and training starts from fp32", remedy))


def keep_batch_norm_exact(model: nn.Module) -> None:
    """Let BatchNorm of 16-bit weights compute in fp32, with running statistics in fp32.

    DeepSpeed casts parameters alone: torch then refuses 16-bit weights beside fp32 statistics. Statistics in 16 bit,
    which `data_types.buffer_dtype` would give, lose a tenth of each update to rounding.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm):
            module.forward = partial(_batch_norm, module)  # type: ignore[method-assign]


def _batch_norm(norm: _BatchNorm, inputs: Tensor) -> Tensor:
    """`_BatchNorm.forward` with weight and bias in fp32; the result is in the inputs' format."""
    norm._check_input_dim(inputs)
    average = norm.momentum
    if norm.training and norm.num_batches_tracked is not None:
        norm.num_batches_tracked.add_(1)
        average = average if average is not None else 1.0 / float(norm.num_batches_tracked)
    weight, bias = (each if each is None else each.float() for each in (norm.weight, norm.bias))
    batch_statistics = norm.training or norm.running_mean is None
    return nn.functional.batch_norm(
        inputs, norm.running_mean, norm.running_var, weight, bias, batch_statistics, average or 0.0, norm.eps
    )


class Formats:
    """Watches the first step: the formats of gradients, and what autocast casts to where a layer runs."""

    def __init__(self, model: nn.Module, device: torch.device) -> None:
        self.gradients: set[str | None] = set()
        self.autocast: set[str | None] = set()
        self._device = device.type
        self._hooks: list[Any] = []
        for module in model.modules():
            own = [parameter for parameter in module.parameters(recurse=False) if parameter.requires_grad]
            if own:
                self._hooks.append(module.register_forward_pre_hook(self._forward))
            self._hooks += [parameter.register_hook(self._backward) for parameter in own]

    def _forward(self, *_: Any) -> None:
        on = torch.is_autocast_enabled(self._device)
        self.autocast.add(_name(torch.get_autocast_dtype(self._device)) if on else None)

    def _backward(self, gradient: Tensor) -> None:
        self.gradients.add(_name(gradient.dtype))

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()


def obtained_formats(
    setup: Setup, formats: Formats, parameters: list[nn.Parameter], buffers: list[Tensor]
) -> dict[str, Any]:
    """What the first step ran in, by name.

    Raises:
        RuntimeError: it is not what was asked for.
    """
    found: dict[str, set[str | None]] = {
        "parameter_dtype": {_name(p.dtype) for p in parameters if p.requires_grad},
        "gradient_dtype": formats.gradients,
        "buffer_dtype": {_name(buffer.dtype) for buffer in buffers if buffer.is_floating_point()},
        "autocast_dtype": formats.autocast,
    }
    asked = {
        "parameter_dtype": setup.weight_dtype,
        "gradient_dtype": setup.weight_dtype,
        "buffer_dtype": "float32",
        "autocast_dtype": setup.autocast_dtype,
    }
    for name, dtypes in found.items():
        if dtypes - {asked[name]}:
            got = ", ".join(sorted(str(dtype) for dtype in dtypes))
            raise RuntimeError(f"asked for {setup.mixed_precision} with {name} {asked[name]}, the libraries gave {got}")
    return {name: asked[name] if dtypes else None for name, dtypes in found.items()}


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
