"""One process group per number of ranks runs all checks; each test asserts one of the values it left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

Got = Callable[[str, str], list[Any]]
WORKER = Path(__file__).with_name("worker.py")
SECONDS = 300


@pytest.fixture(scope="session")
def got(tmp_path_factory: pytest.TempPathFactory) -> Got:
    """got(check, "zero2 x2") -> what each rank returned."""
    folders = {ranks: tmp_path_factory.mktemp(f"ranks{ranks}") for ranks in (2, 1, 3)}
    with ThreadPoolExecutor(2) as pool:
        running = {ranks: pool.submit(_run, ranks, folder) for ranks, folder in folders.items()}
        groups = {ranks: future.result() for ranks, future in running.items()}

    def read(check: str, setup: str) -> list[Any]:
        strategy, _, ranks = setup.partition(" x")
        values: list[Any] = groups[int(ranks)][check][strategy]
        assert len(values) == int(ranks)
        return values

    return read


def _run(ranks: int, folder: Path) -> dict[str, Any]:
    results, log = folder / "results.json", folder / "output.txt"
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            [*launch, str(WORKER), str(results)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=output,
            stderr=subprocess.STDOUT,
            timeout=SECONDS,
        )
    assert done.returncode == 0, log.read_text(encoding="utf-8")[-6000:]
    results_of: dict[str, Any] = json.loads(results.read_text(encoding="utf-8"))
    return results_of
