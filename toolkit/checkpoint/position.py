"""Where a run stands."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from toolkit.data.sampler import Sampler


@dataclass
class Position:
    """After `step` optimizer steps. Resuming is arithmetic: the next step is `index` of `epoch`, both from 0."""

    step: int = 0
    epoch: int = 0
    index: int = 0
    samples: int = 0
    evaluation_due: bool = False  # the step ended an epoch, or was the last, and is not evaluated yet
    scores: dict[str, Any] = field(default_factory=dict)  # of the last evaluation
    best_step: int = 0  # of the lowest evaluation loss so far
    best_loss: float | None = None

    def advance(self, sampler: Sampler, total_steps: int) -> None:
        """A step has been done."""
        self.step += 1
        self.samples += len(sampler.global_batch(self.epoch, self.index))
        self.index += 1
        if self.index == sampler.steps_per_epoch:
            self.epoch, self.index = self.epoch + 1, 0
        self.evaluation_due = self.index == 0 or self.step == total_steps

    def evaluated(self, scores: dict[str, Any]) -> None:
        """The step has been evaluated."""
        self.scores, self.evaluation_due = scores, False
        loss = scores["loss"]
        if loss is not None and math.isfinite(loss) and (self.best_loss is None or loss < self.best_loss):
            self.best_step, self.best_loss = self.step, loss

    @property
    def epoch_of_step(self) -> int:
        """The epoch that the last step belongs to."""
        return self.epoch if self.index else self.epoch - 1
