"""Labels as class ids: which values are one class, in which order, and what is no label."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.data.columns import class_ids
from toolkit.data.readers import Table, read_file
from toolkit.errors import UserError

NAN, INF = float("nan"), float("inf")


def labels(train: list[Any], evaluation: list[Any], names: list[str] | None = None) -> tuple[Any, ...]:
    classes = {"label": names} if names else {}
    return class_ids(
        Table("train.csv", {"label": train}, classes), Table("eval.csv", {"label": evaluation}, classes), "label"
    )


@pytest.mark.parametrize(
    ("train", "evaluation", "names", "expected"),
    [
        ([0, 1, 1], [1], None, ([0, 1, 1], [1], ["0", "1"])),
        ([1, 5, 10], [10], None, ([0, 1, 2], [2], ["1", "5", "10"])),
        (["1", "0"], ["1"], None, ([1, 0], [1], ["0", "1"])),
        (["pos", "neg"], ["neg"], None, ([1, 0], [0], ["neg", "pos"])),
        ([1.0, 0.0], [1], None, ([1, 0], [1], ["0", "1"])),
        ([-1, 1, 0], [-1], None, ([0, 2, 1], [0], ["-1", "0", "1"])),
        # Fractions are classes too, in the order of their values.
        ([10.5, 1.5, 2], [1.5], None, ([2, 0, 1], [0], ["1.5", "2", "10.5"])),
        (["10.5", "-0.5", "9"], ["-0.50"], None, ([2, 0, 1], [0], ["-0.5", "9", "10.5"])),
        # One number is one class in whichever file and type it stands.
        ([1, 2], ["1.0", "2"], None, ([0, 1], [0, 1], ["1", "2"])),
        (["1", "2.00", "2"], [2.0, "-0", 1][::2], None, ([0, 1, 1], [1, 0], ["1", "2"])),
        (["-0.0", "1"], [0], None, ([0, 1], [0], ["0", "1"])),
        (["01", "10", "2"], ["01"], None, ([0, 2, 1], [0], ["01", "2", "10"])),
        ([9007199254740993, 9007199254740992], [9007199254740992], None, ([1, 0], [0], None)),
        ([True, False], [True, "false"], None, ([1, 0], [1, 0], ["false", "true"])),
        (["NA", "b", "nan"], ["b"], None, ([0, 1, 2], [1], ["NA", "b", "nan"])),
        # Names that the data set gives: by number, by name, and by a number in a text file.
        ([1, 0], [1], ["no", "yes"], ([1, 0], [1], ["no", "yes"])),
        (["yes", "no"], [1], ["no", "yes"], ([1, 0], [1], ["no", "yes"])),
        (["1", "0", "yes"], [1.0], ["no", "yes"], ([1, 0, 1], [1], ["no", "yes"])),
        ([0, 2], ["1", "3"], ["1", "2", "3"], ([0, 2], [0, 2], ["1", "2", "3"])),
    ],
)
def test_labels_become_class_ids(train: list[Any], evaluation: list[Any], names: Any, expected: Any) -> None:
    ids, eval_ids, found = labels(train, evaluation, names)
    assert (ids, eval_ids) == expected[:2]
    assert expected[2] in (None, found)


def test_the_training_rows_name_the_classes_of_evaluation_rows_without_names() -> None:
    train = Table("train.parquet", {"label": [1, 0]}, {"label": ["no", "yes"]})
    assert class_ids(train, Table("eval.csv", {"label": ["1", "yes", "0"]}), "label")[1] == [1, 1, 0]
    other = Table("eval.parquet", {"label": [0, 1]}, {"label": ["yes", "no"]})
    assert class_ids(train, other, "label")[1] == [1, 0]


@pytest.mark.parametrize(
    ("train", "evaluation", "names", "told"),
    [
        (["1", "", "0"], ["1"], None, "train.csv, row 2: the label is missing"),
        ([1, None, 0, NAN], [1], None, "train.csv, rows 2, 4: the label is missing"),
        ([1.5, INF, 0, -INF], [1.5], None, "train.csv, rows 2, 4: the label is missing"),
        (["1", "nan", "0", "-Inf"], ["1"], None, "train.csv, rows 2, 4: the label is missing"),
        ([1, 0], [-1], ["no", "yes"], "eval.csv, row 1: the label is missing"),
        ([1, 2], [1], ["no", "yes"], "train.csv, row 2: 2 is not a class; the classes are no, yes"),
        (["no", "2"], ["perhaps"], ["no", "yes"], "train.csv, row 2: '2' is not a class; the classes are no, yes"),
        ([[1], 1], [1], None, "train.csv, row 1: [1] is not a class; labels are numbers or names"),
        ([1, 0], [0, 2, 3], None, "eval.csv, rows 2, 3: labels that no training row has: 2, 3"),
        (["a", "b"], ["c"], None, "eval.csv, row 1: labels that no training row has: c"),
        (["01", "1"], ["1"], None, "train.csv and eval.csv: '01' and '1' are one number in two spellings; spell it in"),
        (["01", "02"], [1], None, "train.csv and eval.csv: '01' and '1' are one number in two spellings"),
        ([1000, 2], ["1e3"], None, "'1000' and '1e3' are one number in two spellings"),
        ([i / 8 for i in range(101)], [0], None, "101 different numbers in the 101 rows of train.csv look like"),
        ([str(i / 7) for i in range(200)] * 9, [0], None, "200 different numbers in the 1,800 rows of train.csv look"),
    ],
)
def test_labels_that_are_none_are_refused(train: list[Any], evaluation: list[Any], names: Any, told: str) -> None:
    with pytest.raises(UserError) as caught:
        labels(train, evaluation, names)
    assert told in caught.value.lines[0]


@pytest.mark.parametrize("train", [[i / 8 for i in range(100)], [i / 8 for i in range(101)] * 10, list(range(500))])
def test_many_classes_are_no_measurements(train: list[Any]) -> None:
    assert labels(train, train)[2] == [f"{value:g}" for value in sorted(set(train))]


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr("toolkit.data.columns.say", lines.append)
    return lines


@pytest.mark.parametrize(
    ("train", "names", "expected"),
    [(["x", "x"], None, ([0, 0], [0], ["x"])), ([1, 1], ["w", "x"], ([1, 1], [1], ["w", "x"]))],
)
def test_one_class_is_told(heard: list[str], train: list[Any], names: Any, expected: Any) -> None:
    assert labels(train, train[:1], names) == expected
    assert heard == ["all rows of train.csv have the label 'x': a model of one class has nothing to learn"]


def test_labels_that_differ_in_case_are_told(heard: list[str]) -> None:
    assert labels(["Pos", "neg", "pos"], ["NEG", "pos"][1:])[2] == ["Pos", "neg", "pos"]
    assert labels(list("aAbBcCdD"), ["a"])[2] == list("ABCDabcd")
    told = "train.csv and eval.csv: labels that differ in case alone are classes of their own: "
    assert heard == [f"{told}'Pos' and 'pos'", f"{told}'A' and 'a', 'B' and 'b', 'C' and 'c', ..."]


@pytest.mark.parametrize(
    ("name", "rows", "written"),
    [
        ("a.csv", lambda value: f"text,label\na,{value}\nb,0\n", "1.0"),
        ("a.jsonl", lambda value: f'{{"label": {value}}}\n{{"label": 0}}\n', "1.0"),
        ("a.json", lambda value: f'[{{"label": {value}}}, {{"label": "0"}}]', "1"),
    ],
)
def test_every_file_spells_a_number_alike(tmp_path: Path, name: str, rows: Callable[[str], str], written: str) -> None:
    (tmp_path / name).write_text(rows(written))
    table = read_file(str(tmp_path / name), "--train_file")
    assert class_ids(table, Table("eval", {"label": [1]}), "label") == ([1, 0], [1], ["0", "1"])
