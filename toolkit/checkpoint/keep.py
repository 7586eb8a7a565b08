"""The checkpoints of one run: when they are due, what is in them, which are kept."""

from __future__ import annotations

import math
import platform
import shutil
import time
from argparse import Namespace
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from typing import Any

from toolkit.augmentation import augmentation_of
from toolkit.checkpoint.files import DTYPES
from toolkit.checkpoint.position import Position
from toolkit.checkpoint.reader import find
from toolkit.checkpoint.save import save
from toolkit.data.sampler import Sampler
from toolkit.data.sources import Data
from toolkit.engines import Engine, scaler
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError, fault
from toolkit.launch import say

LIBRARIES = ("torch", "accelerate", "deepspeed", "transformers", "datasets", "evaluate")


class Checkpoints:
    """Saves every `checkpointing_steps` steps (or epochs) and at the end; keeps the newest and the best."""

    def __init__(
        self, engine: Engine, data: Data, arguments: Namespace, output_dir: Path, sampler: Sampler, total_steps: int
    ) -> None:
        self.engine, self.data, self.sampler, self.total_steps = engine, data, sampler, total_steps
        self.folder = output_dir / "checkpoints"
        self.augmentation = augmentation_of(arguments)
        self.every, self.limit = arguments.checkpointing_steps, arguments.save_total_limit
        self.failed = False  # whether the last save did
        for name, (dtype, shape, _) in engine.layout().items():
            if dtype not in DTYPES or 0 in shape:
                reason = f"is {dtype} of shape {shape}, which a checkpoint has no place for"
                raise UserError(fault("model", name, reason, "leave it out, or make it a buffer with persistent=False"))
        # A run that goes on in its folder has the checkpoint that it stands at.
        there = on_rank_0(lambda: [each.name for each in find(self.folder)])
        self._saved_step = int(there[-1].partition("-")[2]) if there else 0
        self.written: dict[str, float] | None = None  # bytes on disk, all ranks', and seconds of the last that was

    def due(self, at: Position) -> bool:
        if self.every is None:
            return False
        return at.index == 0 if self.every == "epoch" else at.step % self.every == 0

    def save(self, at: Position, *, initial: bool = False) -> None:
        """Write a checkpoint of this step, once; a failure is told, and the next save tries again. Collective.

        Args:
            initial: of the weights before the first step, step 0.
        """
        if initial or at.step != self._saved_step:
            folder = self.folder / name_of(at.step)
            began = time.perf_counter()
            problem = save(self.engine, folder, self._about(at), self._add_files)
            self.failed = problem is not None
            if self.failed:
                say(f"warning: checkpoint {folder.name} could not be written ({problem}); earlier ones are whole")
                return
            self._saved_step = at.step
            if self.engine.setup.rank == 0:
                size = sum(path.stat().st_size for path in folder.iterdir())
                self.written = {"bytes": size, "seconds": time.perf_counter() - began}
        on_rank_0(lambda: self._prune(at))

    def _about(self, at: Position) -> dict[str, Any]:
        engine = self.engine
        arguments = engine.model_arguments if isinstance(engine.model_arguments, dict) else None
        return asdict(at) | {
            "scores": {name: value if _in_json(value) else None for name, value in at.scores.items()},
            "updates": engine.updates,
            "total_steps": self.total_steps,
            "order": self.sampler.order,
            "augmentation": self.augmentation.as_dict(),
            "loss_scaler": scaler.kept(self.engine.scaler),
            "setup": engine.setup.as_dict(),
            "versions": versions(),
            "model": {"class": engine.model_class, "arguments": arguments},
            "data": {"kind": None, "label_names": self.data.label_names, **self.data.preprocessing},
        }

    def _add_files(self, folder: Path) -> None:
        """What `from_pretrained` asks for beside the weights, where the model is one of transformers."""
        config: Any = self.engine.model_config
        if callable(getattr(config, "save_pretrained", None)):
            config.architectures = [self.engine.model_class]
            config.save_pretrained(folder)
        if self.data.tokenizer is not None:
            self.data.tokenizer.save_pretrained(folder)

    def _prune(self, at: Position) -> None:
        """Keep the newest `save_total_limit`; the one of the lowest evaluation loss takes the oldest's place."""
        if self.limit is None:
            return
        found = find(self.folder)
        keep = found[-self.limit :]
        best = [folder for folder in found if folder.name == name_of(at.best_step)]
        if best and best[0] not in keep:
            keep = [*best, *found[-max(self.limit - 1, 1) :]]
        for folder in found:
            if folder not in keep:
                # Under a name that no reader takes for a checkpoint, should the removal be cut short.
                doomed = folder.rename(folder.with_name(f".{folder.name}.tmp"))
                shutil.rmtree(doomed, ignore_errors=True)


def name_of(step: int) -> str:
    """Name of a checkpoint's folder."""
    return f"step-{step:06d}"


def _in_json(value: Any) -> bool:
    """JSON has no NaN and no infinity."""
    return not isinstance(value, float) or math.isfinite(value)


def versions() -> dict[str, str]:
    """Of Python and the libraries that train."""
    return {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES}
