import json
import pickle
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from toolkit.data.readers import read_file
from toolkit.errors import UserError


def written(folder: Path, name: str, content: str | bytes) -> str:
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(file)


@pytest.mark.parametrize(
    ("name", "content", "columns", "lines"),
    [
        # What `datasets` takes for missing, for numbers or for truth values stays a text.
        (
            "odd.csv",
            'text,label\n,1\n"",0\nNA,1\nnull,0\nNone,1\n007,0\ntrue,1\n',
            {"text": ["", "", "NA", "null", "None", "007", "true"], "label": ["1", "0", "1", "0", "1", "0", "1"]},
            [2, 3, 4, 5, 6, 7, 8],
        ),
        ("old.csv", "text,label\ra,1\rb,0\r", {"text": ["a", "b"], "label": ["1", "0"]}, [2, 3]),
        ("bom.csv", b"\xef\xbb\xbftext,label\r\na,1\r\n\r\nb,0\r\n", {"text": ["a", "b"], "label": ["1", "0"]}, [2, 4]),
        ("quoted.csv", 'text,label\n"a, ""b""\nc",1\nd,0\n', {"text": ['a, "b"\nc', "d"], "label": ["1", "0"]}, [2, 4]),
        ("tabs.tsv", "text\tlabel\na, b\t1\n", {"text": ["a, b"], "label": ["1"]}, [2]),
        (
            "rows.jsonl",
            '{"text": "NA", "label": 1}\n\n{"text": "a\u2028b"}\n',
            {"text": ["NA", "a\u2028b"], "label": [1, None]},
            [1, 3],
        ),
        ("rows.json", '[{"text": "a", "label": "x"}]', {"text": ["a"], "label": ["x"]}, None),
        (
            "lines.json",
            '{"text": "a", "label": 0}\n{"text": "b", "label": 1}',
            {"text": ["a", "b"], "label": [0, 1]},
            [1, 2],
        ),
    ],
)
def test_files_are_read_as_they_are(
    tmp_path: Path, name: str, content: str | bytes, columns: dict[str, list[object]], lines: list[int] | None
) -> None:
    table = read_file(written(tmp_path, name, content), "--train_file")
    assert {column: table.values(column) for column in table.columns} == columns
    assert table.lines == lines


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        (
            "latin.csv",
            "text,label\na,1\ncaf\xe9,0\n".encode("latin-1"),
            "line 3 is not UTF-8 (byte 0xe9); save the file as UTF-8, or give its --encoding",
        ),
        ("utf16.csv", "text,label\na,1\n".encode("utf-16"), "line 1 is not UTF-8 (byte 0xff)"),
        ("header.csv", "text,label\n", "has no rows"),
        ("empty.csv", "", "is empty"),
        ("uneven.csv", "text,label\na,b,1\nc,0\nd\n", "lines 2, 4: not the 2 fields that the first line names"),
        ("open.csv", 'text,label\na,1\n"b,0\nc,1\n', "line 3: unexpected end of data"),
        ("twice.csv", "text,text\na,b\n", "column names stand twice: text"),
        ("bad.jsonl", '{"text": "a"}\n{"text": \n', "line 2 is not JSON"),
        ("list.jsonl", '{"text": "a"}\n[1]\n', "line 2: not an object with column names"),
        ("bad.json", '[{"text": "a"},]', "is not JSON"),
        ("twice.jsonl", '{"text": "a"}\n{"text": "b", "text": "c"}\n', "line 2 is not JSON: 'text' stands twice"),
        ("twice.json", '[{"text": "b", "text": "c"}]', "is not JSON: 'text' stands twice in one object"),
        ("bad.parquet", "PAR1 no", "is not a Parquet file"),
        ("rows.xlsx", "", "unknown kind of file; use one of .csv, .tsv, .json, .jsonl, .parquet"),
    ],
)
def test_an_unreadable_file_is_told_with_its_line(tmp_path: Path, name: str, content: str | bytes, told: str) -> None:
    path = written(tmp_path, name, content)
    with pytest.raises(UserError) as caught:
        read_file(path, "--train_file")
    assert caught.value.lines[0].startswith(f"--train_file: {path!r}: ")
    assert told in caught.value.lines[0]


@pytest.mark.parametrize(
    ("encoding", "content", "told"),
    [
        ("cp1252", b"text\na\n\x81\n", "line 3 is not cp1252 (byte 0x81); give another --encoding"),
        ("ascii", b"text\n\xe9\n", "line 2 is not ascii (byte 0xe9); give another --encoding"),
        ("utf-16", "text\na\n".encode("utf-16") + b"b", "line 3 is not utf-16 (byte 0x62); give another --encoding"),
        ("punycode", b"text\n-!\n", "line 1 is not punycode (byte 0x74); give another --encoding"),
    ],
)
def test_bytes_that_are_not_in_the_encoding_are_named_by_line(
    tmp_path: Path, encoding: str, content: bytes, told: str
) -> None:
    path = written(tmp_path, "rows.csv", content)
    with pytest.raises(UserError) as caught:
        read_file(path, "--train_file", encoding=encoding)
    assert caught.value.lines == (f"--train_file: {path!r}: {told}",)


def test_numbers_of_json_know_how_they_are_written(tmp_path: Path) -> None:
    """They are numbers all the same; inside lists, as an image's, they need not know it."""
    numbers = ["1e5", "1.0", "1.10", "-0.0", "1E-2", "Infinity"]
    rows = [f'{{"a": {number}, "b": [1e5]}}' for number in numbers]
    for name, content in (("a.jsonl", "\n".join(rows)), ("a.json", f"[{','.join(rows)}]")):
        table = read_file(written(tmp_path, name, content), "--train_file")
        assert [str(value) for value in table.values("a")] == numbers
        assert table.values("a") == [float(number) for number in numbers]
        assert pickle.loads(pickle.dumps(table.values("a")[0])).text == "1e5"
    plain = read_file(written(tmp_path, "a.jsonl", '{"a": 1, "b": [1e5]}'), "--train_file")
    assert type(plain.values("b")[0][0]) is float


def test_an_absent_file_and_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"no such file \(working folder "):
        read_file(str(tmp_path / "none.csv"), "--train_file")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="is a folder"):
        read_file(str(tmp_path / "folder.csv"), "--train_file")


def test_parquet_keeps_class_names(tmp_path: Path) -> None:
    features = {"label": {"_type": "ClassLabel", "names": ["no", "yes"]}, "text": {"_type": "Value", "dtype": "string"}}
    table = pa.table({"text": ["a", "b"], "label": [1, 0]})
    table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, tmp_path / "rows.parquet")
    read = read_file(str(tmp_path / "rows.parquet"), "--train_file")
    assert read.class_names == {"label": ["no", "yes"]}
    assert read.values("label") == [1, 0]
    assert read.take([1]).values("text") == ["b"]


@pytest.mark.parametrize(("name", "told"), [("a.json", "is not JSON"), ("a.jsonl", "line 1 is not JSON")])
@pytest.mark.parametrize("row", ['{"a": ' * 100_000, '{"a": ' + "1" * 5000 + "}"], ids=["deep", "long"])
def test_what_python_cannot_hold_is_a_line(tmp_path: Path, name: str, told: str, row: str) -> None:
    (tmp_path / name).write_text(row if name == "a.jsonl" else f"[{row}]")
    with pytest.raises(UserError) as caught:
        read_file(str(tmp_path / name), "--train_file")
    assert told in caught.value.lines[0]
