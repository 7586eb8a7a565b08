"""Which evaluation of a run is its best, and when no better one is to be waited for."""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from toolkit.checkpoint.position import Position
from toolkit.engines.scores import scores_of
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup.words import nearest

ARGUMENT = "--metric_for_best_model"


@dataclass(frozen=True)
class Best:
    """`metric` is a name among the scores; `patience` counts evaluations, None waits for ever."""

    metric: str
    greater_is_better: bool
    threshold: float  # a better score differs by more
    patience: int | None
    saves: bool  # a checkpoint at each new best

    @classmethod
    def of(cls, arguments: Namespace) -> Best:
        """Of the arguments: a name that ends with loss is better where it is lower, any other where it is greater."""
        metric, greater = arguments.metric_for_best_model, arguments.greater_is_better
        return cls(
            metric=metric,
            greater_is_better=not metric.endswith("loss") if greater is None else greater,
            threshold=arguments.early_stopping_threshold,
            patience=arguments.early_stopping_patience,
            saves="metric_for_best_model" in arguments.typed or arguments.early_stopping_patience is not None,
        )

    def check(self, metrics: Sequence[Any], evaluates: bool) -> None:
        """Before anything is trained: a metric that no evaluation will have. Raises UserError."""
        if self.saves and not evaluates:
            reason = "there is no evaluation set, so no evaluation is the best"
            raise UserError(fault(ARGUMENT, self.metric, reason, "give --validation_file, or leave it out"))
        if self.metric == "loss" or not evaluates:
            return
        try:
            names = list(scores_of(torch.zeros(1, 4, dtype=torch.float64), metrics, tell=False))
        except ValueError:
            return  # not defined for one row: the first evaluation tells
        if self.metric not in names:
            raise self._unknown(names)

    def judge(self, at: Position, scores: dict[str, Any]) -> bool:
        """Whether `scores`, of the step that `at` stands at, are the best so far; counts those that are not.

        Raises:
            UserError: the metric is not among the scores, or no number.
        """
        if self.metric not in scores:
            raise self._unknown(list(scores))
        score = scores[self.metric]
        if isinstance(score, list | dict):
            raise UserError(fault(ARGUMENT, self.metric, "is no single number", "choose loss, accuracy or f1"))
        if at.best_metric != self.metric and at.best_score is not None:
            say(f"the best step is counted anew: {self.metric} decides, it was {at.best_metric}")
            at.best_score, at.best_step, at.waited = None, 0, 0
        at.best_metric = self.metric
        if self._better(score, at.best_score):
            at.best_score, at.best_step, at.waited = float(score), at.step, 0
            return True
        at.waited += 1
        return False

    def given_up(self, at: Position) -> bool:
        """Whether `patience` evaluations in a row were no better."""
        return self.patience is not None and at.waited >= self.patience

    def reason(self, at: Position) -> str:
        """Why the run ends before its last step."""
        found = "none has it" if at.best_score is None else f"the best is {at.best_score:.4g} at step {at.best_step}"
        waited = f"{at.waited} evaluation{'s' * (at.waited > 1)}"
        return f"stopped early at step {at.step}: no better {self.metric} in {waited}, {found}"

    def _better(self, score: Any, best: float | None) -> bool:
        if score is None or not math.isfinite(score):
            return False
        gain = 0.0 if best is None else (score - best if self.greater_is_better else best - score)
        return best is None or gain > self.threshold

    def _unknown(self, names: list[str]) -> UserError:
        remedy = nearest(self.metric, names) or f"choose one of {', '.join(names)}"
        return UserError(fault(ARGUMENT, self.metric, "is not among the evaluation's scores", remedy))
