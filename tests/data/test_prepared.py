"""Arrays made once and mapped from the cache; what makes another entry; what a damaged or unwritable cache does."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from transformers import BertTokenizer

from toolkit.data import prepared as module
from toolkit.data.images import decode_all, image_data
from toolkit.data.prepared import cache_folder, fingerprint, of_contents, of_texts, of_tokenizer, prepared
from toolkit.data.text import text_data, tokenized

Arrays = dict[str, np.ndarray]


class Made:
    """Counts how often it makes its arrays."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Arrays:
        self.times += 1
        return {"ids": np.arange(6, dtype=np.int32).reshape(2, 3), "none": np.zeros((0, 2), dtype=np.int8)}


@pytest.fixture
def made() -> Made:
    return Made()


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONELOOP_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def entry(place: Path) -> Path:
    (folder,) = place.iterdir()
    return folder


def assert_right(arrays: Arrays) -> None:
    assert list(arrays) == ["ids", "none"]
    assert (arrays["ids"].dtype, arrays["ids"].tolist()) == (np.int32, [[0, 1, 2], [3, 4, 5]])
    assert (arrays["none"].dtype, arrays["none"].shape) == (np.int8, (0, 2))


def test_the_second_time_it_is_mapped_from_the_cache(
    place: Path, made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        arrays = prepared("texts", {"length": 3}, made)
        assert_right(arrays)
        assert isinstance(arrays["ids"], np.memmap) and not arrays["ids"].flags.writeable
    assert made.times == 1
    assert entry(place).name == f"texts-{fingerprint({'length': 3})}"
    assert sorted(path.name for path in entry(place).iterdir()) == ["about.json", "ids.npy", "none.npy"]
    assert capfd.readouterr().err == f"oneloop: texts: prepared before, in {entry(place)}\n"


def test_another_key_is_another_entry(place: Path, made: Made) -> None:
    for key in ({"length": 3}, {"length": 4}, {"length": 3, "more": None}):
        prepared("texts", key, made)
    assert made.times == 3
    assert len(list(place.iterdir())) == 3


def truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def flip(file: Path) -> None:
    held = bytearray(file.read_bytes())
    held[-1] ^= 1
    file.write_bytes(held)


@pytest.mark.parametrize(
    ("name", "damage", "told"),
    [
        ("ids.npy", truncate, "ids.npy is not what was written"),
        ("ids.npy", flip, "ids.npy is not what was written"),
        ("ids.npy", Path.unlink, "No such file or directory"),
        ("about.json", truncate, "Expecting"),
        ("about.json", Path.unlink, "No such file or directory"),
    ],
)
def test_a_damaged_entry_is_told_and_made_again(
    place: Path, made: Made, capfd: pytest.CaptureFixture[str], name: str, damage: Callable[[Path], None], told: str
) -> None:
    prepared("texts", {}, made)
    damage(entry(place) / name)
    assert_right(prepared("texts", {}, made))
    assert made.times == 2
    line = capfd.readouterr().err
    assert line.startswith(f"oneloop: {entry(place)} is damaged (") and told in line and line.count("\n") == 1
    assert_right(prepared("texts", {}, made))  # and the new one is whole
    assert made.times == 2


def test_a_cache_that_cannot_be_made_leaves_the_arrays_in_memory(
    place: Path, made: Made, capfd: pytest.CaptureFixture[str]
) -> None:
    place.write_text("a file stands there")
    assert_right(prepared("texts", {}, made))
    assert made.times == 1
    line = f"oneloop: each rank prepares texts for itself, since {place} cannot be written: File exists\n"
    assert capfd.readouterr().err == line


def test_a_full_disk_leaves_the_arrays_in_memory(
    place: Path, made: Made, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Any, *_: Any, **__: Any) -> None:
        file.write(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_right(prepared("texts", {}, made))
    assert made.times == 1
    assert list(place.iterdir()) == []
    assert capfd.readouterr().err.endswith("cannot be written: No space left on device\n")


def test_an_error_of_the_work_is_its_own(place: Path) -> None:
    def fails() -> Arrays:
        raise FileNotFoundError("words.txt")

    with pytest.raises(FileNotFoundError, match=r"words\.txt"):
        prepared("texts", {}, fails)
    assert list(place.iterdir()) == []


@pytest.mark.parametrize("damaged", [False, True])
def test_where_another_node_was_first_its_entry_stays_if_it_is_whole(
    place: Path, made: Made, monkeypatch: pytest.MonkeyPatch, damaged: bool
) -> None:
    def meanwhile() -> Arrays:
        prepared("texts", {}, Made())
        if damaged:
            flip(entry_of_texts() / "ids.npy")
        return made()

    def entry_of_texts() -> Path:
        return place / f"texts-{fingerprint({})}"

    assert_right(prepared("texts", {}, meanwhile))
    assert made.times == 1
    assert entry(place) == entry_of_texts()
    assert_right(prepared("texts", {}, made))
    assert made.times == 1


def test_long_work_is_told(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOLD_SECONDS", "LINE_SECONDS"):
        monkeypatch.setattr(module, name, 0.01)

    def slow() -> Arrays:
        for _ in module.shown(range(3), 3, "tokenized rows"):
            time.sleep(0.02)
        return {"ids": np.arange(3)}

    prepared("texts", {}, slow)
    lines = capfd.readouterr().err.splitlines()
    assert lines[1] == "oneloop: tokenized rows: 2 of 3"
    assert len(lines) == 4
    assert lines[3].startswith("oneloop: texts: prepared in 0.")
    assert lines[3].endswith(f" s, kept in {entry(cache_folder())}")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"ONELOOP_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"),
        ({"ONELOOP_CACHE": "", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/oneloop"),
        ({"ONELOOP_CACHE": "", "XDG_CACHE_HOME": "", "HOME": "/c"}, "/c/.cache/oneloop"),
    ],
)
def test_where_the_cache_lies(given: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)


def test_texts_differ_by_their_content_and_by_where_they_part() -> None:
    same = [["ab", "c"], ["a", "bc"], ["abc"], ["c", "ab"], ["ab", "c", ""], []]
    assert len({of_texts(texts) for texts in same}) == len(same)
    assert of_texts(["ab", "c"]) == of_texts(iter(["ab", "c"]))
    assert of_texts(["\ud800"]) != of_texts(["\ud801"])  # a lone surrogate, which JSON may hold


def test_contents_differ_by_their_bytes_or_by_their_file(tmp_path: Path) -> None:
    file = tmp_path / "a.png"
    file.write_bytes(b"1234")
    first = of_contents([str(file)])
    assert of_contents([str(file)]) == first
    os.utime(file, ns=(1, 1))
    touched = of_contents([str(file)])
    file.write_bytes(b"12345")
    assert len({first, touched, of_contents([str(file)]), of_contents([str(tmp_path / "b.png")])}) == 4
    assert len({of_contents([b"12", b"34"]), of_contents([b"123", b"4"]), of_contents([b"34", b"12"])}) == 3


def words(*more: str, **options: Any) -> BertTokenizer:
    vocab = "[PAD] [UNK] [CLS] [SEP] [MASK] a b".split() + list(more)
    return BertTokenizer(vocab={word: number for number, word in enumerate(vocab)}, **options)


def test_tokenizers_differ_by_words_limits_and_sides_and_not_by_their_last_call() -> None:
    first = of_tokenizer(words())
    others = [words("c"), words(model_max_length=8), words(truncation_side="left"), words(do_lower_case=False)]
    assert len({first, *map(of_tokenizer, others)}) == 5
    used = words()
    used(["a b"], truncation=True, max_length=3, padding=True)
    assert of_tokenizer(used) == first


def test_texts_are_tokenized_once_for_the_same_texts_tokenizer_and_length(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Callable[..., Any]
) -> None:
    calls: list[str] = []

    def counted(*given: Any) -> Arrays:
        calls.append(given[-1])
        return tokenized(*given)

    monkeypatch.setattr("toolkit.data.text.tokenized", counted)
    file = tmp_path / "a.csv"

    def data(text: str = "a b", length: int = 8, label: int = 1, *more: str) -> list[list[int]]:
        calls.clear()
        file.write_text(f"text,label\n{text},{label}\nb a,0\na,0\n")
        given = arguments(train_file=str(file), validation_file=str(file), max_length=length)
        found = text_data(given, words(*more))
        return [found.train[row]["input_ids"].tolist() for row in range(3)]

    first = data()
    assert calls == [str(file)]  # and not again for the evaluation, which reads the same file
    assert data() == first and calls == []
    assert data(label=2) == first and calls == []
    assert data("b") == [[2, 6, 3], *first[1:]] and len(calls) == 1
    assert data(length=3)[0] == [2, 5, 3] and len(calls) == 1
    assert data("a b", 8, 1, "c") == first and len(calls) == 1


def test_images_are_decoded_once_for_the_same_files_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Callable[..., Any]
) -> None:
    times = 0

    def counted(*given: Any) -> Arrays:
        nonlocal times
        times += 1
        return decode_all(*given)

    monkeypatch.setattr("toolkit.data.images.decode_all", counted)
    for number in range(4):
        Image.new("L", (6, 6), number).save(tmp_path / f"{number}.png")
    file = tmp_path / "a.csv"
    file.write_text("image,label\n" + "".join(f"{number}.png,{number % 2}\n" for number in range(4)))

    def corners(size: int | None = None) -> tuple[list[int], int]:
        nonlocal times
        times = 0
        given = arguments(train_file=str(file), validation_file=str(file), image_size=size, on_bad_sample="error")
        data = image_data(given)
        assert data.image_size == (size or 6,) * 2
        return [int(data.train[row][0][0, 0, 0]) for row in range(4)], times

    assert corners() == ([0, 1, 2, 3], 1)
    assert corners() == ([0, 1, 2, 3], 0)
    assert corners(3) == ([0, 1, 2, 3], 1)
    Image.new("L", (6, 6), 99).save(tmp_path / "2.png")
    assert corners() == ([0, 1, 99, 3], 1)
