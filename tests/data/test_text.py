from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from toolkit.data.loader import TrainLoader
from toolkit.data.sampler import Sampler
from toolkit.data.text import text_data
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
    assert text_data(arguments(**typed, max_length=4), tokenizer).lengths == [4, 3, 4]
    assert text_data(arguments(**typed), tokenizer).lengths == [6, 3, 16]
    with pytest.raises(UserError, match="--max_length: 17: the tokenizer takes 3 to 16 tokens"):
        text_data(arguments(**typed, max_length=17), tokenizer)


def test_padding_on_the_left(arguments: Given, tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "padding_side", "left")
    data = text_data(arguments(**files(tmp_path, "text,label", "a b,1\na,0\n", "a,1\n")), tokenizer)
    inputs, _ = data.collate([data.train[0], data.train[1]])
    assert isinstance(inputs, dict)
    assert inputs["input_ids"].tolist() == [[2, 5, 6, 3], [0, 2, 5, 3]]
    assert inputs["attention_mask"].tolist() == [[1, 1, 1, 1], [0, 1, 1, 1]]


def test_numbers_of_json_are_read_as_texts_and_missing_texts_are_refused(
    arguments: Given, tokenizer: Any, tmp_path: Path
) -> None:
    file = tmp_path / "train.jsonl"
    file.write_text('{"text": 7, "label": 0}\n{"text": "a", "label": 1}\n')
    given = arguments(train_file=str(file), validation_file=str(file))
    assert text_data(given, tokenizer).lengths == [3, 3]
    file.write_text('{"text": "a", "label": 0}\n{"text": null, "label": 1}\n{"label": 1}\n')
    with pytest.raises(UserError, match="--text_column_name: 'text': .*train.jsonl, lines 2, 3: no text there"):
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
