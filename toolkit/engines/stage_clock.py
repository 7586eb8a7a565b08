"""How long the stages of a pipeline work, and how long a step takes them."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch
from deepspeed.runtime.pipe import schedule

from toolkit.engines.ranks import every_rank

MEASURED_STEPS = 200  # of a run: enough for a median, and no growing list in a long one
_WORK = (schedule.LoadMicroBatch, schedule.ForwardPass, schedule.BackwardPass)


class StageClock:
    """Seconds that this rank's stage works in each of the first steps, and seconds until its last backward pass.

    On a GPU events in the stream are read one step later, so that nothing waits for them.
    """

    def __init__(self, engine: Any, device: torch.device) -> None:
        """Args:
        engine: DeepSpeed's `PipelineEngine`; it looks each instruction of its schedule up in a table, which gets
            these clocks.
        """
        self._device = device
        self._steps: list[tuple[float, float]] = []  # (working, until the last backward pass)
        self._began: Any = None
        self._work: list[tuple[Any, Any]] = []
        table = engine._INSTRUCTION_MAP
        engine._INSTRUCTION_MAP = table | {kind: self._timed(table[kind]) for kind in _WORK}

    def begin(self) -> None:
        """A step is about to start."""
        self._read()
        if len(self._steps) < MEASURED_STEPS:
            self._began = self._mark()

    def _timed(self, instruction: Callable[..., None]) -> Callable[..., None]:
        def timed(engine: Any, *args: Any, **kwargs: Any) -> None:
            start = self._mark() if self._began is not None and engine.module.training else None
            instruction(engine, *args, **kwargs)
            if start is not None:
                self._work.append((start, self._mark()))

        return timed

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _read(self) -> None:
        if self._work:
            working = sum(_between(start, end) for start, end in self._work)
            self._steps.append((working, _between(self._began, self._work[-1][1])))
        self._began, self._work = None, []

    def stages(self, stage: int) -> dict[str, Any] | None:
        """{"working_seconds": of each stage in a step, "step_seconds": until the last backward pass of any rank}.

        Medians over the steps but the first; None where there is one step alone. Collective.

        Args:
            stage: of this rank.
        """
        self._read()
        shares = every_rank((stage, self._steps[1:]))
        if not self._steps[1:]:
            return None
        working: dict[int, list[float]] = {}
        for number, steps in shares:
            working.setdefault(number, []).extend(seconds for seconds, _ in steps)
        longest = [max(span for _, span in step) for step in zip(*(steps for _, steps in shares), strict=True)]
        return {
            "working_seconds": [median(working[number]) for number in sorted(working)],
            "step_seconds": median(longest),
        }


def _between(start: Any, end: Any) -> float:
    if isinstance(start, float):
        return float(end - start)
    end.synchronize()
    return float(start.elapsed_time(end)) / 1000
