"""Formats of numbers: what a model may come in, and what 16-bit weights need."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from toolkit.errors import UserError, fault


def check_not_16_bit(model: nn.Module) -> None:
    """Raise UserError for parameters to train that come in 16 bit: precision is the setup's matter."""
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.dtype not in (torch.float32, torch.float64):
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
    by_batch = norm.training or norm.running_mean is None
    return nn.functional.batch_norm(
        inputs, norm.running_mean, norm.running_var, weight, bias, by_batch, average or 0.0, norm.eps
    )
