"""Whether what stands in metrics.jsonl and summary.json is what a run writes: a file may be damaged, or another's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn

_COUNTS = ("world_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
_SECONDS = ("seconds", "seconds_to_first_step")
_OBJECTS = ("setup", "metrics", "obtained", "checkpoint", "pipeline", "communication", "error")


def read_object(text: str) -> dict[str, Any]:
    """A JSON object. Raises: ValueError, for NaN and Infinity too: a run writes null for them."""
    content = json.loads(text, parse_constant=_constant)
    if not isinstance(content, dict):
        raise ValueError(f"expected an object, got {type(content).__name__}")
    return content


def check_row(row: Mapping[str, Any]) -> None:
    """Raises: ValueError, for a row of a step, or of an evaluation, with what is no number."""
    always = ("step", "samples", "learning_rate") if "loss" in row else ("step",)
    needed = [name for name in always if row.get(name) is None]
    # A metric may return lists; the loss is a number.
    lists = {name for name, value in row.items() if isinstance(value, list) and name.startswith("eval_")} - {
        "eval_loss"
    }
    others = (name for name, value in row.items() if value is not None and name not in lists and not _number(value))
    for name in [*needed, *others]:
        raise ValueError(f"{name}: expected a number, got {row.get(name)!r}")


def check_summary(summary: Mapping[str, Any]) -> None:
    """Raises: ValueError, for what `compare` reads and is of another kind than a run writes."""
    told = {name: summary.get(name) or {} for name in _OBJECTS}
    for name, value in told.items():
        _expect(isinstance(value, dict), name, value, "an object")
    for name, entry in told["setup"].items():
        _expect(isinstance(entry, dict) and "value" in entry, f"setup.{name}", entry, "a value with its origin")
    for name in told["setup"].keys() & set(_COUNTS):
        value = told["setup"][name]["value"]
        _expect(isinstance(value, int), f"setup.{name}", value, "an integer")
    for name, value in (("metrics.loss", told["metrics"].get("loss")), *((n, summary.get(n)) for n in _SECONDS)):
        _expect(value is None or _number(value), name, value, "a number")
    peaks = summary.get("peak_memory_bytes") or []
    _expect(isinstance(peaks, list) and all(map(_number, peaks)), "peak_memory_bytes", peaks, "a list of numbers")
    for name, value in told["checkpoint"].items():
        _expect(_number(value), f"checkpoint.{name}", value, "a number")
    for name, value in told["communication"].items():
        counted = isinstance(value, dict) and _number(value.get("bytes"))
        _expect(counted, f"communication.{name}", value, 'an object with "bytes"')
    if not told["error"]:
        _expect(bool(told["setup"]), "setup", summary.get("setup"), "the values of a run")
    norm = told["setup"].get("max_grad_norm", {}).get("value")
    _expect(norm is None or _number(norm), "setup.max_grad_norm", norm, "a number")
    if pipeline := told["pipeline"]:
        _expect(_COUNTS[2] in told["setup"], f"setup.{_COUNTS[2]}", None, "the micro-batches of a pipeline")
        working, whole = pipeline.get("working_seconds"), pipeline.get("step_seconds")
        fits = isinstance(working, list) and all(map(_number, working)) and sum(working) > 0
        fits = fits and isinstance(whole, int | float) and whole > 0
        _expect(fits, "pipeline", pipeline, "the seconds of its stages and steps")


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and abs(value) < 1e300


def _expect(well: bool, name: str, value: Any, what: str) -> None:
    if not well:
        raise ValueError(f"{name}: expected {what}, got {value!r:.60}")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")
