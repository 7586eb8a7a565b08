import json
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pytest

from toolkit.data.columns import choose_columns
from toolkit.data.readers import Table
from toolkit.data.sources import load_labelled, load_tables
from toolkit.errors import UserError

Given = Callable[..., Namespace]
REVIEWS = ("movie_reviews", "validation")
TEXT = {"text": ("text", "sentence", "sentence1")}


def lines(error: pytest.ExceptionInfo[UserError]) -> list[str]:
    return list(error.value.lines)


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
        (["text;label"], None, "which has: text;label (separated by semicolons? save it with commas)"),
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
        load_tables(arguments(dataset_name="imdb", train_file="a.csv"), REVIEWS, "text")
    assert "--dataset_name imdb names training data too" in lines(caught)[0]
    with pytest.raises(UserError) as caught:
        load_tables(arguments(validation_file="a.csv", dataset_config_name="plain"), REVIEWS, "text")
    assert [line.split(":")[0] for line in lines(caught)] == ["--validation_file", "--dataset_config_name"]


def test_both_absent_files_are_told(arguments: Given) -> None:
    with pytest.raises(UserError) as caught:
        load_tables(arguments(train_file="no1.csv", validation_file="no2.csv"), REVIEWS, "text")
    assert [line.split("'")[1] for line in lines(caught)] == ["no1.csv", "no2.csv"]


def test_without_a_validation_file_a_tenth_is_held_out(arguments: Given, tmp_path: Path) -> None:
    file = tmp_path / "train.csv"
    file.write_text("text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(40)))
    train, evaluation, source = load_tables(arguments(train_file=str(file)), REVIEWS, "text")
    assert (len(train), len(evaluation)) == (36, 4)
    assert sorted(train.values("text") + evaluation.values("text")) == sorted(f"t{i}" for i in range(40))
    assert "no --validation_file: 4 of its 40 rows, drawn by --seed 0, are held out" in source
    again = load_tables(arguments(train_file=str(file)), REVIEWS, "text")[1]
    other = load_tables(arguments(train_file=str(file), seed=1), REVIEWS, "text")[1]
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
    train, held, source = load_tables(arguments(dataset_name=str(tmp_path)), REVIEWS, "text")
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
        load_tables(arguments(dataset_name=str(tmp_path), dataset_config_name="large"), REVIEWS, "text")


def test_a_folder_without_an_evaluation_split(arguments: Given, tmp_path: Path) -> None:
    (tmp_path / "train.csv").write_text("text,label\n" + "".join(f"t{i},{i % 2}\n" for i in range(20)))
    train, held, source = load_tables(arguments(dataset_name=str(tmp_path)), REVIEWS, "text")
    assert (len(train), len(held)) == (18, 2)
    assert "it has no split for evaluation: 2 of its 20 rows" in source


def test_rows_keep_their_numbers_where_only_some_are_taken(arguments: Given, tmp_path: Path) -> None:
    """In a file without lines too: what is at fault is found in the file."""
    rows = [{"text": str(number), "label": number % 2} for number in range(1, 41)]
    (tmp_path / "rows.json").write_text(json.dumps(rows))
    found = load_labelled(arguments(train_file=str(tmp_path / "rows.json"), max_train_samples=20), REVIEWS, TEXT)
    for table in (found.train, found.evaluation):
        assert [table.where([row]) for row in range(len(table))] == [f"row {text}" for text in table.values("text")]


def test_shards_may_order_their_columns_as_they_like(arguments: Given, tmp_path: Path) -> None:
    (tmp_path / "train-0.csv").write_text("text,label\na,0\n")
    (tmp_path / "train-1.csv").write_text("label,text\n1,b\n")
    (tmp_path / "test.csv").write_text("text,label\nc,1\n")
    given = arguments(dataset_name=str(tmp_path))
    train, _, _ = load_tables(given, REVIEWS, "text")
    assert (train.values("text"), train.values("label")) == (["a", "b"], ["0", "1"])
    (tmp_path / "train-1.csv").write_text("label,body\n1,b\n")
    with pytest.raises(UserError, match=r"its columns \(label, body\) are not those of .*train-0.csv \(text, label\)"):
        load_tables(given, REVIEWS, "text")


@pytest.mark.parametrize(
    ("name", "content", "encoding", "texts"),
    [
        ("rows.csv", "text,label\nMüde,0\nçay,1\n", "latin-1", ["Müde", "çay"]),
        ("rows.tsv", "text\tlabel\nMüde\t0\nçay\t1\n", "utf-16", ["Müde", "çay"]),
        ("rows.jsonl", '{"text": "Müde", "label": 0}\n{"text": "€", "label": 1}\n', "cp1252", ["Müde", "€"]),
        ("rows.json", '[{"text": "Müde", "label": 0}, {"text": "ж", "label": 1}]', "utf-16-le", ["Müde", "ж"]),
    ],
)
def test_an_encoding_is_that_of_every_text_file(
    arguments: Given, tmp_path: Path, name: str, content: str, encoding: str, texts: list[str]
) -> None:
    file = tmp_path / name
    file.write_bytes(content.encode(encoding))
    given = arguments(train_file=str(file), validation_file=str(file), encoding=encoding)
    for table in load_tables(given, REVIEWS, "text")[:2]:
        assert table.values("text") == texts
    given.encoding = None
    with pytest.raises(UserError, match=r"is not UTF-8 \(byte 0x..\); save the file as UTF-8, or give its --encodin"):
        load_tables(given, REVIEWS, "text")


def test_an_encoding_that_nothing_is_read_in_is_refused(arguments: Given, tmp_path: Path) -> None:
    import datasets

    for split in ("train", "test"):
        datasets.Dataset.from_dict({"text": ["a", "b"], "label": [0, 1]}).to_parquet(tmp_path / f"{split}.parquet")
    parquet = str(tmp_path / "train.parquet")
    for typed, source in (
        ({}, "the embedded sample"),
        ({"train_file": parquet, "validation_file": parquet}, f"{parquet}, {parquet}"),
        ({"dataset_name": str(tmp_path)}, str(tmp_path)),
    ):
        with pytest.raises(UserError) as caught:
            load_tables(arguments(encoding="latin-1", **typed), REVIEWS, "text")
        assert lines(caught) == [f"--encoding: 'latin-1': {source} is not read from text files; leave it out"]
    (tmp_path / "rows.csv").write_bytes(b"text,label\n\xe9,0\n")
    mixed = arguments(encoding="latin-1", train_file=parquet, validation_file=str(tmp_path / "rows.csv"))
    assert load_tables(mixed, REVIEWS, "text")[1].values("text") == ["é"]


@pytest.mark.parametrize("kind", [".txt", ""])
def test_a_text_file_and_a_folder_have_no_labels(arguments: Given, tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"train{kind}"
    if kind:
        path.write_text("a\n")
    else:
        path.mkdir()
    with pytest.raises(UserError) as caught:
        load_tables(arguments(train_file=str(path), validation_file=str(path)), REVIEWS, "text")
    told = {
        ".txt": "a text file has no labels; give a csv or tsv with a column of labels, or --dataset_name FOLDER with "
        "the texts in FOLDER/CLASS/",
        "": "is a folder; give it to --dataset_name",
    }
    assert lines(caught) == [f"--train_file: {str(path)!r}: {told[kind]}"]


def test_a_data_set_that_is_not_there(arguments: Given, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--dataset_name: '.*none': cannot be loaded"):
        load_tables(arguments(dataset_name=str(tmp_path / "none")), REVIEWS, "text")


@pytest.mark.parametrize("text", ["text,label\na,\nb,1\n", "text,label\na\n", "text,label\na,1\nb,01\n"])
def test_one_file_for_both_gives_its_line_once(arguments: Given, tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        load_labelled(arguments(train_file=str(path), validation_file=f"{tmp_path}/./a.csv"), REVIEWS, TEXT)
    same = {line.replace("/./", "/") for line in lines(caught)}
    assert len(lines(caught)) == len(same) == 1
