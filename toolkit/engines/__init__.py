"""Two engines behind one interface: `prepare` picks by the setup."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.engines import group
from toolkit.engines.base import Engine, LossFn, OptimizerFn, StepStats
from toolkit.engines.freeze import freeze
from toolkit.engines.recompute import checkpoint_activations
from toolkit.engines.state import check_elementwise, check_own_optimizer
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup import Setup

__all__ = ["Engine", "StepStats", "prepare"]


def prepare(
    model_fn: Callable[[], nn.Module] | nn.Module, loss_fn: LossFn, optimizer_fn: OptimizerFn, setup: Setup
) -> Engine:
    """Put the model under the setup's strategy.

    Args:
        model_fn: builds the model; called after seeding, so every setup starts from the same weights. A module that
            was built before is taken as it is: its weights must be equal on all ranks.
        loss_fn: `(outputs, targets) -> [B]` per-sample losses.
        optimizer_fn: `(param_groups) -> torch.optim.Optimizer` over what this rank owns.
        setup: the strategy, from `Setup.from_run`.

    Raises:
        UserError: the model has no layer of a name to freeze or cannot be cut, the optimizer works on more than one
            number at a time or is not the one that a file names, the ranks that met are not those asked for, a loss of
            one's own cannot be smoothed.
        RuntimeError: a library gave another strategy than the one asked for.
    """
    group.start(setup)
    loss_fn = _smoothed(loss_fn, setup)
    torch.manual_seed(setup.seed)
    if isinstance(model_fn, nn.Module):
        say("a ready model was given: each rank holds it whole before it is shared out")
        model = model_fn
    else:
        model = model_fn()
    if setup.freeze:
        freeze(model, setup.freeze, setup.origins["freeze"])
    model = _synchronised(model, setup)
    if setup.gradient_checkpointing:
        checkpoint_activations(model)
    steps_on = torch.device("cpu") if setup.offloads_optimizer else group.device(setup)
    check_elementwise(optimizer_fn, setup.deepspeed_config is not None, steps_on)
    with group.quiet(setup.verbose):
        engine = _engine(model, loss_fn, optimizer_fn, setup)
    _check_obtained(engine.obtained, setup)
    check_own_optimizer(engine.torch_optimizer, setup)
    # Dropout differs from rank to rank; the weights, drawn before, do not.
    torch.manual_seed(setup.seed + 1 + setup.rank)
    return engine


def _engine(model: nn.Module, loss_fn: LossFn, optimizer_fn: OptimizerFn, setup: Setup) -> Engine:
    # Imported where used: each takes seconds, and the pipeline alone needs DeepSpeed.
    if setup.stages > 1:
        from toolkit.engines.pipeline import PipelineEngine

        return PipelineEngine(model, loss_fn, optimizer_fn, setup)
    from toolkit.engines.accelerate import AccelerateEngine

    return AccelerateEngine(model, loss_fn, optimizer_fn, setup)


def _smoothed(loss_fn: LossFn, setup: Setup) -> LossFn:
    """The loss with the setup's label smoothing, where it takes that."""
    factor = setup.label_smoothing_factor
    if not factor:
        return loss_fn
    if "label_smoothing" not in signature(loss_fn).parameters:
        where = setup.origins.get("label_smoothing_factor", "label_smoothing_factor")
        reason = "loss_fn takes no label_smoothing, as toolkit.cross_entropy does"
        raise UserError(fault(where, factor, reason, "give it this keyword, or leave the argument out"))
    takes: Callable[..., Tensor] = loss_fn
    return partial(takes, label_smoothing=factor)


def _check_obtained(obtained: dict[str, Any], setup: Setup) -> None:
    """A silent fallback is an error: both libraries have several on machines without a GPU."""
    zero = setup.deepspeed_config["zero_optimization"]["stage"] if setup.deepspeed_config else None
    asked = {"stage": zero, "data_parallel_ranks": setup.data_parallel_size, "pipeline_stages": setup.stages}
    engine = {"ddp": "DistributedDataParallel", "pipeline": "PipelineEngine", "pipeline_dp": "PipelineEngine"}
    if setup.strategy != "single":
        asked["engine"] = engine.get(setup.strategy, "DeepSpeedEngine")
    for name, value in asked.items():
        if obtained[name] != value:
            raise RuntimeError(f"asked for {setup.strategy} with {name} {value}, the libraries gave {obtained[name]}")


def _synchronised(model: nn.Module, setup: Setup) -> nn.Module:
    """SyncBatchNorm in BatchNorm's place where it is asked for, and a refusal where it cannot run."""
    own = any(isinstance(module, nn.SyncBatchNorm) for module in model.modules())
    if not (setup.sync_batch_norm or own):
        return model
    where, value = ("--sync_batch_norm", True) if setup.sync_batch_norm else ("model", "SyncBatchNorm")
    remedy = "use BatchNorm of each rank's own samples, or a norm of single samples"
    if group.on_cpu(setup):
        raise UserError(fault(where, value, "SyncBatchNorm runs on GPUs alone, and these ranks use the CPU", remedy))
    if setup.stages > 1:
        raise UserError(fault(where, value, "the stages of a pipeline do not run it together", remedy))
    if setup.weight_dtype != "float32":
        reason = f"SyncBatchNorm takes no {setup.weight_dtype} weights beside fp32 statistics"
        raise UserError(fault(where, value, reason, "train in fp32 or under autocast"))
    if not own and not any(isinstance(module, nn.modules.batchnorm._BatchNorm) for module in model.modules()):
        raise UserError(fault(where, value, f"{type(model).__name__} has no BatchNorm", "leave it out"))
    return nn.SyncBatchNorm.convert_sync_batchnorm(model)
