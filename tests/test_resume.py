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

from resume_matrix import SAVED_AT, STEPS, resume  # noqa: E402

from toolkit.checkpoint import newest_whole  # noqa: E402
from toolkit.compare import Case, Result, Variant, launch  # noqa: E402

SINGLE, DDP, PIPE2, PIPE3 = ("single", 1, 1), ("ddp", 2, 1), ("pipeline", 2, 2), ("pipeline", 3, 3)
ZERO1, ZERO2, ZERO3 = ("zero1", 2, 1), ("zero2", 2, 1), ("zero3", 2, 1)
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
]
BERT_PAIRS = [(DDP, ZERO3), (ZERO3, PIPE2), (PIPE2, DDP), (ZERO2, SINGLE)]
PAIRS = {
    "cnn-adamw": (Variant("cnn", steps=STEPS, max_grad_norm=0.5), CNN_PAIRS),
    "cnn-sgd": (Variant("cnn", "sgd", steps=STEPS), [(ZERO3, DDP), (PIPE2, ZERO2)]),
    "bert-adamw": (Variant("bert", steps=STEPS, max_grad_norm=0.5), BERT_PAIRS),
}
# Bit for bit: one and two ranks. DDP with three or more sums its buckets in another order after the first step.
ALIKE = [SINGLE, ALONE2, DDP, ZERO1, ZERO2, ZERO3, PIPE2]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[Any, Result]]:
    return {name: resume(variant, pairs, tmp_path_factory.mktemp(name)) for name, (variant, pairs) in PAIRS.items()}


@pytest.mark.parametrize(
    ("name", "pair"), [(name, pair) for name, (_, pairs) in PAIRS.items() for pair in pairs], ids=str
)
def test_a_checkpoint_of_any_setup_goes_on_in_any_other(results: Any, name: str, pair: Any) -> None:
    result = results[name][pair]
    assert len(result.grad_norms) == STEPS - SAVED_AT == 10
    assert result.learning_rates_equal
    # Measured over the whole matrix: 2.0e-7, 5.4e-6, 8.6e-6.
    assert result.loss <= 5e-7
    assert result.weights <= 2e-5
    assert result.parameter <= 5e-5


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, tuple[Path, Path]]:
    """(uninterrupted, resumed) run of each setup and model, with dropout."""
    folder = tmp_path_factory.mktemp("alike")
    variants = [
        replace(Variant(model, steps=STEPS, dropout=0.2), gradient_accumulation_steps=2) for model in ("cnn", "bert")
    ]
    wholes = {(v.model, setup): Case(v, *setup) for v in variants for setup in ALIKE}
    halves = {key: replace(case, stop_after_steps=SAVED_AT) for key, case in wholes.items()}
    others = {key: replace(case, resumes=halves[key].folder) for key, case in wholes.items()}
    launch([*wholes.values(), *halves.values()], folder)
    launch(others.values(), folder)
    return {key: (folder / wholes[key].folder, folder / others[key].folder) for key in wholes}


@pytest.mark.parametrize("model", ["cnn", "bert"])
@pytest.mark.parametrize("setup", ALIKE, ids=lambda setup: f"{setup[0]}-{setup[1]}")
def test_the_same_setup_goes_on_bit_for_bit_with_dropout(alike: Any, model: str, setup: Any) -> None:
    whole, resumed = alike[model, setup]
    (mine, theirs) = (newest_whole(folder) for folder in (resumed, whole))
    assert [name for name in theirs.names if not torch.equal(mine.weight(name), theirs.weight(name))] == []
    rows, expected = (steps_of(folder) for folder in (resumed, whole))
    assert [row["step"] for row in rows] == list(range(SAVED_AT + 1, STEPS + 1))
    assert rows == expected[SAVED_AT:]


def steps_of(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [{name: row[name] for name in row if name != "samples_per_second"} for row in rows if "loss" in row]
