"""Texts, single or in pairs: tokenized once without padding, padded batch by batch to the longest row at hand."""

from argparse import Namespace
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.data.prepared import of_texts, of_tokenizer, prepared, shown
from toolkit.data.readers import Table
from toolkit.data.sources import Data, load_labelled
from toolkit.data.streamed import Streamed, load_streamed
from toolkit.errors import UserError, fault

CHUNK = 1000  # texts tokenized together
LONGEST = 512  # tokens, where a tokenizer names no limit
UNLIMITED = 10**6  # tokens; from here on a tokenizer's limit is none
TEXT_COLUMNS = ("text", "sentence", "sentence1")  # what a column of texts is often called


class Texts:
    """Tokenized rows in flat arrays (4 bytes a token), so that a million texts fit and worker processes share them."""

    def __init__(self, held: dict[str, np.ndarray], labels: Sequence[int]) -> None:
        """`held` as from `tokenized`."""
        self.ids, self.types = held["ids"], held.get("types")
        self.lengths: list[int] = held["lengths"].tolist()
        self.cut = int(held["cut"])  # how many of them were longer
        self.ends = np.cumsum(self.lengths)
        self.labels = np.asarray(labels, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """One row: input_ids and, where the tokenizer gives them, token_type_ids, each an array [T]; label."""
        part = slice(self.ends[index] - self.lengths[index], self.ends[index])
        row = {"input_ids": self.ids[part], "label": self.labels[index]}
        if self.types is not None:
            row["token_type_ids"] = self.types[part]
        return row


def tokenized(
    tokenizer: Any, texts: list[str], pairs: list[str] | None, max_length: int, what: str
) -> dict[str, np.ndarray]:
    """`ids` int32 and, where the tokenizer gives them, `types` int8, of all rows one after another; `lengths` int32;
    `cut` int64 [], how many rows were longer than `max_length`."""
    ids: list[np.ndarray] = []
    types: list[np.ndarray] = []
    cut = 0
    starts = range(0, len(texts), CHUNK)
    for start in shown(starts, len(starts), f"{what}: thousands of texts tokenized"):
        part = slice(start, start + CHUNK)
        given = (texts[part], None if pairs is None else pairs[part])
        encoded = tokenizer(*given, truncation=True, max_length=max_length, padding=False, return_attention_mask=False)
        if encoded.encodings is not None:
            cut += sum(bool(row.overflowing) for row in encoded.encodings)
        else:  # a tokenizer in Python does not tell
            cut += sum(len(row) > max_length for row in tokenizer(*given, return_attention_mask=False)["input_ids"])
        ids.extend(np.asarray(row, dtype=np.int32) for row in encoded["input_ids"])
        types.extend(np.asarray(row, dtype=np.int8) for row in encoded.get("token_type_ids", ()))
    lengths = np.array([len(row) for row in ids], dtype=np.int32)
    held = {"ids": np.concatenate(ids), "lengths": lengths, "cut": np.array(cut)}
    return held | ({"types": np.concatenate(types)} if types else {})


class PadTexts:
    """Rows of Texts -> ({input_ids, attention_mask[, token_type_ids]}: int64 [B, T], T the longest; labels [B])."""

    def __init__(self, tokenizer: Any) -> None:
        self.pad = {"input_ids": tokenizer.pad_token_id, "token_type_ids": tokenizer.pad_token_type_id}
        self.left = tokenizer.padding_side == "left"

    def __call__(self, rows: list[dict[str, Any]]) -> tuple[dict[str, Tensor], Tensor]:
        longest = max(len(row["input_ids"]) for row in rows)
        inputs: dict[str, Tensor] = {}
        # This order is also the order in which the first layer of a pipeline takes them.
        for name in ("input_ids", "attention_mask", "token_type_ids"):
            if name != "attention_mask" and name not in rows[0]:
                continue
            padded = np.full((len(rows), longest), self.pad.get(name, 0), dtype=np.int64)
            for number, row in enumerate(rows):
                length = len(row["input_ids"])
                part = slice(longest - length, longest) if self.left else slice(0, length)
                padded[number, part] = row.get(name, 1)
            inputs[name] = torch.from_numpy(padded)
        return inputs, torch.tensor([int(row["label"]) for row in rows], dtype=torch.int64)


def text_data(arguments: Namespace, tokenizer: Any, setup: Any = None) -> Data:
    """Training and evaluation texts as the arguments name them; without any, the embedded movie reviews.

    Columns not named: `text`, `sentence`, or the pair `sentence1` and `sentence2`; and `label` or `labels`.
    `max_length` is in tokens, None is the tokenizer's own limit. With a `setup` one rank of each node tokenizes, and
    the call is collective; `streaming` needs one. Raises UserError.
    """
    max_length = _max_length(arguments, tokenizer)
    usual: dict[str, tuple[str, ...]] = {"text": TEXT_COLUMNS}
    if arguments.text_pair_column_name is not None:
        usual["text_pair"] = ()
    found = (
        load_streamed(arguments, usual, setup)
        if arguments.streaming
        else load_labelled(arguments, ("movie_reviews", "validation"), usual, setup)
    )
    text, pair = found.columns["text"], found.columns.get("text_pair")
    if pair is None and arguments.text_column_name is None:
        pair = usual_pair(text, found.train, found.evaluation)

    def read(table: Table, ids: Sequence[int], keep: bool = False) -> Texts:
        return read_texts(tokenizer, table, text, pair, ids, max_length, keep, setup)

    evaluation = read(found.evaluation, found.eval_ids, keep=True)
    described = found.describe(text if pair is None else f"{text} + {pair}")
    cut = {"evaluation": evaluation}
    if isinstance(found, Streamed):
        stream = found.stream(read)
        of_train: dict[str, Any] = {"train": stream, "sampler": stream.sampler}
    else:
        train = read(found.train, found.ids, keep=True)
        of_train = {"train": train, "labels": found.ids, "lengths": train.lengths}
        described += f", {sum(train.lengths) / len(train):.1f} tokens a row"
        cut = {"training": train, **cut}
    return Data(
        evaluation=evaluation,
        collate=PadTexts(tokenizer),
        label_names=found.label_names,
        description=f"{described}, at most {max_length}: {' and '.join(map(_told, cut.items()))} are cut",
        **of_train,
        eval_lengths=evaluation.lengths,
        preprocessing={
            "kind": "text",
            "text_column_name": text,
            "text_pair_column_name": pair,
            "max_length": max_length,
        },
        tokenizer=tokenizer,
    )


def _told(part: tuple[str, Texts]) -> str:
    name, texts = part
    return f"{texts.cut:,} of {len(texts):,} {name} rows ({texts.cut / len(texts):.1%})"


def usual_pair(text: str, *tables: Table) -> str | None:
    """The column of second texts that goes with a column `text` that nobody named."""
    paired = text == "sentence1" and all("sentence2" in table.columns for table in tables)
    return "sentence2" if paired else None


def read_texts(
    tokenizer: Any,
    table: Table,
    text: str,
    pair: str | None,
    labels: Sequence[int],
    max_length: int,
    keep: bool = False,
    setup: Any = None,
) -> Texts:
    """The texts of one or two columns, tokenized; with `keep` once per node, and kept in the cache.

    UserError for missing texts and for lists.
    """
    texts = _strings(table, text, "--text_column_name")
    pairs = None if pair is None else _strings(table, pair, "--text_pair_column_name")
    make = partial(tokenized, tokenizer, texts, pairs, max_length, table.name)
    if not keep:
        return Texts(make(), labels)
    key = {
        "tokenizer": of_tokenizer(tokenizer),
        "texts": of_texts(texts),
        "pairs": None if pairs is None else of_texts(pairs),
        "max_length": max_length,
    }
    return Texts(prepared("texts", key, make, setup), labels)


def longest(tokenizer: Any) -> int:
    """Tokens that the tokenizer says the model takes, LONGEST where it does not."""
    return int(tokenizer.model_max_length) if tokenizer.model_max_length < UNLIMITED else LONGEST


def _max_length(arguments: Namespace, tokenizer: Any) -> int:
    most = int(min(tokenizer.model_max_length, UNLIMITED))
    if arguments.max_length is None:
        return longest(tokenizer)
    if "max_length" not in getattr(arguments, "typed", ["max_length"]):  # a script's default yields
        return min(most, int(arguments.max_length))
    least = tokenizer.num_special_tokens_to_add(pair=arguments.text_pair_column_name is not None) + 1
    if not least <= arguments.max_length <= most:
        reason = f"the tokenizer takes {least} to {most} tokens"
        raise UserError(fault("--max_length", arguments.max_length, reason, "choose a number in this range"))
    return int(arguments.max_length)


def _strings(table: Table, column: str, argument: str) -> list[str]:
    """The column as strings: numbers and truth values as JSON spells them; UserError for missing ones and for lists."""
    texts: list[str] = []
    bad = []
    for row, value in enumerate(table.values(column)):
        if isinstance(value, bool):
            texts.append(str(value).lower())
        elif isinstance(value, str | int | float) and value == value:
            texts.append(str(value))
        else:
            bad.append(row)
    if bad:
        reason = f"{table.name}, {table.where(bad)}: no text there"
        raise UserError(fault(argument, column, reason, "give each row a text (it may be empty), or remove the row"))
    return texts
