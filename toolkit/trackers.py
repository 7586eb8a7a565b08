"""--report_to: a run's numbers in TensorBoard, Trackio, W&B or MLflow, through Accelerate's trackers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from toolkit.launch import say

PROJECT = "oneloop"


class Trackers:
    """Those of one run, on the one rank that has them. What a tracker raises is told once, and ends that tracker alone.

    Args:
        names: of `NAMES`; none: nothing is reported.
        setup: `Setup.as_dict()`, kept as the run's configuration.
        step: where the run goes on; what TensorBoard has of later steps is hidden.
    """

    def __init__(self, names: list[str] | None, output_dir: Path, setup: Mapping[str, Any], step: int) -> None:
        self._live: dict[str, Any] = {}
        for name in names or ():
            self._try(name, lambda name=name: self._start(name, output_dir, setup, step))

    def log(self, row: Mapping[str, Any]) -> None:
        """One row of metrics.jsonl: its numbers as train/..., those of an evaluation as eval/...."""
        values = {
            f"eval/{name.removeprefix('eval_')}" if name.startswith("eval_") else f"train/{name}": value
            for name, value in row.items()
            if isinstance(value, int | float) and name != "step"
        }
        for name, tracker in list(self._live.items()):
            self._try(name, lambda tracker=tracker: tracker.log(values, step=row["step"]))

    def finish(self) -> None:
        for name, tracker in list(self._live.items()):
            self._try(name, tracker.finish)
        self._live = {}

    def _start(self, name: str, output_dir: Path, setup: Mapping[str, Any], step: int) -> None:
        from accelerate.tracking import LOGGER_TYPE_TO_CLASS

        of_name: dict[str, tuple[str, dict[str, Any]]] = {
            "tensorboard": (name, {"logging_dir": str(output_dir), "purge_step": step + 1 if step else None}),
            "trackio": (PROJECT, {"name": output_dir.name}),
            "wandb": (PROJECT, {"name": output_dir.name, "dir": str(output_dir)}),
            "mlflow": (PROJECT, {"run_name": output_dir.name}),
        }
        project, options = of_name[name]
        tracker = LOGGER_TYPE_TO_CLASS[name](project, **options)
        # This rank alone makes trackers: asking Accelerate which process is the main one would start its state anew.
        tracker.main_process_only = False
        tracker.start()
        tracker.store_init_configuration({key: _flat(told["value"]) for key, told in setup.items()})
        self._live[name] = tracker

    def _try(self, name: str, call: Any) -> None:
        try:
            call()
        except Exception as error:  # a server that is gone must not end hours of training
            self._live.pop(name, None)
            lines = str(error).splitlines() or [""]
            say(f"warning: {name} gets nothing more ({type(error).__name__}: {lines[0]})")


def _flat(value: Any) -> bool | int | float | str:
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
