"""A BERT on folders of texts as IMDb's, in Latin-1, on two ranks: the losses of one process, and each line once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import written
from starting import launch_matrix

import toolkit
from toolkit.data.text import text_data
from toolkit.metrics import Accuracy
from toolkit.models.bert import load_bert, load_tokenizer, random_bert

TEXTS = {
    "neg": ["bad film", "bad", "a b bad c d " * 4],
    "pos": ["good film caf\xe9", "a good film", "film good good", "good"],
}


@pytest.fixture
def argv(tmp_path: Path) -> list[str]:
    """A model, and 7 training and 7 evaluation texts, of each 1 to be cut."""
    data, model = tmp_path / "data", tmp_path / "model"
    for split in ("train", "test"):
        for name, texts in TEXTS.items():
            (data / split / name).mkdir(parents=True)
            for number, text in enumerate(texts):
                (data / split / name / f"{number}_7.txt").write_bytes(text.encode("latin-1"))
    (data / "train" / "unsup").mkdir()
    (data / "train" / "unsup" / "0_0.txt").write_text("a")
    torch.manual_seed(0)
    random_bert(2, vocab_size=len(written.WORDS), max_position_embeddings=16).save_pretrained(model)
    written.tokenizer().save_pretrained(model)
    return [
        *("--dataset_name", str(data), "--encoding", "latin-1", "--model_name_or_path", str(model), "--dropout", "0"),
        *("--train_batch_size", "4", "--max_train_steps", "2", "--learning_rate", "0.01", "--max_length", "10"),
        *("--num_warmup_steps", "0", "--optimizer", "adamw"),
    ]


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def here(argv: list[str], folder: Path) -> list[dict[str, Any]]:
    """What scripts/train_bert.py does, in this process."""
    arguments = toolkit.parse_arguments([*argv, "--output_dir", str(folder)], description="", defaults={})
    setup = toolkit.Setup.from_run(arguments)
    name = arguments.model_name_or_path
    data = text_data(arguments, load_tokenizer(name), setup)
    assert data.label_names == ["neg", "pos"]
    engine = toolkit.prepare(
        lambda: load_bert(name, label_names=data.label_names, dropout=0.0),
        toolkit.cross_entropy,
        toolkit.optimizer_from(setup),
        setup,
    )
    toolkit.fit(engine, data, arguments, [Accuracy()])
    return rows_of(folder)


def test_two_ranks_train_on_what_one_does(argv: list[str], tmp_path: Path) -> None:
    one = here(argv, tmp_path / "one")
    line = launch_matrix.command("torchrun", "", ["scripts/train_bert.py", *argv, "--weight_decay", "0"])
    two = launch_matrix.launch(line, tmp_path / "two")
    assert two.returncode == 0, two.output
    assert two.obtained == ("ddp", "DistributedDataParallel", 2)
    assert [row["samples"] for row in one if "samples" in row] == [4, 7]
    assert two.losses == pytest.approx([row["loss"] for row in one if "loss" in row], rel=launch_matrix.LOSS_BOUND)
    evaluated = rows_of(tmp_path / "two")[-1]  # with the script's other metrics too
    assert {name: evaluated[name] for name in one[-1]} == pytest.approx(one[-1], rel=launch_matrix.LOSS_BOUND)
    rows = "7 training and 7 evaluation rows, text -> label (2 classes: neg, pos)"
    cut = "1 of 7 training rows (14.3%) and 1 of 7 evaluation rows (14.3%) are cut\n"
    for told in (rows, cut, "/train/unsup: 1 texts without a label are left out\n"):
        assert two.output.count(told) == 1
