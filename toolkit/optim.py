"""Optimizers and learning rates: the same arithmetic in every setup."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from toolkit.launch import say
from toolkit.setup import Setup
from toolkit.setup.scheduler_kwargs import defaults_of
from toolkit.setup.schema import OPTIMIZERS, SCHEDULES


def optimizer_from(setup: Setup) -> Callable[[list[dict[str, Any]]], torch.optim.Optimizer]:
    """An `optimizer_fn` for `prepare`: SGD with momentum (Nesterov's too), Adam or AdamW with the setup's numbers.

    Raises:
        ValueError: the setup names another optimizer.
    """
    if setup.optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer {setup.optimizer!r} is not one of {', '.join(OPTIMIZERS)}")

    def build(param_groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        numbers = {"lr": setup.learning_rate, "weight_decay": setup.weight_decay, **setup.optimizer_options}
        if setup.optimizer == "sgd":
            return torch.optim.SGD(param_groups, momentum=setup.momentum, **numbers)
        if setup.offloads_optimizer:
            from toolkit.engines.host_adam import host_adam

            return host_adam(param_groups, decoupled=setup.optimizer == "adamw", **numbers)
        kind = torch.optim.AdamW if setup.optimizer == "adamw" else torch.optim.Adam
        # One pass over each tensor: on 2 cores 20 ms for 23 million parameters instead of 77.
        return kind(param_groups, fused=_fusable(param_groups), **numbers)

    return build


def _fusable(param_groups: Iterable[Mapping[str, Any]]) -> bool:
    """Whether torch has a fused kernel where these parameters are; its loop over tensors gives the same numbers."""
    # torch's own list, with which it refuses fused=True.
    from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

    devices = _get_fused_kernels_supported_devices()
    parameters = [p for group in param_groups for p in group["params"]]
    left_out = [p for p in parameters if not (p.device.type in devices and p.is_floating_point())]
    for device, dtype in sorted({(p.device.type, str(p.dtype)) for p in left_out}):
        say(f"torch has no fused Adam for {dtype} on {device}: its loop over tensors takes its place")
    return not left_out


def lr_at(
    updates: int,
    *,
    schedule: str,
    learning_rate: float,
    num_warmup_steps: int,
    total_steps: int,
    params: Mapping[str, Any] | None = None,
) -> float:
    """The learning rate of the update that follows `updates` applied ones: a pure function, the same on every rank.

    Warm-up rises from 0 in `num_warmup_steps` equal steps; then `constant`, `linear` to 0 at `total_steps`, `cosine`,
    half a wave to 0 at `total_steps`, `cosine_with_restarts` or `polynomial`: the formulas of transformers'
    `get_scheduler`, but for `constant`, which warms up too instead of passing over `num_warmup_steps`. `one_cycle` is
    torch's OneCycleLR with a momentum that stays.

    Args:
        params: `Setup.lr_schedule`, of a schedule by DeepSpeed's name or one with numbers of its own.

    Raises:
        ValueError: another schedule's name.
    """
    if schedule in _OF_DEEPSPEED:
        given = dict(params or {})
        if given.get("total_num_steps") == "auto":
            given["total_num_steps"] = total_steps
        return _OF_DEEPSPEED[schedule](updates, learning_rate, given)
    if schedule not in SCHEDULES:
        raise ValueError(f"schedule {schedule!r} is not one of {', '.join((*SCHEDULES, *_OF_DEEPSPEED))}")
    numbers = {**defaults_of(schedule), **(params or {})}
    if schedule == "one_cycle":
        return _cycle(updates, learning_rate, total_steps, numbers)
    if updates < num_warmup_steps:
        return learning_rate * updates / num_warmup_steps
    progress = (updates - num_warmup_steps) / max(1, total_steps - num_warmup_steps)
    if schedule == "linear":
        return learning_rate * max(0.0, 1.0 - progress)
    if schedule == "cosine":
        return learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * min(progress, 1.0))))
    if schedule == "cosine_with_restarts":
        wave = (numbers["num_cycles"] * progress) % 1.0
        return learning_rate * max(0.0, 0.5 * (1.0 + math.cos(math.pi * wave))) if progress < 1.0 else 0.0
    if schedule == "polynomial":
        end = numbers["lr_end"]
        return float(end + (learning_rate - end) * (1.0 - min(progress, 1.0)) ** numbers["power"])
    return learning_rate


def _cycle(updates: int, learning_rate: float, total_steps: int, numbers: Mapping[str, Any]) -> float:
    """The rate of torch.optim.lr_scheduler.OneCycleLR, whose last step is `total_steps` - 1."""
    first = learning_rate / numbers["div_factor"]
    low = first / numbers["final_div_factor"]
    top, end = numbers["pct_start"] * total_steps - 1.0, total_steps - 1.0
    points = [(0.0, first), (top, learning_rate), (end, low)]
    if numbers["three_phase"]:
        points[2:] = [(2.0 * top, first), (end, low)]
    for (start, begins), (stop, ends) in zip(points, points[1:], strict=False):
        if updates <= stop and start < stop:
            share = (updates - start) / (stop - start)
            if numbers["anneal_strategy"] == "linear":
                return float((ends - begins) * share + begins)
            return float(ends + (begins - ends) / 2.0 * (1.0 + math.cos(math.pi * share)))
    return float(low)


def _rise(index: int, warmup: int, kind: str) -> float:
    """The warm-up's share of the way up, 0 to 1, at `index` below `warmup`."""
    return 1.0 / math.log(warmup) * math.log(index + 1) if kind == "log" else index / warmup


# The formulas of deepspeed/runtime/lr_schedules.py 0.19.8, in its order of operations. Its warm-up counts from -1: the
# first two updates have the lowest rate, and the update after k applied ones has the index k - 1. A warm-up of 1 is 2.
def _warmup(updates: int, learning_rate: float, params: Mapping[str, Any]) -> float:
    """WarmupLR, and WarmupDecayLR where `total_num_steps` is given: to `warmup_min_lr` at that index."""
    index, warmup, low = updates - 1, max(2, params["warmup_num_steps"]), params["warmup_min_lr"]
    if index < 0:
        return float(low)
    share = 1.0
    if index < warmup:
        share = _rise(index, warmup, params["warmup_type"])
    elif (total := params.get("total_num_steps")) is not None:
        share = max(0.0, float(total - index) / float(max(1.0, total - warmup)))
    return float(low + (learning_rate - low) * share)


def _warmup_cosine(updates: int, learning_rate: float, params: Mapping[str, Any]) -> float:
    """WarmupCosineLR: ratios of the optimizer's rate, 0 for the first update."""
    index, warmup, total = updates - 1, max(2, params["warmup_num_steps"]), params["total_num_steps"]
    if index < 0:
        return 0.0
    if index < warmup:
        low = params["warmup_min_ratio"]
        return float(learning_rate * (low + _rise(index, warmup, params["warmup_type"]) * (1.0 - low)))
    low, progress = params["cos_min_ratio"], min(1.0, (index - warmup + 1) / max(1, total - warmup))
    return float(learning_rate * max(0.0, low + (1.0 - low) * ((1 + math.cos(math.pi * progress)) / 2)))


def _one_cycle(updates: int, learning_rate: float, params: Mapping[str, Any]) -> float:
    """OneCycle: up to `learning_rate`, down, then a decay below `cycle_min_lr`."""
    low, first, second = (
        params["cycle_min_lr"],
        float(params["cycle_first_step_size"]),
        params["cycle_second_step_size"],
    )
    second = first if second is None else float(second)
    size = first + second
    if updates - 1 >= size:
        interval, rate = params["decay_step_size"], params["decay_lr_rate"]
        return float(low if not interval or not rate else low / (1 + rate * ((updates - size) / interval)))
    ratio = first / size
    x = 1.0 + updates / size - math.floor(1 + updates / size)
    share, stairs = x / ratio, params["cycle_first_stair_count"]
    if x > ratio:
        share = (x - 1) / (ratio - 1)
        stairs = stairs if params["cycle_second_stair_count"] is None else params["cycle_second_stair_count"]
    if stairs > 0:
        at = updates % size
        share = math.floor((at if at <= first else size - at) * stairs / (first if at <= first else second)) / stairs
    return float(low + (learning_rate - low) * share)


_OF_DEEPSPEED: dict[str, Callable[[int, float, Mapping[str, Any]], float]] = {
    "WarmupLR": _warmup,
    "WarmupDecayLR": _warmup,
    "WarmupCosineLR": _warmup_cosine,
    "OneCycle": _one_cycle,
}
