"""What the losses say of a run that goes wrong: one that is not finite ends it, a jump is told."""

from __future__ import annotations

import json
import math
from collections import deque
from pathlib import Path
from statistics import median
from typing import Any

from toolkit.checkpoint.reader import find
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError, fault
from toolkit.launch import say

RECENT, FEWEST = 20, 5  # steps whose median a loss is held against, and how many of them it takes
NAMED = 8  # samples that a line names
FILE = "not_finite.json"


class Losses:
    """Looks at every step once, in order, on every rank alike.

    Args:
        spike_factor: a loss of more than so many times the median of the steps before it is told; None: none is.
        writes: whether this rank writes FILE.
    """

    def __init__(self, sampler: Sampler, spike_factor: float | None, output_dir: Path, writes: bool) -> None:
        self.sampler, self.spike_factor, self.output_dir, self.writes = sampler, spike_factor, output_dir, writes
        self._recent: deque[float] = deque(maxlen=RECENT)

    def look(self, row: dict[str, Any], place: tuple[int, int]) -> None:
        """One row of metrics.jsonl; `place` is the step's epoch and global batch, both from 0.

        Raises:
            UserError: loss or gradient norm are not finite, and the step was not one that fp16 skips.
        """
        if row["skipped"]:
            return
        for name in ("loss", "grad_norm"):
            if not math.isfinite(row[name]):
                self._end(row, name, place)
        self._tell_spike(row, place)
        self._recent.append(row["loss"])

    def _end(self, row: dict[str, Any], name: str, place: tuple[int, int]) -> None:
        ids = self.sampler.global_batch(*place)
        if self.writes:
            told = {key: row[key] for key in ("step", "updates", "epoch", "learning_rate")} | {"samples": ids}
            told |= {key: row[key] if math.isfinite(row[key]) else str(row[key]) for key in ("loss", "grad_norm")}
            try:
                (self.output_dir / FILE).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")
            except OSError as error:
                say(f"warning: {FILE} could not be written ({error})")
        kept = find(self.output_dir / "checkpoints")
        last = f"the newest checkpoint is {kept[-1].name}" if kept else "there is no checkpoint yet"
        what = {"loss": "the loss", "grad_norm": "the gradient norm"}[name]
        reason = (
            f"{what} of step {row['step']} is not finite, at learning rate {row['learning_rate']:.3g} and on "
            f"{_named(ids)} of the training data; {last}"
        )
        remedy = "look at these rows, lower --learning_rate, warm up longer, or clip (--max_grad_norm)"
        raise UserError(fault(name, row[name], reason, remedy))

    def _tell_spike(self, row: dict[str, Any], place: tuple[int, int]) -> None:
        if self.spike_factor is None or len(self._recent) < FEWEST:
            return
        usual = median(self._recent)
        if row["loss"] > self.spike_factor * usual > 0:
            say(
                f"warning: the loss of step {row['step']}, {row['loss']:.4g}, is {row['loss'] / usual:.3g} times the "
                f"median of the {len(self._recent)} steps before it, at learning rate {row['learning_rate']:.3g} and "
                f"on {_named(self.sampler.global_batch(*place))} of the training data"
            )


def _named(ids: list[int]) -> str:
    more = f", ... ({len(ids)} in all)" if len(ids) > NAMED else ""
    return f"row{'s' * (len(ids) > 1)} {', '.join(map(str, ids[:NAMED]))}{more}"
