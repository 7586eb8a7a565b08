"""Saved under each setup, resumed under each other one, with another micro-batch and accumulation: the next 10 losses
and the weights against the uninterrupted run.

    python tests/engines/resume_matrix.py [--model cnn bert] [--optimizer adamw sgd] [--mixed_precision no bf16 fp16]

Prints the whole table; exits 1 where a pair is outside parity's bounds. Takes 9 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

from toolkit.parity import Case, Result, Variant, launch, measure

STEPS, SAVED_AT = 23, 13  # in the middle of an epoch, for both models
SETUPS = (
    ("single", 1, 1),
    ("zero1", 1, 1),
    ("zero2", 1, 1),
    ("zero3", 1, 1),
    ("ddp", 2, 1),
    ("zero1", 2, 1),
    ("zero2", 2, 1),
    ("zero3", 2, 1),
    ("pipeline", 2, 2),
    ("pipeline", 3, 3),
    ("zero2_offload", 2, 1),
    ("zero3_offload", 2, 1),
    ("pipeline_dp", 4, 2),
)
Pair = tuple[tuple[str, int, int], tuple[str, int, int]]
ALL = [(writer, reader) for writer in SETUPS for reader in SETUPS]


def planned(variant: Variant, pairs: Iterable[Pair]) -> tuple[Case, list[Case], dict[Pair, Case]]:
    """The uninterrupted run, every writer up to step 13, and every reader that goes on from there."""
    pairs = list(pairs)
    writers = {setup: Case(variant, *setup, stop_after_steps=SAVED_AT) for setup in dict.fromkeys(w for w, _ in pairs)}
    split = replace(variant, gradient_accumulation_steps=2)
    readers = {pair: Case(split, *pair[1], resumes=writers[pair[0]].folder) for pair in pairs}
    return Case(variant, "single", 1), list(writers.values()), readers


def resume(variant: Variant, pairs: Iterable[Pair], folder: Path) -> dict[Pair, Result]:
    """Train them, and measure each reader against the uninterrupted run."""
    whole, writers, readers = planned(variant, pairs)
    launch([whole, *writers], folder)
    launch(readers.values(), folder)
    return {pair: measure(case, whole, folder) for pair, case in readers.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=("cnn", "bert"), default=["cnn", "bert"])
    parser.add_argument("--optimizer", nargs="+", choices=("adamw", "sgd"), default=["adamw"])
    parser.add_argument("--mixed_precision", nargs="+", choices=("no", "bf16", "fp16"), default=["no"])
    chosen = parser.parse_args()
    bad = 0
    for model in chosen.model:
        for optimizer, precision in product(chosen.optimizer, chosen.mixed_precision):
            # 16-bit weights, but in one process and DDP: a pair is of two formats then.
            kind: dict[str, Any] = {"mixed_precision": precision, "section": precision != "no"}
            variant = Variant(model, optimizer, steps=STEPS, max_grad_norm=0.5, **kind)
            with tempfile.TemporaryDirectory() as temporary:
                results = resume(variant, ALL, Path(temporary))
            for (writer, reader), result in results.items():
                bad += not result.same
                print(
                    f"{model:5} {optimizer:6} {precision:4} {writer[0]:>13} x{writer[1]} -> "
                    f"{reader[0]:>13} x{reader[1]}"
                    f"  loss {result.loss:.1e}  weights {result.weights:.1e}  worst {result.parameter:.1e}"
                    f"  {'same' if result.same else 'DIFFERS'}",
                    flush=True,
                )
    print(f"{bad} pairs differ")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
