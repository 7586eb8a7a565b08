"""What a run leaves: metrics.jsonl, summary.json, config/; and what it shows: a progress bar and a last line."""

from __future__ import annotations

import json
import math
import os
import resource
import shutil
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from toolkit import stop, watch
from toolkit.checkpoint.keep import versions
from toolkit.checkpoint.position import Position
from toolkit.curves import draw, draw_evaluation
from toolkit.data.sampler import Sampler
from toolkit.engines import Engine, StepStats
from toolkit.engines.ranks import communication, every_rank
from toolkit.errors import PREFIX, UserError, fault
from toolkit.launch import say
from toolkit.losses import Losses
from toolkit.timing import StepTimes
from toolkit.trackers import Trackers

LINE_SECONDS = 10.0  # between lines where there is no terminal to draw a bar on

current: Monitor | None = None


class Monitor:
    """Collects each step's numbers on the device, and writes them together every `logging_steps`.

    Used as a context: `with Monitor(...) as monitor`. Only rank 0 writes and shows.
    """

    def __init__(
        self, engine: Engine, arguments: Any, output_dir: Path, total_steps: int, at: Position, sampler: Sampler
    ) -> None:
        self.engine, self.setup, self.arguments, self.output_dir = engine, engine.setup, arguments, output_dir
        self.total_steps = total_steps
        self.steps = self._resumed_at = at.step
        self.scores, self.at = at.scores, at
        self.stopped_early = False
        self.checkpoint: dict[str, float] | None = None  # bytes and seconds of the last that was written
        self.first_save_seconds = 0.0  # of --save_initial, which are no wait for the first step
        self.not_saved = False  # whether the last checkpoint found no room on the disk
        self._unwritten = ""  # rows that a full disk did not take
        self._writes = self.setup.rank == 0
        names = arguments.report_to if self._writes else None
        self._trackers = Trackers(names, output_dir, self.setup.as_dict(), at.step)
        self._losses = Losses(sampler, arguments.loss_spike_factor, output_dir, self._writes)
        self._place = (at.epoch, at.index)  # of the step in work
        self.times = StepTimes()
        self._waiting: list[tuple[dict[str, Any], StepStats, tuple[int, int]]] = []
        self._began = self._flushed = self._told = time.time()
        self._flushed_samples = at.samples
        self._first_step: float | None = None
        self._not_finite = False  # said once
        self._progress = Progress(
            TextColumn("[bold]step {task.completed}/{task.total}"),
            BarColumn(),
            TextColumn("{task.fields[text]}"),
            TimeRemainingColumn(),
            console=Console(file=sys.stderr),
            disable=not (self._writes and sys.stderr.isatty()),
        )
        self._bar = self._progress.add_task("train", total=total_steps, completed=at.step, text="")

    def __enter__(self) -> Monitor:
        global current
        current = self
        stop.open_()
        if self._writes:
            try:
                self._write_config()
            except OSError as error:
                reason = f"cannot be written ({error.strerror})"
                raise UserError(fault("--output_dir", str(self.output_dir), reason, "make room for it")) from error
            self._write_summary(error=None)
            for line in (self.setup.banner(), *self.setup.notes):
                say(line)
        if watch.current:
            watch.current.output_dir = self.output_dir
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
        stop.close_()
        if error is None:
            self._finish()
        elif isinstance(error, UserError):  # the same on every rank, and what led to it is worth reading
            self.flush()
        self._trackers.finish()

    def begin(self, at: Position) -> None:
        """The optimizer step after `at` is about to start."""
        self.steps, self._place = at.step + 1, (at.epoch, at.index)
        self.times.begin()
        if watch.current:
            watch.current.step = self.steps

    def end(self, at: Position, learning_rate: float, stats: StepStats) -> None:
        """An optimizer step has ended. Nothing is read off the device until the next write."""
        if self._first_step is None:
            stats.loss.item()  # the one wait outside logging: it dates the first step
            self._first_step = time.time() - _process_start() - self.first_save_seconds
        row = {
            "step": self.steps,
            "updates": self.engine.updates,
            "epoch": at.epoch_of_step,
            "samples": at.samples,
            "learning_rate": learning_rate,
            **self.times.end(),
        }
        self._waiting.append((row, stats, self._place))
        if len(self._waiting) >= self.arguments.logging_steps or self.steps == self.total_steps:
            self.flush()

    def flush(self) -> None:
        """Read the waiting steps off the device in one go and append them to metrics.jsonl.

        Raises:
            UserError: a loss or gradient norm is not finite, on every rank alike.
        """
        if not self._waiting:
            return
        values = torch.stack([torch.stack([s.loss.float(), s.grad_norm.float()]) for _, s, _ in self._waiting]).tolist()
        now = time.time()
        first, last = self._waiting[0][0], self._waiting[-1][0]
        per_step = (now - self._flushed) / len(self._waiting)
        rate = (last["samples"] - self._flushed_samples) / len(self._waiting) / per_step
        rows = []
        for (row, stats, place), (loss, grad_norm) in zip(self._waiting, values, strict=True):
            numbers = {"loss": loss, "grad_norm": grad_norm, "skipped": stats.skipped, "samples_per_second": rate}
            if stats.loss_scale is not None:
                numbers["loss_scale"] = stats.loss_scale
            rows.append((row | numbers, place))
        self._flushed, self._flushed_samples = now, last["samples"]
        self._waiting.clear()
        if self._writes:
            self._unwritten += "".join(self._line(row) for row, _ in rows)
            for row, _ in rows:
                self._trackers.log(row)
            self._append()
            self._show(last["step"], last["step"] - first["step"] + 1, values[-1][0], last["learning_rate"], rate)
        for row, place in rows:
            self._losses.look(row, place)

    def evaluated(self, scores: dict[str, Any]) -> None:
        """An evaluation has ended; its time is not training time."""
        self.flush()
        self.scores = scores
        self._flushed = time.time()
        if self._writes:
            row = {"step": self.steps} | {f"eval_{name}": value for name, value in scores.items()}
            self._unwritten += self._line(row)
            self._trackers.log(row)
            self._append()

    def _line(self, row: dict[str, Any]) -> str:
        """A row as JSON, which has no NaN and no infinity: null, and said once."""
        bad = [name for name, value in row.items() if _not_finite(value)]
        if bad and not self._not_finite:
            self._not_finite = True
            say(f"{', '.join(bad)} not finite at step {row['step']}: null in metrics.jsonl")
        return json.dumps({name: None if name in bad else value for name, value in row.items()}) + "\n"

    @property
    def unwritten(self) -> bool:
        """Whether rows of metrics.jsonl found no room on the disk."""
        return bool(self._unwritten)

    def _append(self) -> None:
        """Whole rows or none: what a full disk does not take is kept for the next time."""
        if not self._unwritten:
            return
        path = self.output_dir / "metrics.jsonl"
        size = path.stat().st_size if path.exists() else 0
        try:
            with path.open("a", encoding="utf-8") as file:
                file.write(self._unwritten)
        except OSError as error:
            if path.exists():
                os.truncate(path, size)
            say(f"warning: rows of metrics.jsonl wait for room on the disk ({error})")
        else:
            self._unwritten = ""

    def _show(self, step: int, advance: int, loss: float, learning_rate: float, rate: float) -> None:
        text = f"loss {loss:.4f}  lr {learning_rate:.2e}  {rate:.0f} samples/s"
        self._progress.update(self._bar, advance=advance, text=text)
        if self._progress.disable and time.time() - self._told > LINE_SECONDS:
            self._told = time.time()
            say(f"step {step}/{self.total_steps}  {text}")

    def _write_config(self) -> None:
        folder = self.output_dir / (f"config/from-step-{self._resumed_at:06d}" if self._resumed_at else "config")
        folder.mkdir(parents=True, exist_ok=True)
        (self.output_dir / "metrics.jsonl").touch()
        for path in self.setup.config_files:
            shutil.copy(path, folder)
        derived = ("typed", "script_defaults", "script_layers")
        told = {name: value for name, value in vars(self.arguments).items() if name not in derived}
        (folder / "arguments.json").write_text(json.dumps(told, indent=2, default=str) + "\n", encoding="utf-8")

    def _write_summary(self, **more: Any) -> None:
        summary = {
            "setup": self.setup.as_dict(),
            "obtained": self.engine.obtained,
            "steps": self.steps,
            "updates": self.engine.updates,
            "metrics": {name: None if _not_finite(value) else value for name, value in self.scores.items()},
            "best": {"metric": self.at.best_metric, "score": self.at.best_score, "step": self.at.best_step},
            "stopped_early": self.stopped_early,
            "seconds": time.time() - _process_start(),
            "seconds_to_first_step": self._first_step,
            "median_step": self.times.medians(),
            "resumed_at_step": self._resumed_at,
            "versions": versions(),
        }
        temporary = self.output_dir / "summary.json.tmp"
        try:
            temporary.write_text(json.dumps(summary | more, indent=2) + "\n", encoding="utf-8")
            temporary.replace(self.output_dir / "summary.json")
        except OSError as error:
            say(f"warning: summary.json could not be written ({error})")

    def _finish(self) -> None:
        peaks = every_rank(_peak_memory_bytes(self.engine.device))
        stages = self.engine.stage_times()
        if not self._writes:
            return
        self.flush()
        self._append()
        cause = stop.gate.signal and {"rank": self.setup.rank, "step": self.steps, "message": stop.reason()}
        if self.not_saved:
            cause = {"rank": self.setup.rank, "step": self.steps, "message": "the last checkpoint is not saved"}
        costs = {"checkpoint": self.checkpoint, "pipeline": stages, "communication": communication()}
        self._write_summary(peak_memory_bytes=peaks, **costs, error=cause)
        self._draw()
        numbers = {name: value for name, value in sorted(self.scores.items()) if isinstance(value, float)}
        scores = ", ".join(f"{name} {value:.4f}" for name, value in numbers.items())
        seconds, how = time.time() - self._began, f"{cause['message']}: " if cause else "done: "
        skipped = self.steps - self.engine.updates
        told = f", skipped {skipped} of {self.steps} steps for fp16 overflow," if skipped else ""
        say(f"{how}{scores or 'no evaluation'} after {self.steps} steps{told} in {seconds:.1f} s, in {self.output_dir}")

    def _draw(self) -> None:
        try:
            draw(self.output_dir, self.setup.title())
            draw_evaluation(self.output_dir, self.setup.title(), self.scores)
        except OSError as error:
            say(f"warning: curves.png or evaluation.png could not be written ({error})")


def _not_finite(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def record_failure(error: BaseException) -> None:
    """One process has failed: say at which step, in summary.json and as the last line."""
    lines = str(error).strip().splitlines()
    message = f"{type(error).__name__}: {lines[0] if lines else ''}"
    step, rank = record_end(message), int(os.environ.get("RANK", "0"))
    print(f"{PREFIX}rank {rank} failed at step {step}: {message}", file=sys.stderr)


def record_end(message: str) -> int:
    """Write why the run ended before its end into summary.json; returns the step."""
    step = current.steps if current else 0
    cause = {"rank": int(os.environ.get("RANK", "0")), "step": step, "message": message}
    watch.record(current.output_dir if current else None, cause)
    return step


def _peak_memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _process_start() -> float:
    """Unix time at which this process began, so that imports count."""
    import psutil

    return psutil.Process().create_time()
