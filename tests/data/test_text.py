from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.data.loader import TrainLoader
from toolkit.data.readers import Table, read_file
from toolkit.data.sampler import Sampler
from toolkit.data.text import _strings, text_data, tokenized
from toolkit.errors import UserError

Given = Callable[..., Namespace]


def files(folder: Path, header: str, train: str, evaluation: str) -> dict[str, str]:
    (folder / "train.csv").write_text(f"{header}\n{train}")
    (folder / "eval.csv").write_text(f"{header}\n{evaluation}")
    return {"train_file": str(folder / "train.csv"), "validation_file": str(folder / "eval.csv")}


def test_texts_are_padded_to_the_longest_of_the_batch(arguments: Given, tokenizer: Any, tmp_path: Path) -> None:
    given = arguments(**files(tmp_path, "text,label", "a b c d,good\nNA,bad\n007,good\n,bad\n", "true,bad\n"))
    data = text_data(given, tokenizer)
    assert data.label_names == ["bad", "good"]
    assert (data.lengths, data.eval_lengths) == ([6, 3, 3, 2], [3])
    inputs, targets = data.collate([data.train[i] for i in (1, 2, 3)])
    assert isinstance(inputs, dict)
    assert list(inputs) == ["input_ids", "attention_mask", "token_type_ids"]  # the order a pipeline relies on
    # "NA" and "007" are words of their own, the empty text is [CLS] [SEP].
    assert inputs["input_ids"].tolist() == [[2, 9, 3], [2, 12, 3], [2, 3, 0]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 1], [1, 1, 0]]
    assert {str(tensor.dtype) for tensor in inputs.values()} == {"torch.int64"}
    assert targets.tolist() == [0, 1, 0]
    assert (
        "4 training and 1 evaluation rows, text -> label (2 classes: bad, good), 3.5 tokens a row" in data.description
    )


@pytest.mark.parametrize(
    ("header", "names"),
    [
        ("sentence1,sentence2,label", {}),
        ("q,p,label", {"text_column_name": "q", "text_pair_column_name": "p"}),
    ],
)
def test_pairs_of_texts(arguments: Given, tokenizer: Any, tmp_path: Path, header: str, names: dict[str, str]) -> None:
    given = arguments(**files(tmp_path, header, "a,b c,1\nd,a,0\n", "a,b,0\n"), **names)
    data = text_data(given, tokenizer)
    inputs, _ = data.collate([data.train[0]])
    assert isinstance(inputs, dict)
    assert inputs["input_ids"].tolist() == [[2, 5, 3, 6, 7, 3]]
    assert inputs["token_type_ids"].tolist() == [[0, 0, 0, 1, 1, 1]]


def test_texts_are_cut_at_max_length(arguments: Given, tokenizer: Any, tmp_path: Path) -> None:
    typed = files(tmp_path, "text,label", "a b c d,1\na,0\n" + "a " * 40 + ",1\n", "a,1\n")
    data = text_data(arguments(**typed, max_length=4), tokenizer)
    assert data.lengths == [4, 3, 4]
    told = "4.0 tokens a row, at most 4: 2 of 3 training rows (66.7%) and 0 of 1 evaluation rows (0.0%) are cut"
    assert data.description.endswith(told.replace("4.0", "3.7"))
    data = text_data(arguments(**typed), tokenizer)
    assert data.lengths == [6, 3, 16]
    assert data.description.endswith(": 1 of 3 training rows (33.3%) and 0 of 1 evaluation rows (0.0%) are cut")
    with pytest.raises(UserError, match="--max_length: 17: the tokenizer takes 3 to 16 tokens"):
        text_data(arguments(**typed, max_length=17), tokenizer)
    default = arguments(**typed, max_length=17)
    default.typed = frozenset()
    assert text_data(default, tokenizer).lengths == [6, 3, 16]  # a script's default yields


@pytest.mark.parametrize("words", [True, False])
def test_rows_that_are_cut_are_counted(tokenizer: Any, words: bool) -> None:
    """Also by a tokenizer in Python, here one of characters; a row of just the length is whole."""
    if not words:
        from transformers import CanineTokenizer

        tokenizer = CanineTokenizer()
    texts, pairs = ["a b c d", "a b", "a", ""] * 300, ["a"] * 1200
    # With its special tokens: 6, 4, 3 and 2 words, or 9, 5, 3 and 2 characters; with a second text 3 more, or 2.
    assert tokenized(tokenizer, texts, None, 4 if words else 5, "texts")["cut"] == 300
    assert tokenized(tokenizer, texts, pairs, 5, "texts")["cut"] == 600


def test_padding_on_the_left(arguments: Given, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    data = text_data(arguments(**files(tmp_path, "text,label", "a b,1\na,0\n", "a,1\n")), tokenizer)
    inputs, _ = data.collate([data.train[0], data.train[1]])
    assert isinstance(inputs, dict)
    assert inputs["input_ids"].tolist() == [[2, 5, 6, 3], [0, 2, 5, 3]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


def test_what_is_no_string_is_the_text_that_stands_there(tmp_path: Path) -> None:
    """And no text is told by its line: JSON's null, a column that a row lacks, a list, NaN."""
    file = tmp_path / "train.jsonl"
    there = ["7", "1e5", "1.0", "-0.50", "true", "false", "Infinity", '""', '"null"', "9007199254740993", '"\\u2028"']
    file.write_text("".join(f'{{"text": {each}, "label": {row % 2}}}\n' for row, each in enumerate(there)))
    expected = ["7", "1e5", "1.0", "-0.50", "true", "false", "Infinity", "", "null", "9007199254740993", "\u2028"]
    assert _strings(read_file(str(file), "--train_file"), "text", "--text_column_name") == expected
    held = pa.table({"text": [True, False, None]}), pa.table({"text": [1.5, float("nan"), 2.0]})
    for table, told in zip(held, ("row 3", "row 2"), strict=True):
        pq.write_table(table, tmp_path / "rows.parquet")
        with pytest.raises(UserError, match=f"rows.parquet, {told}: no text there"):
            _strings(read_file(str(tmp_path / "rows.parquet"), "--train_file"), "text", "--text_column_name")
    texts = _strings(Table("rows", {"text": held[0].column("text").slice(0, 2)}), "text", "--text_column_name")
    assert texts == ["true", "false"]


def test_missing_texts_are_refused_by_line(arguments: Given, tokenizer: Any, tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    rows = [
        '{"text": "a", "label": 0}',
        '{"text": null, "label": 1}',
        '{"label": 1}',
        "",
        '{"text": ["a"], "label": 1}',
    ]
    file.write_text("\n".join(rows))
    given = arguments(train_file=str(file), validation_file=str(file))
    with pytest.raises(
        UserError, match="--text_column_name: 'text': .*train.jsonl, lines 2, 3, 5: no text there; give "
    ):
        text_data(given, tokenizer)


def test_grouping_by_length_halves_the_padding_of_the_movie_reviews(arguments: Given) -> None:
    from toolkit.models.bert import load_tokenizer

    data = text_data(arguments(max_length=128), load_tokenizer(None))
    assert (len(data.train), len(data.lengths or ())) == (9065, 9065)

    def padded_tokens(group_by_length: bool) -> list[float]:
        """Mean of tokens a step on each of 2 ranks x 16."""
        sampler = Sampler(len(data.train), 32, 0, lengths=data.lengths, group_by_length=group_by_length)
        means = []
        for rank in range(2):
            loader = TrainLoader(
                data.train,
                data.collate,
                sampler,
                micro_batch_size=16,
                gradient_accumulation_steps=1,
                rank=rank,
                size=2,
            )
            means.append(
                np.mean([sum(b.targets.numel() * b[0]["input_ids"].shape[1] for b in s) for s in loader.epoch(0)])
            )
        return [float(mean) for mean in means]

    assert padded_tokens(True) == pytest.approx([443, 441], abs=5)
    assert max(padded_tokens(False)) == pytest.approx(831, abs=10)
