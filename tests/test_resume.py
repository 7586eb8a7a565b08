"""Saved under one setup, resumed under another; and under the same one, bit for bit. A sample of resume_matrix.py."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent / "engines"))

from resume_matrix import SAVED_AT, STEPS, planned  # noqa: E402

from toolkit.checkpoint import newest_whole  # noqa: E402
from toolkit.parity import Case, Result, Variant, launch, measure  # noqa: E402

SINGLE, DDP, PIPE2, PIPE3 = ("single", 1, 1), ("ddp", 2, 1), ("pipeline", 2, 2), ("pipeline", 3, 3)
ZERO1, ZERO2, ZERO3 = ("zero1", 2, 1), ("zero2", 2, 1), ("zero3", 2, 1)
OFF2, OFF3, REPLICAS = ("zero2_offload", 2, 1), ("zero3_offload", 2, 1), ("pipeline_dp", 4, 2)
OFFLOADED = {OFF2, OFF3}
ALONE2, ALONE3 = ("zero2", 1, 1), ("zero3", 1, 1)
# Each setup once as writer and once as reader, and the pairs that the libraries themselves cannot do.
CNN_PAIRS = [
    (SINGLE, ZERO3),
    (DDP, ZERO2),
    (ZERO1, PIPE2),
    (ZERO2, DDP),
    (ZERO3, SINGLE),
    (PIPE2, ZERO1),
    (ALONE3, PIPE3),
    (PIPE3, ALONE2),
    (ZERO3, ZERO1),
    (DDP, OFF3),
    (OFF2, REPLICAS),
    (OFF3, PIPE2),
    (REPLICAS, OFF2),
]
BERT_PAIRS = [(DDP, ZERO3), (ZERO3, PIPE2), (PIPE2, DDP), (ZERO2, SINGLE)]
PAIRS = {
    "cnn-adamw": (Variant("cnn", steps=STEPS, max_grad_norm=0.5), CNN_PAIRS),
    "cnn-sgd": (Variant("cnn", "sgd", steps=STEPS), [(ZERO3, DDP), (PIPE2, ZERO2)]),
    "bert-adamw": (Variant("bert", steps=STEPS, max_grad_norm=0.5), BERT_PAIRS),
}
# Bit for bit: one and two ranks. DDP with three or more sums its buckets in another order after the first step.
ALIKE = [
    *(("cnn", setup, "fp32") for setup in (SINGLE, ALONE2, DDP, ZERO1, ZERO3, PIPE2, OFF2, OFF3)),
    *(("bert", setup, "fp32") for setup in (SINGLE, DDP, ZERO2, PIPE2)),
    *(("cnn", setup, "bf16 weights") for setup in (DDP, ZERO2, OFF3, PIPE2)),
    *(("cnn", setup, "fp16") for setup in (DDP, ZERO3, OFF2, PIPE2)),
]
KINDS = {
    "fp32": {},
    "bf16 weights": {"mixed_precision": "bf16", "section": True},
    "fp16": {"mixed_precision": "fp16", "section": True},
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[Any, Result], dict[Any, tuple[Path, Path]]]:
    """Each pair's deviations, and (uninterrupted, resumed) run of each setup that goes on in itself, with dropout."""
    folder = tmp_path_factory.mktemp("resume")
    plans = {name: planned(variant, pairs) for name, (variant, pairs) in PAIRS.items()}
    dropped: dict[str, Any] = {"steps": STEPS, "dropout": 0.2, "gradient_accumulation_steps": 2}
    wholes = {
        (model, setup, kind): Case(Variant(model, **dropped, **KINDS[kind]), *setup) for model, setup, kind in ALIKE
    }
    halves = {key: replace(case, stop_after_steps=SAVED_AT) for key, case in wholes.items()}
    others = {key: replace(case, resumes=halves[key].folder) for key, case in wholes.items()}
    # All of one model and number of ranks in one process group: starting it takes longer than a training.
    first = [case for whole, writers, _ in plans.values() for case in (whole, *writers)]
    launch([*first, *wholes.values(), *halves.values()], folder)
    launch([*(case for *_, readers in plans.values() for case in readers.values()), *others.values()], folder)
    results = {
        (name, pair): measure(case, whole, folder)
        for name, (whole, _, readers) in plans.items()
        for pair, case in readers.items()
    }
    return results, {key: (folder / wholes[key].folder, folder / others[key].folder) for key in wholes}


@pytest.mark.parametrize(
    ("name", "pair"), [(name, pair) for name, (_, pairs) in PAIRS.items() for pair in pairs], ids=str
)
def test_a_checkpoint_of_any_setup_goes_on_in_any_other(trained: Any, name: str, pair: Any) -> None:
    result = trained[0][name, pair]
    assert len(result.grad_norms) == STEPS - SAVED_AT == 10
    assert result.learning_rates_equal
    # Measured over the whole matrix: 2.0e-7, 5.4e-6, 8.6e-6; with DeepSpeedCPUAdam on a side the loss 9e-7.
    assert result.loss <= (2e-6 if OFFLOADED & set(pair) else 5e-7)
    assert result.weights <= 2e-5
    assert result.parameter <= 5e-5


@pytest.mark.parametrize(("model", "setup", "kind"), ALIKE, ids=str)
def test_the_same_setup_goes_on_bit_for_bit_with_dropout(trained: Any, model: str, setup: Any, kind: str) -> None:
    """In fp16 the loss scale is among what is compared: it stands in each row."""
    whole, resumed = trained[1][model, setup, kind]
    (mine, theirs) = (newest_whole(folder) for folder in (resumed, whole))
    assert [name for name in theirs.names if not torch.equal(mine.value(name), theirs.value(name))] == []
    rows, expected = (steps_of(folder) for folder in (resumed, whole))
    assert [row["step"] for row in rows] == list(range(SAVED_AT + 1, STEPS + 1))
    assert rows == expected[SAVED_AT:]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    clocked = ("samples_per_second", "data_seconds", "step_seconds")
    return [{name: row[name] for name in row if name not in clocked} for row in rows if "loss" in row]
