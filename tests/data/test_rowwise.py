"""Rows of files one after another: the values that reading the whole file gives, and faults named by their place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.data.readers import read_file
from toolkit.data.rowwise import FILE, PLACE, fetched, rows_of, table_of
from toolkit.errors import UserError

# What libraries that guess types take for something else.
TEXTS = ["007", "NA", "null", "", "2020-01-01 00:00:00", "true", "a\u2028b", 'quoted "so", and\nso', "1e3"]
CSV = 'text,label\n007,1\nNA,0\n\n"",1\n"quoted ""so"", and\nso",0\n 1 ,x\n'


def written(folder: Path, kind: str) -> Path:
    file = folder / f"rows{kind}"
    rows = [{"text": text, "label": number} for number, text in enumerate(TEXTS)]
    if kind == ".parquet":
        pq.write_table(pa.Table.from_pylist(rows), file, row_group_size=2)
    elif kind == ".jsonl":
        lines = [json.dumps(row, ensure_ascii=False) for row in rows]
        file.write_text("\ufeff" + lines[0] + "\n\n" + "\n".join(lines[1:]) + '\n{"text": "bare"}', encoding="utf-8")
    else:
        file.write_text("\ufeff" + CSV.replace(",", "," if kind == ".csv" else "\t"), encoding="utf-8")
    return file


@pytest.mark.parametrize("kind", [".csv", ".tsv", ".jsonl", ".parquet"])
def test_values_and_places_are_those_of_the_whole_file(tmp_path: Path, kind: str) -> None:
    file = written(tmp_path, kind)
    whole = read_file(str(file), "--train_file")
    rows = list(rows_of([str(file)], "--train_file"))
    table = table_of(rows, "rows", 1, {})
    assert {name: table.values(name) for name in table.columns} == {name: whole.values(name) for name in whole.columns}
    assert (table.name, table.folder) == (str(file), tmp_path)
    for row in range(len(rows)):
        assert table.where([row]) == whole.where([row])


def test_rows_of_several_files_are_named_with_their_file(tmp_path: Path) -> None:
    files = []
    for name in ("a", "b"):
        files.append(str(tmp_path / f"{name}.csv"))
        Path(files[-1]).write_text("text\nx\ny\n")
    rows = list(rows_of(files, "--dataset_name"))
    table = table_of(rows, "both", 1, {})
    assert table.values("text") == ["x", "y", "x", "y"]
    assert (table.name, table.where([1, 2])) == ("both", f"{files[0]} line 3, {files[1]} line 2")
    assert table.where(range(4)).count("line") == 4
    assert [row[PLACE] for row in rows if row[FILE] == files[1]] == ["line 2", "line 3"]


def test_rows_from_elsewhere_are_named_by_their_position() -> None:
    table = table_of([{"text": "a"}, {"text": "b"}], "hub (train)", 41, {})
    assert (table.name, table.where([1]), table.folder) == ("hub (train)", "position 42", None)


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.jsonl", b'{"a": 1}\n{"a": \n', "line 2 is not JSON: "),
        ("a.jsonl", b'{"a": 1}\n\n[1]\n', "line 3: not an object with column names"),
        ("a.json", b'\n[{"a": 1}]\n', "holds one list, which cannot be read row by row; write one object on each line"),
        ("a.jsonl", b'{"a": "\xe4"}\n', "line 1 is not UTF-8 (byte 0xe4)"),
        ("a.csv", b"a,b\n1,2\n3\n", "line 3: not the 2 fields that the first line names"),
        ("a.csv", b'a,b\n1,2\n3,"4\n5', "line 3: "),
        ("a.csv", b"a, a\n1,2\n", "column names stand twice: a"),
        ("a.csv", b"a\n\xe4\n", "line 2 is not UTF-8 (byte 0xe4)"),
        ("a.parquet", b"no", "is not a Parquet file: "),
        ("a.txt", b"", "a text file has no labels; give a csv or tsv with a column of labels, or "),
        ("none.csv", None, "no such file"),
    ],
)
def test_what_cannot_be_read_is_told_by_file_and_line(
    tmp_path: Path, name: str, content: bytes | None, told: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(rows_of([str(tmp_path / name)], "--train_file"))
    assert len(caught.value.lines) == 1
    assert caught.value.lines[0].startswith(f"--train_file: '{tmp_path / name}': {told}")


@pytest.mark.parametrize("encoding", ["latin-1", "utf-16", "utf-16-be", "utf-8", "cp1252"])
@pytest.mark.parametrize("kind", [".csv", ".jsonl"])
def test_an_encoding_gives_the_values_of_the_whole_file(tmp_path: Path, kind: str, encoding: str) -> None:
    rows = [
        "grün",
        "Ċa\n\nb"[encoding == "latin-1" or encoding == "cp1252" :],
        "c",
        "",
    ]  # Ċ has the byte of an end of line
    text = "text\n" + "".join(f'"{row}"\n' for row in rows)
    if kind == ".jsonl":
        text = "".join(json.dumps({"text": row}, ensure_ascii=False) + "\n" for row in rows)
    file = tmp_path / f"rows{kind}"
    file.write_bytes(text.encode(encoding))
    whole = read_file(str(file), "--train_file", encoding=encoding)
    found = list(rows_of([str(file)], "--train_file", encoding))
    assert [row["text"] for row in found] == whole.values("text") == rows
    assert [row[PLACE] for row in found] == [f"line {line}" for line in whole.lines or ()]


@pytest.mark.parametrize(
    ("encoding", "content", "told"),
    [
        ("cp1252", b"text\na\n\x81\n", "line 3 is not cp1252 (byte 0x81)"),
        ("utf-16", "text\na\n".encode("utf-16") + b"b", "line 3 is not utf-16 (byte 0x62)"),
    ],
)
def test_bytes_that_are_not_in_the_encoding_are_named_by_line(
    tmp_path: Path, encoding: str, content: bytes, told: str
) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(UserError) as caught:
        list(rows_of([str(tmp_path / "a.csv")], "--train_file", encoding))
    assert caught.value.lines == (f"--train_file: '{tmp_path / 'a.csv'}': {told}; give another --encoding",)


def test_images_at_an_address_are_fetched(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"image")
    there: Any = {"bytes": None, "path": f"file://{tmp_path}/a.png"}
    held = {"bytes": b"held", "path": "hub://b.png"}
    table = fetched(table_of([{"image": there}, {"image": held}, {"image": "c.png"}], "hub", 1, {}), "image")
    assert table.values("image") == [{"bytes": b"image", "path": there["path"]}, held, "c.png"]
    assert table.where([0]) == "position 1"
    gone = {"bytes": None, "path": f"file://{tmp_path}/gone.png"}
    with pytest.raises(UserError, match=r"gone\.png cannot be fetched: "):
        fetched(table_of([{"image": gone}], "hub", 1, {}), "image")
