import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from toolkit.data.columns import choose_columns, class_ids
from toolkit.data.readers import Table
from toolkit.data.sources import load_labelled, load_tables
from toolkit.errors import UserError

Given = Callable[..., Namespace]
REVIEWS = ("movie_reviews", "validation")
TEXT = {"text": ("text", "sentence", "sentence1")}


def lines(error: pytest.ExceptionInfo[UserError]) -> list[str]:
    return list(error.value.lines)


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
        ([True, False], [True], None, ([1, 0], [1], ["False", "True"])),
        ([1, 0], [1], ["no", "yes"], ([1, 0], [1], ["no", "yes"])),
        (["yes", "no"], [1], ["no", "yes"], ([1, 0], [1], ["no", "yes"])),
        (["NA", "b"], ["b"], None, ([0, 1], [1], ["NA", "b"])),
    ],
)
def test_labels_become_class_ids(train: list[Any], evaluation: list[Any], names: Any, expected: Any) -> None:
    assert labels(train, evaluation, names) == expected


@pytest.mark.parametrize(
    ("train", "evaluation", "names", "told"),
    [
        (["1", "", "0"], ["1"], None, "train.csv, row 2: the label is missing"),
        ([1, None, 0, float("nan")], [1], None, "train.csv, rows 2, 4: the label is missing"),
        ([1, 0], [-1], ["no", "yes"], "eval.csv, row 1: the label is missing"),
        ([1, 2], [1], ["no", "yes"], "train.csv, row 2: 2 is not a class"),
        ([0.5, 1.0], [1], None, "train.csv, row 1: 0.5 is not a class"),
        ([[1], 1], [1], None, "train.csv, row 1: [1] is not a class"),
        ([1, 1], [1], None, "all rows of train.csv have the label '1'"),
        ([1, 0], [0, 2, 3], None, "eval.csv, rows 2, 3: labels that no training row has: 2, 3"),
    ],
)
def test_labels_that_are_none_are_refused(train: list[Any], evaluation: list[Any], names: Any, told: str) -> None:
    with pytest.raises(UserError) as caught:
        labels(train, evaluation, names)
    assert [told in line for line in lines(caught)] == [True]


def test_a_missing_label_is_told_with_the_line_of_its_file(arguments: Given, tmp_path: Path) -> None:
    rows = "".join(f"t{i},{'' if i in (1, 3) else i % 2}\n" for i in range(8))
    (tmp_path / "train.csv").write_text("text,label\n" + rows)
    (tmp_path / "eval.csv").write_text("text,label\na,1\n")
    given = arguments(train_file=str(tmp_path / "train.csv"), validation_file=str(tmp_path / "eval.csv"))
    with pytest.raises(UserError, match="train.csv, lines 3, 5: the label is missing; give each row a label"):
        load_labelled(given, REVIEWS, TEXT)


@pytest.mark.parametrize(
    ("columns", "given", "expected"),
    [
        (["text", "label", "x"], None, "text"),
        (["sentence", "label"], None, "sentence"),
        (["body", "text"], "body", "body"),
    ],
)
def test_columns_are_named_or_guessed(columns: list[str], given: str | None, expected: str) -> None:
    table = Table("train.csv", {name: ["a"] for name in columns})
    asked = {"--text_column_name": (given, ("text", "sentence"))}
    assert choose_columns(table, table, asked) == [expected]


@pytest.mark.parametrize(
    ("columns", "given", "told"),
    [
        (["body", "label"], None, "none of text, sentence is a column of train.csv, which has: body, label; name the"),
        (["text", "sentence"], None, "text and sentence are all columns of train.csv, which has: text, sentence"),
        (["body", "label"], "txt", "'txt': no such column in train.csv, which has: body, label; name one of these"),
        (["text\tlabel"], None, "which has: text\\tlabel (separated by tabs? then call it .tsv)"),
    ],
)
def test_a_column_that_is_not_there_is_told_with_those_that_are(
    columns: list[str], given: str | None, told: str
) -> None:
    table = Table("train.csv", {name: ["a"] for name in columns})
    with pytest.raises(UserError) as caught:
        choose_columns(table, table, {"--text_column_name": (given, ("text", "sentence"))})
    assert len(lines(caught)) == 1
    assert lines(caught)[0].startswith("--text_column_name: ")
    assert told in lines(caught)[0]


def test_each_missing_column_has_a_line() -> None:
    train, evaluation = Table("train.csv", {"text": ["a"]}), Table("eval.csv", {"body": ["a"]})
    asked = {"--text_column_name": (None, ("text",)), "--label_column_name": (None, ("label", "labels"))}
    with pytest.raises(UserError) as caught:
        choose_columns(train, evaluation, asked)
    assert [line.split(":")[0] for line in lines(caught)] == ["--text_column_name", "--label_column_name"]
    assert "no such column in eval.csv, which has: body" in lines(caught)[0]


def test_arguments_that_contradict_each_other(arguments: Given) -> None:
    with pytest.raises(UserError) as caught:
        load_tables(arguments(dataset_name="imdb", train_file="a.csv"), REVIEWS)
    assert "--dataset_name imdb names training data too" in lines(caught)[0]
    with pytest.raises(UserError) as caught:
        load_tables(arguments(validation_file="a.csv", dataset_config_name="plain"), REVIEWS)
    assert [line.split(":")[0] for line in lines(caught)] == ["--validation_file", "--dataset_config_name"]


def test_both_absent_files_are_told(arguments: Given) -> None:
    with pytest.raises(UserError) as caught:
        load_tables(arguments(train_file="no1.csv", validation_file="no2.csv"), REVIEWS)
    assert [line.split("'")[1] for line in lines(caught)] == ["no1.csv", "no2.csv"]


def test_without_a_validation_file_a_tenth_is_held_out(arguments: Given, tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(40)))
    train, evaluation, source = load_tables(arguments(train_file=str(file)), REVIEWS)
    assert (len(train), len(evaluation)) == (36, 4)
    assert sorted(train.values("text") + evaluation.values("text")) == sorted(f"t{i}" for i in range(40))
    assert "no --validation_file: 4 of its 40 rows, drawn by --seed 0, are held out" in source
    again = load_tables(arguments(train_file=str(file)), REVIEWS)[1]
    other = load_tables(arguments(train_file=str(file), seed=1), REVIEWS)[1]
    assert again.values("text") == evaluation.values("text") != other.values("text")


def test_the_embedded_samples(arguments: Given) -> None:
    found = load_labelled(arguments(max_train_samples=100, max_eval_samples=10), REVIEWS, TEXT)
    assert (len(found.train), len(found.evaluation), len(found.ids), len(found.eval_ids)) == (100, 10, 100, 10)
    assert found.label_names == ["negative", "positive"]
    assert found.train.values("label") == found.ids
    assert 30 < sum(found.ids) < 70
    other_seed = load_labelled(arguments(max_train_samples=100, seed=9), REVIEWS, TEXT)
    assert other_seed.train.values("text") == found.train.values("text")
    whole = load_labelled(arguments(), REVIEWS, TEXT)
    assert (len(whole.train), len(whole.evaluation)) == (9065, 1007)
    assert whole.describe("text") == (
        "embedded samples movie_reviews: 9,065 training and 1,007 evaluation rows, "
        "text -> label (2 classes: negative, positive)"
    )


@pytest.mark.parametrize("evaluation", ["validation", "dev", "test"])
@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_folder_in_the_form_of_a_hub_data_set(arguments: Given, tmp_path: Path, evaluation: str, kind: str) -> None:
    def content(texts: list[str]) -> str:
        rows = [{"text": text, "label": str(number % 2)} for number, text in enumerate(texts)]
        if kind == "csv":
            return "text,label\n" + "".join(f"{row['text']},{row['label']}\n" for row in rows)
        return "".join(json.dumps(row) + "\n" for row in rows)

    (tmp_path / f"train.{kind}").write_text(content(["NA", "007", "", "b"]))
    (tmp_path / f"{evaluation}.{kind}").write_text(content(["null", "c"]))
    train, held, source = load_tables(arguments(dataset_name=str(tmp_path)), REVIEWS)
    assert train.values("text") == ["NA", "007", "", "b"]
    assert held.values("text") == ["null", "c"]
    assert source.startswith(str(tmp_path))


def test_a_folder_with_configurations_and_class_names(arguments: Given, tmp_path: Path) -> None:
    import datasets

    features = datasets.Features({"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])})
    (tmp_path / "small").mkdir()
    for split in ("train", "validation"):
        rows = datasets.Dataset.from_dict({"text": ["a", "b", "c"], "label": [1, 0, 1]}, features=features)
        rows.to_parquet(tmp_path / "small" / f"{split}-00000-of-00001.parquet")
    readme = "---\nconfigs:\n- config_name: small\n  data_files:\n"
    readme += "".join(f"  - split: {split}\n    path: small/{split}-*\n" for split in ("train", "validation"))
    (tmp_path / "README.md").write_text(readme + "---\n")
    given = arguments(dataset_name=str(tmp_path), dataset_config_name="small")
    found = load_labelled(given, REVIEWS, TEXT)
    assert (found.ids, found.eval_ids, found.label_names) == ([1, 0, 1], [1, 0, 1], ["no", "yes"])
    with pytest.raises(UserError, match="--dataset_name: .* cannot be loaded: .*large"):
        load_tables(arguments(dataset_name=str(tmp_path), dataset_config_name="large"), REVIEWS)


def test_a_folder_without_an_evaluation_split(arguments: Given, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(20)))
    train, held, source = load_tables(arguments(dataset_name=str(tmp_path)), REVIEWS)
    assert (len(train), len(held)) == (18, 2)
    assert "it has no split for evaluation: 2 of its 20 rows" in source


def test_a_data_set_that_is_not_there(arguments: Given, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--dataset_name: '.*none': cannot be loaded"):
        load_tables(arguments(dataset_name=str(tmp_path / "none")), REVIEWS)


@pytest.mark.parametrize("text", ["text,label\na,\nb,1\n", "text,label\na\n", "text,label\na,x\n"])
def test_one_file_for_both_gives_its_line_once(arguments: Given, tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_labelled(arguments(train_file=str(path), validation_file=f"{tmp_path}/./a.csv"), REVIEWS, TEXT)
    same = {line.replace("/./", "/") for line in lines(caught)}
    assert len(lines(caught)) == len(same) == 1
