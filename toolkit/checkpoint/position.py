"""Where a run stands."""

from __future__ import annotations

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
    evaluation_due: bool = False  # the step is to be evaluated, and is not yet
    scores: dict[str, Any] = field(default_factory=dict)  # of the last evaluation
    best_step: int = 0  # of the best evaluation so far
    best_metric: str = "loss"  # by which it is the best
    best_score: float | None = None
    waited: int = 0  # evaluations since then

    def advance(self, sampler: Sampler, total_steps: int, eval_steps: int | None = None) -> None:
        """A step has been done; an evaluation is due every `eval_steps`, or at the end of an epoch, and at the end."""
        self.step += 1
        self.samples += len(sampler.global_batch(self.epoch, self.index))
        self.index += 1
        if self.index == sampler.steps_per_epoch:
            self.epoch, self.index = self.epoch + 1, 0
        due = self.index == 0 if eval_steps is None else self.step % eval_steps == 0
        self.evaluation_due = due or self.step == total_steps

    @classmethod
    def of(cls, about: dict[str, Any]) -> Position:
        """As a checkpoint tells it; one of an older version has the lowest loss as `best_loss`."""
        told = {"best_score": about.get("best_loss"), **about}
        return cls(**{name: told[name] for name in cls.__dataclass_fields__ if name in told})

    @property
    def epoch_of_step(self) -> int:
        """The epoch that the last step belongs to."""
        return self.epoch if self.index else self.epoch - 1
