"""Real launchers: the command lines of launch_matrix.py, started two at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import launch_matrix

ROOT = Path(__file__).parents[2]

__all__ = ["ROOT", "launch_matrix", "side_by_side"]


def side_by_side(jobs: Mapping[str, Callable[[], Any]], at_once: int = 2) -> dict[str, Any]:
    """{name: what its job returned}."""
    with ThreadPoolExecutor(at_once) as pool:
        running = {name: pool.submit(job) for name, job in jobs.items()}
        return {name: future.result() for name, future in running.items()}
