"""Where the rows of a stream come from, and what is known of them before they are read."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.data.columns import chosen_columns, class_ids, in_order, label_keys
from toolkit.data.folders import class_folders, listed, rows_of_classes
from toolkit.data.names import on_hub
from toolkit.data.prepared import of_contents, prepared, shown
from toolkit.data.readers import Table, check_encoding, check_file
from toolkit.data.rowwise import Row, names_in, rows_of, table_of
from toolkit.data.sources import check_class_folders, class_names, evaluation_split, find_dataset, told
from toolkit.data.stream import Read, Stream, raw
from toolkit.errors import UserError, fault
from toolkit.launch import say

LOOKED_AT = 200  # rows read ahead: they tell the columns, and the images' size and channels
HELD_OUT = 1_000  # first rows that are evaluated on where there are no others
EVALUATED = 10_000  # rows at most that are evaluated on where --max_eval_samples does not say


@dataclass
class _Source:
    """Rows one after another."""

    rows: Any  # datasets.IterableDataset
    name: str
    class_names: dict[str, list[str]]
    files: list[str]  # those that are read here, and not by `datasets`
    argument: str


@dataclass
class Streamed:
    """What `Labelled` is, where the training rows come one after another; `train` are the first of them."""

    source: _Source
    train: Table
    evaluation: Table
    eval_ids: list[int]
    label_names: list[str]
    columns: dict[str, str]
    held_out: int
    arguments: Namespace
    setup: Any

    def stream(self, read: Read) -> Stream:
        """The training rows, made by `read` into what the model takes."""
        rows = self.source.rows.skip(self.held_out) if self.held_out else self.source.rows
        if most := _typed(self.arguments, "max_train_samples"):
            rows = rows.take(most)
        return Stream(
            rows,
            read,
            self.label_names,
            self.columns["label"],
            name=self.source.name,
            class_names=self.source.class_names,
            train_batch_size=self.setup.train_batch_size,
            seed=self.setup.seed,
            buffer_size=self.arguments.shuffle_buffer_size,
            order=f"of a stream ({', '.join(self._order())})",
        )

    def _order(self) -> Iterator[str]:
        yield f"buffer {self.arguments.shuffle_buffer_size}"
        if self.held_out:
            yield f"first {self.held_out} held out"
        if most := _typed(self.arguments, "max_train_samples"):
            yield f"{most} rows"

    def describe(self, inputs: str) -> str:
        """One line of what is read."""
        names = ", ".join(self.label_names[:10]) + (", ..." if len(self.label_names) > 10 else "")
        held_out = " (its first, held out)" if self.held_out else ""
        return (
            f"{self.source.name}: streamed, shuffled in a buffer of {self.arguments.shuffle_buffer_size:,} rows; "
            f"{len(self.evaluation):,} evaluation rows{held_out}, "
            f"{inputs} -> {self.columns['label']} ({len(self.label_names)} classes: {names})"
        )


def load_streamed(arguments: Namespace, usual: dict[str, tuple[str, ...]], setup: Any) -> Streamed:
    """Opens the rows, chooses the columns, and reads the evaluation rows into memory. Collective.

    `usual` as for `load_labelled`. Each rank reads the stream itself. Raises UserError.
    """
    for name in ("max_train_samples", "group_by_length"):
        if getattr(arguments, name, None) and not _typed(arguments, name):
            say(f"{name} {getattr(arguments, name)}, a default of the script, does not hold for a stream")
    train, evaluated = _from_files(arguments) if arguments.train_file else _from_dataset(arguments, next(iter(usual)))
    held_out = 0
    if evaluated is None:
        held_out, evaluated = arguments.max_eval_samples or HELD_OUT, train
    most = held_out or arguments.max_eval_samples or EVALUATED
    rows = list(islice(raw(evaluated.rows), most + 1))
    if len(rows) > most and not arguments.max_eval_samples:
        say(f"{evaluated.name}: its first {most:,} rows are evaluated on; --max_eval_samples gives another number")
    evaluation = table_of(rows[:most], evaluated.name, 1, evaluated.class_names)
    head = list(islice(raw(train.rows.skip(held_out)), LOOKED_AT))
    if not head or not rows:
        reason = f"{len(rows):,} rows in all, and {held_out:,} of them are held out for evaluation"
        remedy = "give it more rows, or fewer to --max_eval_samples"
        raise UserError(fault(train.argument, train.name, reason, remedy))
    first = table_of(head, train.name, held_out + 1, train.class_names)
    columns = chosen_columns(first, evaluation, arguments, usual)
    labels = _labels(train, columns["label"], arguments.encoding, setup)
    _, eval_ids, names = class_ids(labels, evaluation, columns["label"])
    return Streamed(train, first, evaluation, eval_ids, names, columns, held_out, arguments, setup)


def _typed(arguments: Namespace, name: str) -> Any:
    return getattr(arguments, name) if name in getattr(arguments, "typed", ()) else None


def _labels(source: _Source, column: str, encoding: str | None, setup: Any) -> Table:
    """A table whose rows have every class once: those that the data set names, or else those that its files hold."""
    if names := source.class_names.get(column):
        return Table(source.name, {column: list(range(len(names)))}, source.class_names)
    if not source.files:
        reason = f"{source.name} does not name its classes, and a pass over all rows would load them all"
        remedy = "choose a data set whose label is a ClassLabel, or leave --streaming out"
        raise UserError(fault("--label_column_name", column, reason, remedy))

    def make() -> dict[str, np.ndarray]:
        say(f"{source.name}: one pass over its labels, to know the classes")
        keys: set[str] = set()
        for rows in _parts(shown(raw(source.rows), None, "labels read")):
            keys.update(label_keys(table_of(rows, source.name, 1, {}), column))
        return {"names": np.frombuffer(json.dumps(sorted(keys)).encode(), dtype=np.uint8)}

    key = {"files": of_contents(source.files), "column": column, "encoding": encoding}
    held = prepared("classes", key, make, setup)["names"]
    return Table(source.name, {column: json.loads(held.tobytes())})


def _parts(rows: Iterator[Row]) -> Iterator[list[Row]]:
    while part := list(islice(rows, LOOKED_AT)):
        yield part


def _from_files(arguments: Namespace) -> tuple[_Source, _Source | None]:
    faults: list[str] = []
    for argument in ("train_file", "validation_file"):
        if path := getattr(arguments, argument):
            try:
                check_file(path, f"--{argument}")
            except UserError as error:
                faults += error.lines
    if faults:
        raise UserError(*faults)
    files = [path for path in (arguments.train_file, arguments.validation_file) if path]
    check_encoding(arguments.encoding, files, ", ".join(files))
    train, *evaluation = (
        _local([path], argument, arguments.encoding)
        for path, argument in zip(files, ("--train_file", "--validation_file"), strict=False)
    )
    return train, evaluation[0] if evaluation else None


def _local(files: list[str], argument: str, encoding: str | None, names: dict[str, list[str]] | None = None) -> _Source:
    import datasets

    given = {"files": files, "argument": argument, "encoding": encoding}
    rows = datasets.IterableDataset.from_generator(rows_of, gen_kwargs=given)
    names = {**names_in(Path(files[0])), **(names or {})}
    return _Source(rows, files[0] if len(files) == 1 else f"{Path(files[0]).parent}", names, files, argument)


def _from_dataset(arguments: Namespace, kind: str) -> tuple[_Source, _Source | None]:
    name, config = on_hub(arguments.dataset_name, arguments.dataset_config_name)
    if folders := class_folders(name, kind):
        check_class_folders(arguments, kind)
        chosen = evaluation_split(name, list(folders))
        train = _of_classes(folders["train"], kind, arguments.encoding)
        return train, None if chosen is None else _of_classes(folders[chosen], kind, arguments.encoding)
    builder, files = find_dataset(name, config)
    check_encoding(arguments.encoding, [file for found in files.values() for file in found], name)
    streams = None if files else _streams(builder, name, config)

    def source(split: str) -> _Source:
        if streams is None:
            return _local(files[split], "--dataset_name", arguments.encoding, class_names(builder.info.features))
        return _remote(streams[split], f"{name} ({split})")

    evaluation = evaluation_split(name, list(streams or files))
    return source("train"), None if evaluation is None else source(evaluation)


def _of_classes(folder: Path, kind: str, encoding: str | None) -> _Source:
    import datasets

    files, labels = listed(folder, kind)
    # They stand class by class: the first rows, which may be held out, would be of one.
    order = np.random.default_rng(0).permutation(len(files)).tolist()
    given = {"kind": kind, "encoding": encoding} | {
        name: [held[place] for place in order] for name, held in (("files", files), ("labels", labels))
    }
    rows = datasets.IterableDataset.from_generator(rows_of_classes, gen_kwargs=given)
    return _Source(rows, str(folder), {"label": in_order(set(labels))}, [], "--dataset_name")


def _streams(builder: Any, name: str, config: str | None) -> dict[str, Any]:
    import datasets

    with told(name):
        options: dict[str, Any] = {}
        if builder.name == "csv":
            # Else each part of a file has types of its own: "007" is 7 until a text comes, and "NA" is nothing.
            options["keep_default_na"] = False
            columns = next(iter(datasets.load_dataset(name, config, streaming=True, **options).values())).take(1)
            options["features"] = datasets.Features({each: datasets.Value("string") for each in next(iter(columns))})
        return {
            str(split): rows for split, rows in datasets.load_dataset(name, config, streaming=True, **options).items()
        }


def _remote(rows: Any, name: str) -> _Source:
    import datasets

    for column, feature in (rows.features or {}).items():
        if isinstance(feature, datasets.Image):
            rows = rows.cast_column(column, datasets.Image(decode=False))
    return _Source(rows, name, class_names(rows.features), [], "--dataset_name")
