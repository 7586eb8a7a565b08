"""Rows of local files one after another, for what does not fit into memory; values as `readers` reads them."""

from __future__ import annotations

import codecs
import csv
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Any

from toolkit.data.readers import Table, Unreadable, check_file, class_names_of, from_json, not_decoded
from toolkit.errors import UserError, fault

FILE, PLACE = "\0file", "\0place"  # columns that name a row in messages; no file has columns of these names
READ = 64  # rows taken out of a Parquet file at once
Row = dict[str, Any]
Placed = Iterator[tuple[str, Row]]  # where a row stands, and the row


@dataclass
class RowTable(Table):
    """A table of rows that are named one by one, wherever in the stream they have come from."""

    places: list[str] = field(default_factory=list)

    def where(self, rows: Iterable[int]) -> str:
        """Names rows by their places, at most five."""
        named = [self.places[row] for row in rows]
        return ", ".join(named[:5]) + (f", ... ({len(named)} in all)" if len(named) > 5 else "")


def table_of(rows: Sequence[Row], name: str, first: int, class_names: dict[str, list[str]]) -> RowTable:
    """Rows as columns. A row is named by its file and its place there, else by its position, counted from `first`."""
    files = list(dict.fromkeys(row[FILE] for row in rows if FILE in row))
    places = [row.get(PLACE, f"position {position}") for position, row in enumerate(rows, first)]
    if len(files) > 1:
        places = [f"{row[FILE]} {place}" for row, place in zip(rows, places, strict=True)]
    names = dict.fromkeys(column for row in rows for column in row if column not in (FILE, PLACE))
    columns = {column: [row.get(column) for row in rows] for column in names}
    folder = Path(files[0]).parent if files else None
    return RowTable(files[0] if len(files) == 1 else name, columns, class_names, folder=folder, places=places)


def rows_of(files: list[str], argument: str, encoding: str | None = None) -> Iterator[Row]:
    """The rows of files, with their FILE and PLACE; `encoding` is that of text files, UTF-8 where it is None.

    Raises:
        UserError: naming `argument`, for a file that is not there, not readable, or of a kind with no rows in a row.
    """
    for name in files:
        file = check_file(name, argument)
        try:
            for place, row in _placed(file, encoding):
                yield {**row, FILE: name, PLACE: place}
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}"
            raise UserError(fault(argument, name, reason, "check the file")) from error
        except Unreadable as error:
            raise UserError(fault(argument, name, *error.args)) from error


def fetched(table: Table, column: str) -> Table:
    """The table with the bytes of images that `datasets` names by an address of the hub."""
    values = [_fetched(value) for value in table.values(column)]
    return replace(table, columns={**table.columns, column: values})


def _fetched(value: Any) -> Any:
    path = value.get("path") if isinstance(value, dict) and value.get("bytes") is None else None
    if not path or "://" not in path:
        return value
    import fsspec  # type: ignore[import-untyped]

    try:
        with fsspec.open(path, "rb") as file:
            return {"bytes": file.read(), "path": path}
    except (OSError, ValueError, ImportError) as error:
        reason = f"{path} cannot be fetched: {' '.join(str(error).split())[:300]}"
        raise UserError(fault("--dataset_name", path, reason, "try again, or load it without --streaming")) from error


def names_in(file: Path) -> dict[str, list[str]]:
    """The classes of each column that a Parquet file names; none for other files."""
    if file.suffix.lower() != ".parquet":
        return {}
    import pyarrow.parquet

    return class_names_of(pyarrow.parquet.read_schema(file))


def _placed(file: Path, encoding: str | None) -> Placed:
    kind = file.suffix.lower()
    if kind == ".parquet":
        return _parquet_rows(file)
    lines = _lines(file, encoding)
    return _json_rows(lines) if kind in (".json", ".jsonl") else _csv_rows(lines, "\t" if kind == ".tsv" else ",")


def _lines(file: Path, encoding: str | None) -> Iterator[str]:
    # Not the lines of a text file: a JSON string may hold U+2028 and its like, which would be taken for ends of lines.
    decoder = codecs.getincrementaldecoder(encoding or "utf-8")()
    number, held, last = 1, "", b""
    with file.open("rb") as parts:  # the byte of an end of line is one in any encoding, if sometimes not the whole end
        for part in chain(parts, [last]):
            try:
                held += decoder.decode(part, final=part is last)
            except UnicodeError as error:
                bad, start = getattr(error, "object", part), getattr(error, "start", 0)  # not every codec tells
                ends = bad[:start].decode(encoding or "utf-8", "ignore").count("\n")
                raise not_decoded(number + ends, bad[start : start + 1], encoding) from error
            if number == 1:
                held = held.removeprefix("\ufeff")
            *lines, held = held.split("\n")
            yield from (f"{line}\n" for line in lines)
            number += len(lines)
    if held:
        yield held


def _json_rows(lines: Iterable[str]) -> Placed:
    first = True
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if first and line.lstrip().startswith("["):
            remedy = "write one object on each line, or leave --streaming out"
            raise Unreadable("holds one list, which cannot be read row by row", remedy)
        first = False
        try:
            row = from_json(line)
        except (ValueError, RecursionError) as error:
            raise Unreadable(f"line {number} is not JSON: {error}", "give one object on each line") from error
        if not isinstance(row, dict):
            raise Unreadable(
                f"line {number}: not an object with column names", 'write each row as {"column": value, ...}'
            )
        yield f"line {number}", row


def _csv_rows(lines: Iterable[str], separator: str) -> Placed:
    csv.field_size_limit(sys.maxsize)
    reader = csv.reader(lines, delimiter=separator, strict=True)
    header: list[str] | None = None
    start = 1
    try:
        for fields in reader:
            if fields and header is None:
                header = [name.strip() for name in fields]
                if doubles := sorted({name for name in header if header.count(name) > 1}):
                    raise Unreadable(f"column names stand twice: {', '.join(doubles)}", "rename them")
            elif fields and header:  # not an empty line
                if len(fields) != len(header):
                    reason = f"line {start}: not the {len(header)} fields that the first line names"
                    raise Unreadable(reason, "quote a field that holds the separator")
                yield f"line {start}", dict(zip(header, fields, strict=True))
            start = reader.line_num + 1
    except csv.Error as error:
        raise Unreadable(f"line {start}: {error}", "close every quote and double quotes inside quotes") from error


def _parquet_rows(file: Path) -> Placed:
    import pyarrow
    import pyarrow.parquet

    number = 0
    try:
        for batch in pyarrow.parquet.ParquetFile(file).iter_batches(batch_size=READ):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except pyarrow.ArrowException as error:
        raise Unreadable(f"is not a Parquet file: {error}", "write it again") from error
