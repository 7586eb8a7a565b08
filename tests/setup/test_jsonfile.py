"""One reader for JSON under every launcher."""

import os

import pytest

from toolkit.errors import UserError
from toolkit.setup.jsonfile import read_json


def refused(path, content):
    path.write_bytes(content)
    with pytest.raises(UserError) as caught:
        read_json(str(path))
    return [line.replace(str(path), "a.json") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b'{"train_batch_size": 8,\n "train_batch_size": 16}', "stands twice, at line 1 and at line 2 column 2;"),
        (b'{"zero_optimization": {"stage": 1,\n "stage": 2}}', "zero_optimization.stage: 2: stands twice"),
        (b"", "a.json: '': the file is empty (line 1 column 1);"),
        (b"// a comment alone", "the file is empty (line 1 column 1);"),
        (b"[1,2]", "expected an object at line 1 column 1, got list;"),
        (b"8", "8: expected an object at line 1 column 1, got integer;"),
        (b"null", "None: expected an object at line 1 column 1, got null;"),
        (b"true", "True: expected an object at line 1 column 1, got boolean;"),
        (b'"a"', "'a': expected an object at line 1 column 1, got string;"),
        (b"1.5", "1.5: expected an object at line 1 column 1, got number;"),
        (b"// one\n\n  null", "expected an object at line 3 column 3, got null;"),
        (b'{"a": 1}\x00', "Extra data at line 1 column 9;"),
        (b'{"a": 1,\n "b\x00": 2}', "Invalid control character at line 2 column 4;"),
        (b'{\n"gradient_clipping": NaN}', "a.json: gradient_clipping: 'NaN': is not JSON at line 2 column 22;"),
        (b'{"gradient_clipping": -Infinity}', "'-Infinity': is not JSON at line 1 column 23;"),
        (b'{"a":\n ' + b"1" * 300 + b"}", "(300 characters)': is more than 64 bits hold at line 2 column 2;"),
        (b'{"a": ' + b"1" * 5000 + b"}", "(5000 characters)': is more than 64 bits hold"),
        (b'{"seed": 9223372036854775808}', "'9223372036854775808': is more than 64 bits hold at line 1 column 10;"),
        (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deep"),
        (b"[" * 100_000, "nested too deep"),
        (b"{,}", "Expecting property name enclosed in double quotes at line 1 column 2;"),
        (b'{"a": 1,, }', "Expecting property name enclosed in double quotes at line 1 column 9;"),
        (b'{"a": [1,,]}', "Expecting value at line 1 column 10;"),
        (b'{"a": 1 // one\n "b": 2}', "Expecting ',' delimiter at line 2 column 2;"),
        (b"{'a': 1}", "a.json: \"{'a': 1}\": Expecting property name enclosed in double quotes at line 1 column 2;"),
        (b'{"a": 1', "Expecting ',' delimiter at line 1 column 8;"),
        (b'/* {"a": 1}', "Expecting value at line 1 column 1;"),
        (b'{"a": "x\ny"}', "Invalid control character at line 1 column 9;"),
        ('{"train_batch_size": 8}'.encode("utf-16"), "unreadable: byte 0xff at line 1 column 1 is not UTF-8;"),
        (b'{"a": 1,\n "b": "\xe9"}', "unreadable: byte 0xe9 at line 2 column 8 is not UTF-8;"),
    ],
)
def test_what_readers_differ_in_is_refused_with_its_place(tmp_path, content, line):
    (told,) = refused(tmp_path / "a.json", content)
    assert line in told
    assert told.startswith("a.json: ")


def test_everything_that_stands_twice_is_told_at_once_with_its_line(tmp_path):
    content = b'{"a": {"b": 1, "c": {}, "b": 2},\n "d": [{"e": 1, "e": 2}],\n "a": NaN}'
    assert refused(tmp_path / "a.json", content) == [
        "a.json: a.b: 'a.b': stands twice, at line 1 and at line 1 column 25; keep one",
        "a.json: d.0.e: 2: stands twice, at line 2 and at line 2 column 17; keep one",
        "a.json: a: nan: stands twice, at line 1 and at line 3 column 2; keep one",
        "a.json: a: 'NaN': is not JSON at line 3 column 7; write a finite number",
    ]


@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf"])
def test_comments_trailing_commas_and_a_byte_order_mark_pass(tmp_path, start):
    content = start + (
        b'{ // one\r\n  # two\n  "a": "// no # comment, ]",  /* three\n four */ "_": 1, "_": 2,\n'
        b'  "b": {"c": [1, 2 , ], "d": {}, "e": [[], {"f": 1,}],\n}, "g": "x,",\n}\n'
    )
    (tmp_path / "a.json").write_bytes(content)
    config, lines = read_json(str(tmp_path / "a.json"))
    assert config == {
        "a": "// no # comment, ]",
        "_": 2,
        "b": {"c": [1, 2], "d": {}, "e": [[], {"f": 1}]},
        "g": "x,",
    }
    assert lines == {"a": 3, "_": 4, "b": 5, "b.c": 5, "b.d": 5, "b.e": 5, "b.e.1.f": 5, "g": 6}


def test_a_missing_file_names_path_and_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        read_json("nowhere.json")
    assert caught.value.lines[0] == (f"nowhere.json: 'no such file': searched from {tmp_path}; give the path of a file")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(UserError) as caught:
        read_json(str(tmp_path))
    assert caught.value.lines[0].endswith("'no file': unreadable: a folder; give the path of a readable file")


def test_a_fault_tells_its_parts(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{\n"a": 1,\n\n"a": 2}')
    with pytest.raises(UserError) as caught:
        read_json(str(tmp_path / "a.json"))
    assert caught.value.lines[0].as_dict() == {
        "file": str(tmp_path / "a.json"),
        "line": 4,
        "key": "a",
        "value": 2,
        "reason": "stands twice, at line 2 and at line 4 column 1",
        "remedy": "keep one",
    }


def test_bytes_that_are_no_text_are_told_with_their_line(tmp_path):
    (tmp_path / "a.json").write_bytes(b'{\n "a": "\xff"}')
    with pytest.raises(UserError) as caught:
        read_json(str(tmp_path / "a.json"))
    (line,) = caught.value.lines
    assert (line.where.line, line.reason) == (2, "unreadable: byte 0xff at line 2 column 8 is not UTF-8")


def test_a_device_and_a_pipe_are_not_read(tmp_path):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (str(tmp_path / "pipe.json"), "/dev/zero"):
        with pytest.raises(UserError) as caught:
            read_json(path)
        assert caught.value.lines == (
            f"{path}: 'no file': unreadable: a device or a pipe; give the path of a readable file",
        )
