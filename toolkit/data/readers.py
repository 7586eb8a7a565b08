"""Files with rows: csv, tsv, json, jsonl, parquet. Read as they are: no guessed types, and what cannot be read is told.

A text file is read here and not by `datasets`, which takes `NA`, `null` and empty texts for missing ones, turns texts
of digits into numbers, and does not name the line of a bad byte.
"""

import csv
import io
import json
import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from toolkit.errors import UserError, fault

KINDS = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
ENCODED = (".csv", ".tsv", ".json", ".jsonl", ".txt")  # kinds whose bytes have an encoding


@dataclass
class Table:
    """Columns of equal length; `name` and `lines` are for messages."""

    name: str
    columns: dict[str, Any]  # a list, or a pyarrow.ChunkedArray
    class_names: dict[str, list[str]] = field(default_factory=dict)  # of label columns that hold numbers of classes
    lines: list[int] | None = None  # of each row, where rows are not simply counted from 1
    folder: Path | None = None  # relative paths of images start here
    unit: str = "line"  # what `lines` count

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), ()))

    def values(self, column: str) -> list[Any]:
        """The column's values as Python objects."""
        held = self.columns[column]
        return held if isinstance(held, list) else held.to_pylist()

    def take(self, rows: Sequence[int]) -> "Table":
        """These rows only, in this order."""
        if list(rows) == list(range(len(self))):
            return self
        columns = {
            name: [held[row] for row in rows] if isinstance(held, list) else held.take(rows)
            for name, held in self.columns.items()
        }
        lines = [row + 1 if self.lines is None else self.lines[row] for row in rows]
        unit = "row" if self.lines is None else self.unit
        return Table(self.name, columns, self.class_names, lines, self.folder, unit)

    def where(self, rows: Iterable[int]) -> str:
        """Names rows by line of the file, or by row from 1: `lines 3, 8`, at most five."""
        numbers = [row + 1 if self.lines is None else self.lines[row] for row in rows]
        unit = ("row" if self.lines is None else self.unit) + ("s" if len(numbers) > 1 else "")
        more = f", ... ({len(numbers)} in all)" if len(numbers) > 5 else ""
        return f"{unit} {', '.join(map(str, numbers[:5]))}{more}"


def read_file(path: str, argument: str, kinds: Sequence[str] = KINDS, encoding: str | None = None) -> Table:
    """Reads one file by its ending. UserError, naming `argument`, if it is not there, not readable or has no rows.

    `.txt`, where it is among the kinds, is a column `text` with a row for each line, empty ones too. `encoding` is that
    of a text file; UTF-8 where it is None.
    """
    file = check_file(path, argument, kinds)
    kind = file.suffix.lower()
    try:
        if kind == ".parquet":
            table = _read_parquet(file)
        else:
            text = decoded(file, encoding)
            if kind in (".json", ".jsonl"):
                table = _read_json(file, text)
            elif kind == ".txt":
                rows = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
                table = Table(str(file), {"text": rows}, lines=list(range(1, len(rows) + 1)))
            else:
                table = _read_csv(file, text, "\t" if kind == ".tsv" else ",")
    except OSError as error:
        raise UserError(
            fault(argument, path, f"cannot be read: {error.strerror or error}", "check the file")
        ) from error
    except Unreadable as error:
        raise UserError(fault(argument, path, *error.args)) from error
    if len(table) == 0:
        raise UserError(fault(argument, path, "has no rows", "give a file with rows"))
    return table


def check_file(path: str, argument: str, kinds: Sequence[str] = KINDS) -> Path:
    """UserError unless there is such a file, of one of the kinds."""
    file, of_run = Path(path), argument in ("--train_file", "--validation_file")
    if file.is_dir():
        remedy = "give it to --dataset_name" if of_run else "give the path of a file"
        raise UserError(fault(argument, path, "is a folder", remedy))
    if file.suffix.lower() == ".txt" and of_run:
        remedy = "give a csv or tsv with a column of labels, or --dataset_name FOLDER with the texts in FOLDER/CLASS/"
        raise UserError(fault(argument, path, "a text file has no labels", remedy))
    if file.suffix.lower() not in kinds:
        raise UserError(fault(argument, path, "unknown kind of file", f"use one of {', '.join(kinds)}"))
    if not file.is_file():
        reason = f"no such file (working folder {os.getcwd()})"
        raise UserError(fault(argument, path, reason, "give the path of a file"))
    return file


def check_encoding(encoding: str | None, files: Iterable[str], source: str) -> None:
    """UserError for an encoding that none of the files would be read in."""
    if encoding is not None and not any(file.lower().endswith(ENCODED) for file in files):
        raise UserError(fault("--encoding", encoding, f"{source} is not read from text files", "leave it out"))


class Unreadable(Exception):
    """Reason and remedy."""


def decoded(file: Path, encoding: str | None) -> str:
    """A file's text. Unreadable, with the line, for bytes that are not in this encoding (None: UTF-8)."""
    data = file.read_bytes()
    try:
        return data.decode(encoding or "utf-8").removeprefix("\ufeff")
    except UnicodeError as error:
        start = getattr(error, "start", 0)  # not every codec tells
        line = data[:start].decode(encoding or "utf-8", "ignore").count("\n") + 1
        raise not_decoded(line, data[start : start + 1], encoding) from error


def not_decoded(line: int, byte: bytes, encoding: str | None) -> Unreadable:
    """For a byte that stands in this line and is not in this encoding."""
    where = f"line {line} is not {encoding or 'UTF-8'}" + (f" (byte 0x{byte.hex()})" if byte else "")
    remedy = "give another --encoding" if encoding else "save the file as UTF-8, or give its --encoding"
    return Unreadable(where, remedy)


def _read_csv(file: Path, text: str, separator: str) -> Table:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    rows: list[list[str]] = []
    lines: list[int] = []
    start = 1
    try:
        for row in reader:
            if row:  # not an empty line
                rows.append(row)
                lines.append(start)
            start = reader.line_num + 1
    except csv.Error as error:
        raise Unreadable(f"line {start}: {error}", "close every quote and double quotes inside quotes") from error
    if not rows:
        raise Unreadable("is empty", "give a file with a line of column names and rows")
    header = [name.strip() for name in rows[0]]
    doubles = sorted({name for name in header if header.count(name) > 1})
    if doubles:
        raise Unreadable(f"column names stand twice: {', '.join(doubles)}", "rename them")
    table = Table(str(file), {}, lines=lines[1:], folder=file.parent)
    uneven = [number for number, row in enumerate(rows[1:]) if len(row) != len(header)]
    if uneven:
        reason = f"{table.where(uneven)}: not the {len(header)} fields that the first line names"
        raise Unreadable(reason, "quote a field that holds the separator")
    table.columns = {name: [row[number] for row in rows[1:]] for number, name in enumerate(header)}
    return table


class Spelled(float):
    """A number of a JSON file that knows how it is written there: as a text 1e5 is "1e5"."""

    text: str

    def __new__(cls, text: str) -> "Spelled":
        number = super().__new__(cls, text)
        number.text = text
        return number

    def __str__(self) -> str:
        return self.text

    def __reduce__(self) -> tuple[type["Spelled"], tuple[str]]:
        return Spelled, (self.text,)


def from_json(text: str) -> Any:
    """A row, or a list of rows. ValueError or RecursionError where it is no JSON, or names a column twice."""
    value = json.loads(text, object_pairs_hook=_once)
    rows = value if isinstance(value, list) else [value]
    if any(isinstance(held, float) for row in rows if isinstance(row, dict) for held in row.values()):
        # Not always: an image's fractions would take six times the memory.
        value = json.loads(text, object_pairs_hook=_once, parse_float=Spelled, parse_constant=Spelled)
    return value


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return row


def _read_json(file: Path, text: str) -> Table:
    lines: list[int] | None = None
    if text.lstrip().startswith("["):
        try:
            rows = from_json(text)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"is not JSON: {error}", "correct it there") from error
    else:
        rows, lines = [], []
        # Not splitlines(): a JSON string may hold U+2028 and its like, which would be taken for ends of lines.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    rows.append(from_json(line))
                except (ValueError, RecursionError) as error:
                    reason = f"line {number} is not JSON: {error}"
                    raise Unreadable(reason, "give one object on each line, or one list of objects") from error
                lines.append(number)
    table = Table(str(file), {}, lines=lines, folder=file.parent)
    others = [number for number, row in enumerate(rows) if not isinstance(row, dict)]
    if others:
        reason = f"{table.where(others)}: not an object with column names"
        raise Unreadable(reason, 'write each row as {"column": value, ...}')
    names = dict.fromkeys(name for row in rows for name in row)
    table.columns = {name: [row.get(name) for row in rows] for name in names}
    return table


def _read_parquet(file: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise Unreadable(f"is not a Parquet file: {error}", "write it again") from error
    names = class_names_of(table.schema)
    return Table(str(file), {name: table.column(name) for name in table.column_names}, names, folder=file.parent)


def class_names_of(schema: Any) -> dict[str, list[str]]:
    """The classes of each column of a Parquet file; `datasets` keeps their names in its metadata."""
    held = json.loads((schema.metadata or {}).get(b"huggingface", b"{}"))
    features = held.get("info", {}).get("features", {})
    return {
        name: feature["names"]
        for name, feature in features.items()
        if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names")
    }
