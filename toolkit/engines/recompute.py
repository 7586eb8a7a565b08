"""Activation checkpointing: activations are computed again in the backward pass instead of being kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from toolkit.errors import UserError, fault


def checkpoint_activations(model: nn.Module) -> None:
    """Recompute by the model's own switch, or around each of its pipeline layers.

    Raises:
        UserError: the model has neither.
    """
    norms = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    options: dict[str, Any] = {"use_reentrant": False}
    if norms:
        options["context_fn"] = partial(_contexts, norms)
    kind, remedy = type(model).__name__, "leave the argument out, or name the model's layers in pipeline_layers()"
    if callable(switch := getattr(model, "gradient_checkpointing_enable", None)):
        try:
            switch(gradient_checkpointing_kwargs=options)
        except ValueError as error:
            raise UserError(fault("--gradient_checkpointing", kind, str(error), "leave the argument out")) from error
        return
    if not callable(getattr(model, "pipeline_layers", None)):
        reason = "has neither gradient_checkpointing_enable() nor pipeline_layers()"
        raise UserError(fault("--gradient_checkpointing", kind, reason, remedy))
    for layer in model.pipeline_layers():  # type: ignore[operator]
        layer.forward = partial(checkpoint, layer.forward, **options)


def _contexts(norms: Sequence[_BatchNorm]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Around the forward pass, and around its repetition."""
    return nullcontext(), _statistics_at_rest(norms)


@contextmanager
def _statistics_at_rest(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Running statistics have seen the micro-batch already: a second time would count it twice."""
    held = [(norm.momentum, norm.num_batches_tracked) for norm in norms]
    for norm in norms:
        norm.momentum, norm.num_batches_tracked = 0.0, None
    try:
        yield
    finally:
        for norm, (momentum, count) in zip(norms, held, strict=True):
            norm.momentum, norm.num_batches_tracked = momentum, count
