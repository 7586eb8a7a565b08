"""The fp16 loss scale of one process and DDP, by DeepSpeed's rule, so that it moves alike in every setup."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from toolkit.launch import say

# What a checkpoint keeps of a scale, under the names that DeepSpeed's scaler has too.
KEPT = ("cur_scale", "cur_iter", "last_overflow_iter", "cur_hysteresis")
# Steps skipped one after another at the smallest scale, after which a run ends: the gradients themselves are at fault.
SKIPS_AT_FLOOR = 10


class Scaler(Protocol):
    """DeepSpeed's loss scalers and `LossScaler`."""

    cur_scale: float


class LossScaler:
    """The rule of `deepspeed.runtime.fp16.loss_scaler` (0.19.8), with the numbers of its `fp16` section.

    torch's GradScaler has no hysteresis and no smallest scale; DeepSpeed's own class needs its process group.
    """

    def __init__(self, numbers: Mapping[str, Any]) -> None:
        self.numbers = numbers
        self.dynamic = numbers["loss_scale"] == 0
        self.cur_scale = float(2 ** numbers["initial_scale_power"] if self.dynamic else numbers["loss_scale"])
        self.cur_iter, self.last_overflow_iter, self.cur_hysteresis = 0, -1, numbers["hysteresis"]

    def update_scale(self, overflow: bool) -> None:
        """After each step: half the scale once `hysteresis` steps have overflowed, twice after a window without."""
        if not self.dynamic:
            return
        hysteresis = self.numbers["hysteresis"]
        if overflow:
            if hysteresis == 1 or self.cur_hysteresis == 1:
                self.cur_scale = max(self.cur_scale / 2, float(self.numbers["min_loss_scale"]))
            else:
                self.cur_hysteresis -= 1
            self.last_overflow_iter = self.cur_iter
        else:
            if self.numbers["consecutive_hysteresis"]:
                self.cur_hysteresis = hysteresis
            stable = self.cur_iter - self.last_overflow_iter - 1
            if stable > 0 and stable % self.numbers["loss_scale_window"] == 0:
                self.cur_hysteresis = hysteresis
                self.cur_scale *= 2
        self.cur_iter += 1


def at_floor(loss_scale: float, numbers: Mapping[str, Any]) -> bool:
    """Whether the scale can fall no further: a static one, or a dynamic one at its smallest value."""
    return bool(numbers["loss_scale"]) or loss_scale <= numbers["min_loss_scale"]


def kept(scaler: Scaler | None) -> dict[str, float] | None:
    """What a checkpoint keeps, {name: number}; None but in fp16."""
    return None if scaler is None else {name: getattr(scaler, name) for name in KEPT if hasattr(scaler, name)}


def restore(scaler: Scaler | None, state: Mapping[str, float] | None) -> None:
    """Go on with the scale that a checkpoint kept; one from another precision has none."""
    if scaler is not None and state is None:
        say(f"it holds no loss scale: going on with {scaler.cur_scale:g}")
    for name, value in (state or {}).items():
        if hasattr(scaler, name):
            setattr(scaler, name, value)
