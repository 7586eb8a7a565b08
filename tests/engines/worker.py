"""Run under torchrun by conftest.py: every check in turn in one process group; rank 0 writes what each rank got.

python -m torch.distributed.run --nproc_per_node 2 worker.py RESULTS.json
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import checks_augmented
import checks_checkpoint
import checks_evaluation
import checks_json
import checks_loss
import checks_pipeline
import checks_practice
import checks_precision
import checks_range
import checks_steps
import torch.distributed as dist

import toolkit
from toolkit.errors import UserError

MODULES = (
    *(checks_steps, checks_evaluation, checks_pipeline, checks_checkpoint, checks_precision, checks_json),
    *(checks_augmented, checks_loss, checks_range, checks_practice),
)
# `single` goes last: it takes the launcher's variables out of the environment.
STRATEGIES = {
    1: ("zero1", "zero2", "zero3", "single"),
    2: ("ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "pipeline"),
    3: ("ddp", "zero1", "zero2", "zero3", "pipeline"),
}


def main() -> None:
    results: dict[str, Any] = {}
    ranks = int(os.environ["WORLD_SIZE"])
    rank = int(os.environ["RANK"])
    for strategy in STRATEGIES[ranks]:
        for module in MODULES:
            for name, (check, strategies) in module.CHECKS.items():
                if f"{strategy} x{ranks}" not in strategies:
                    continue
                began = time.monotonic()
                try:
                    value = check(strategy)
                except UserError as error:
                    value = {"refused": error.lines}
                if name == "unclipped":
                    gc.freeze()  # each engine's end collects garbage: not among all the libraries' objects again
                of_name = results.setdefault(name, {})
                assert strategy not in of_name, f"two checks are called {name}"
                of_name[strategy] = every_rank(value)
                if rank == 0:
                    print(f"{time.monotonic() - began:6.2f} s  {name} {strategy}", flush=True)
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(results), encoding="utf-8")


def every_rank(value: Any) -> list[Any]:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


if __name__ == "__main__":
    toolkit.run(main)
