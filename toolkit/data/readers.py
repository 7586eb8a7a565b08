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


@dataclass
class Table:
    """Columns of equal length; `name` and `lines` are for messages."""

    name: str
    columns: dict[str, Any]  # a list, or a pyarrow.ChunkedArray
    class_names: dict[str, list[str]] = field(default_factory=dict)  # of label columns that hold numbers of classes
    lines: list[int] | None = None  # line in the file of each row, where the file has lines
    folder: Path | None = None  # relative paths of images start here

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
        lines = None if self.lines is None else [self.lines[row] for row in rows]
        return Table(self.name, columns, self.class_names, lines, self.folder)

    def where(self, rows: Iterable[int]) -> str:
        """Names rows by line of the file, or by row from 1: `lines 3, 8`, at most five."""
        numbers = [row + 1 if self.lines is None else self.lines[row] for row in rows]
        kind = ("row" if self.lines is None else "line") + ("s" if len(numbers) > 1 else "")
        more = f", ... ({len(numbers)} in all)" if len(numbers) > 5 else ""
        return f"{kind} {', '.join(map(str, numbers[:5]))}{more}"


def read_file(path: str, argument: str, kinds: Sequence[str] = KINDS) -> Table:
    """Reads one file by its ending. UserError, naming `argument`, if it is not there, not readable or has no rows.

    `.txt`, where it is among the kinds, is a column `text` with a row for each line, empty ones too.
    """
    file = Path(path)
    if file.suffix.lower() not in kinds:
        raise UserError(fault(argument, path, "unknown kind of file", f"use one of {', '.join(kinds)}"))
    if not file.is_file():
        reason = "is a folder" if file.is_dir() else f"no such file (working folder {os.getcwd()})"
        raise UserError(fault(argument, path, reason, "give the path of a file"))
    try:
        if file.suffix.lower() == ".parquet":
            table = _read_parquet(file)
        else:
            text = _text(file)
            if file.suffix.lower() in (".json", ".jsonl"):
                table = _read_json(file, text)
            elif file.suffix.lower() == ".txt":
                rows = [line.removesuffix("\r") for line in text.removesuffix("\n").split("\n")] if text else []
                table = Table(str(file), {"text": rows}, lines=list(range(1, len(rows) + 1)))
            else:
                table = _read_csv(file, text, "\t" if file.suffix.lower() == ".tsv" else ",")
    except OSError as error:
        raise UserError(
            fault(argument, path, f"cannot be read: {error.strerror or error}", "check the file")
        ) from error
    except _Unreadable as error:
        raise UserError(fault(argument, path, error.reason, error.remedy)) from error
    if len(table) == 0:
        raise UserError(fault(argument, path, "has no rows", "give a file with rows"))
    return table


class _Unreadable(Exception):
    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason, self.remedy = reason, remedy


def _text(file: Path) -> str:
    data = file.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        reason = f"line {line} is not UTF-8 (byte 0x{data[error.start]:02x})"
        raise _Unreadable(reason, "save the file as UTF-8") from error


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
        raise _Unreadable(f"line {start}: {error}", "close every quote and double quotes inside quotes") from error
    if not rows:
        raise _Unreadable("is empty", "give a file with a line of column names and rows")
    header = [name.strip() for name in rows[0]]
    doubles = sorted({name for name in header if header.count(name) > 1})
    if doubles:
        raise _Unreadable(f"column names stand twice: {', '.join(doubles)}", "rename them")
    table = Table(str(file), {}, lines=lines[1:], folder=file.parent)
    uneven = [number for number, row in enumerate(rows[1:]) if len(row) != len(header)]
    if uneven:
        reason = f"{table.where(uneven)}: not the {len(header)} fields that the first line names"
        raise _Unreadable(reason, "quote a field that holds the separator")
    table.columns = {name: [row[number] for row in rows[1:]] for number, name in enumerate(header)}
    return table


def _read_json(file: Path, text: str) -> Table:
    lines: list[int] | None = None
    if text.lstrip().startswith("["):
        try:
            rows = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise _Unreadable(f"is not JSON: {error}", "correct it there") from error
    else:
        rows, lines = [], []
        # Not splitlines(): a JSON string may hold U+2028 and its like, which would be taken for ends of lines.
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                try:
                    rows.append(json.loads(line))
                except (ValueError, RecursionError) as error:
                    reason = f"line {number} is not JSON: {error}"
                    raise _Unreadable(reason, "give one object on each line, or one list of objects") from error
                lines.append(number)
    table = Table(str(file), {}, lines=lines, folder=file.parent)
    others = [number for number, row in enumerate(rows) if not isinstance(row, dict)]
    if others:
        reason = f"{table.where(others)}: not an object with column names"
        raise _Unreadable(reason, 'write each row as {"column": value, ...}')
    names = dict.fromkeys(name for row in rows for name in row)
    table.columns = {name: [row.get(name) for row in rows] for name in names}
    return table


def _read_parquet(file: Path) -> Table:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise _Unreadable(f"is not a Parquet file: {error}", "write it again") from error
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
