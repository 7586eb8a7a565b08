"""Comparisons made of numbers, without a process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from toolkit.compare.runs import FAILED, REFERENCE, SAME, Comparison, Measured, Run

Compared = Callable[..., Comparison]


def made_run(label: str, losses: Sequence[float | None], setup: dict[str, Any], errors: Sequence[str] = ()) -> Run:
    """64 samples a step, 400 samples/s."""
    rate = {"samples_per_second": 400.0}
    rows = tuple({"step": n, "samples": 64 * n, "loss": loss} | rate for n, loss in enumerate(losses, 1))
    values = {name: {"value": value, "origin": f"{label}.json: {name}"} for name, value in setup.items()}
    return Run(
        label, Path(label.replace("/", "-")), tuple(rows), (), {"setup": values} if losses else {}, tuple(errors)
    )


@pytest.fixture(scope="session")
def compared() -> Compared:
    """compared({label: losses}, errors={label: lines}, setups={label: values}, **Comparison's other fields)."""

    def make(
        losses: dict[str, Sequence[float | None]],
        errors: dict[str, Sequence[str]] | None = None,
        setups: dict[str, dict[str, Any]] | None = None,
        measured: dict[str, dict[str, Any]] | None = None,
        **more: Any,
    ) -> Comparison:
        runs = [
            made_run(label, values, (setups or {}).get(label, {"world_size": 2}), (errors or {}).get(label, ()))
            for label, values in losses.items()
        ]
        whole = [run for run in runs if not run.errors]
        said = []
        for number, run in enumerate(runs):
            verdict = FAILED if run.errors else REFERENCE if run is whole[0] else SAME
            costs: dict[str, Any] = {} if run.errors else {
                "loss": 0.0 if verdict == REFERENCE else 3.2e-7, "weights": 1.1e-6, "parameter": 4e-5,
                "parameter_name": "encoder.layer.0.attention.self.query.weight", "metrics": {"accuracy": 0.62890625},
                "samples_per_second": 400.0 - 20 * number, "spread": (370.0 - 20 * number, 410.0),
                "seconds_to_first_step": 8.85, "peak_memory_bytes": ((700 + 9 * number) << 20, 720 << 20),
                "checkpoint_bytes": 19603052, "checkpoint_seconds": 0.067,
            }  # fmt: skip
            one = {"strategy": "zero2", "ranks": 2, "precision": "fp32", "verdict": verdict} | costs
            one |= {"cause": "\n".join(run.errors)} | (measured or {}).get(run.label, {})
            said.append(Measured(run.label, **one))
        fields: dict[str, Any] = {"script": "scripts/train_cnn.py", "environment": {"torch": "2.13.0"}} | more
        return Comparison(runs=tuple(runs), measured=tuple(said), **fields)

    return make
