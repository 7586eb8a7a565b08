"""Data sets by name: what the hub is asked for; columns and splits that are known for data of their form."""

import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import PIL.Image
import pytest
from datasets import ClassLabel, Features, Image, Value

from toolkit.data.images import image_data
from toolkit.data.names import on_hub
from toolkit.data.sources import Data
from toolkit.data.text import text_data
from toolkit.errors import UserError

Given = Callable[..., Namespace]


def picture(value: int) -> dict[str, Any]:
    stream = io.BytesIO()
    PIL.Image.fromarray(np.full((4, 4, 3), value, dtype=np.uint8)).save(stream, "PNG")
    return {"bytes": stream.getvalue(), "path": None}


A, B, C, D = (picture(value) for value in range(4))
TEXT = Value("string")
# What the hub has under each name and configuration: columns, and the rows of each split.
FORMS: dict[tuple[str, str | None], tuple[dict[str, Any], dict[str, list[tuple[Any, ...]]]]] = {
    ("uoft-cs/cifar10", None): (
        {"img": Image(), "label": ClassLabel(names=["airplane", "automobile", "bird"])},
        {"train": [(A, 2), (B, 0), (C, 1)], "test": [(D, 1)]},
    ),
    ("uoft-cs/cifar100", None): (
        {
            "img": Image(),
            "fine_label": ClassLabel(names=["orchid", "ray", "shark"]),
            "coarse_label": ClassLabel(names=["fish", "flowers"]),
        },
        {"train": [(A, 2, 0), (B, 0, 1), (C, 1, 0)], "test": [(D, 1, 0)]},
    ),
    ("nyu-mll/glue", "sst2"): (
        {"sentence": TEXT, "label": ClassLabel(names=["negative", "positive"]), "idx": Value("int32")},
        {"train": [("a b", 1, 0), ("b", 0, 1), ("c", 0, 2)], "validation": [("d", 1, 0)], "test": [("a", -1, 0)]},
    ),
    ("nyu-mll/glue", "mrpc"): (
        {"sentence1": TEXT, "sentence2": TEXT, "label": ClassLabel(names=["not_equivalent", "equivalent"])},
        {
            "train": [("a b", "b", 1), ("b", "c", 0), ("c", "d", 0)],
            "validation": [("d", "a", 1)],
            "test": [("b", "", 0)],
        },
    ),
    ("stanfordnlp/imdb", None): (
        {"text": TEXT, "label": ClassLabel(names=["neg", "pos"])},
        {"train": [("a b", 1), ("b", 0), ("c", 0)], "test": [("d", 1)], "unsupervised": [("a", -1)]},
    ),
}
NAMES = {
    ("cifar10", None): ("uoft-cs/cifar10", None),
    ("CIFAR-10", None): ("uoft-cs/cifar10", None),
    ("uoft-cs/cifar10", None): ("uoft-cs/cifar10", None),
    ("cifar100", None): ("uoft-cs/cifar100", None),
    ("uoft-cs/cifar100", None): ("uoft-cs/cifar100", None),
    ("sst2", None): ("nyu-mll/glue", "sst2"),
    ("SST-2", "sst2"): ("nyu-mll/glue", "sst2"),
    ("glue", "sst2"): ("nyu-mll/glue", "sst2"),
    ("nyu-mll/glue", "sst2"): ("nyu-mll/glue", "sst2"),
    ("mrpc", None): ("nyu-mll/glue", "mrpc"),
    ("nyu-mll/glue", "mrpc"): ("nyu-mll/glue", "mrpc"),
    ("imdb", None): ("stanfordnlp/imdb", None),
    ("IMDb", None): ("stanfordnlp/imdb", None),
    ("stanfordnlp/imdb", None): ("stanfordnlp/imdb", None),
}


def splits_of(name: str, config: str | None) -> dict[str, datasets.Dataset]:
    features, splits = FORMS[name, config]
    return {
        split: datasets.Dataset.from_dict(
            dict(zip(features, map(list, zip(*rows, strict=True)), strict=True)), features=Features(features)
        )
        for split, rows in splits.items()
    }


def check(data: Data, name: str, config: str | None) -> None:
    """The rows, classes and evaluation split are those of the form."""
    features, splits = FORMS[name, config]
    evaluation = "validation" if "validation" in splits else "test"
    column = "fine_label" if "fine_label" in features else "label"
    where = list(features).index(column)
    assert data.label_names == features[column].names
    assert f"(train, {evaluation}): 3 training and 1 evaluation rows, " in data.description
    assert f" -> {column} (" in data.description
    if "img" not in features:  # with their special tokens
        assert data.lengths == ([6, 5, 5] if "sentence2" in features else [4, 3, 3])
    assert data.evaluation is not None
    for rows, held in ((splits["train"], data.train), (splits[evaluation], data.evaluation)):
        targets = data.collate([held[row] for row in range(len(held))])[1]
        assert targets.tolist() == [row[where] for row in rows]


def load(given: Namespace, tokenizer: Any, name: str) -> Data:
    if "cifar" in name:
        given.on_bad_sample = "error"
        return image_data(given)
    return text_data(given, tokenizer)


@pytest.mark.parametrize(("asked", "wanted"), NAMES.items(), ids=lambda names: f"{names[0]}-{names[1]}")
def test_the_hub_is_asked_for_its_own_names(
    arguments: Given,
    tokenizer: Any,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    asked: tuple[str, str | None],
    wanted: tuple[str, str | None],
) -> None:
    monkeypatch.chdir(tmp_path)
    calls: list[tuple[str, str, str | None]] = []

    def builder(name: str, config: str | None = None) -> Any:
        calls.append(("builder", name, config))
        return SimpleNamespace(name="parquet", config=SimpleNamespace(data_files=None), info=None)

    def loaded(name: str, config: str | None = None) -> Any:
        calls.append(("load", name, config))
        return datasets.DatasetDict(splits_of(name, config))

    monkeypatch.setattr(datasets, "load_dataset_builder", builder)
    monkeypatch.setattr(datasets, "load_dataset", loaded)
    given = arguments(dataset_name=asked[0], dataset_config_name=asked[1])
    data = load(given, tokenizer, wanted[0])
    assert calls == [("builder", *wanted), ("load", *wanted)]
    assert data.description.startswith(", ".join(filter(None, wanted)) + " (train, ")
    check(data, *wanted)


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form[1] or form[0].partition("/")[2])
def test_a_local_folder_of_the_form_needs_no_column_names(
    arguments: Given, tokenizer: Any, tmp_path: Path, form: tuple[str, str | None]
) -> None:
    """As the hub hands it out: Parquet files in a folder of the configuration, named by a README."""
    card = "---\nconfigs:\n- config_name: only\n  data_files:\n"
    for split, rows in splits_of(*form).items():
        (tmp_path / "only").mkdir(exist_ok=True)
        rows.to_parquet(tmp_path / "only" / f"{split}-00000-of-00001.parquet")
        card += f"  - split: {split}\n    path: only/{split}-*\n"
    (tmp_path / "README.md").write_text(card + "---\n")
    given = arguments(dataset_name=str(tmp_path), dataset_config_name="only")
    check(load(given, tokenizer, form[0]), *form)


def test_typed_columns_win(arguments: Given, tmp_path: Path) -> None:
    for split, rows in splits_of("uoft-cs/cifar100", None).items():
        rows.to_parquet(tmp_path / f"{split}.parquet")
    data = image_data(
        arguments(dataset_name=str(tmp_path), label_column_name="coarse_label", on_bad_sample="error", image_size=8)
    )
    assert data.label_names == ["fish", "flowers"]
    assert [data.train[row][1] for row in range(3)] == [0, 1, 0]


def test_a_folder_of_that_name_goes_first_and_is_told(
    arguments: Given,
    tokenizer: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for split, rows in splits_of("stanfordnlp/imdb", None).items():
        (tmp_path / "imdb").mkdir(exist_ok=True)
        rows.to_parquet(tmp_path / "imdb" / f"{split}.parquet")
    check(text_data(arguments(dataset_name="imdb"), tokenizer), "stanfordnlp/imdb", None)
    told = "oneloop: --dataset_name imdb: the folder of that name here, not stanfordnlp/imdb of the hub\n"
    assert capfd.readouterr().err.count(told) == 1


def test_another_configuration_than_the_names_own_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        on_hub("sst2", "mrpc")
    reason = "sst2 is the configuration sst2 of nyu-mll/glue; leave it out, or --dataset_name nyu-mll/glue"
    assert caught.value.lines == (f"--dataset_config_name: 'mrpc': {reason}",)
    assert on_hub("cifar10", "plain_text") == ("uoft-cs/cifar10", "plain_text")
    assert on_hub("SetFit/sst2", None) == ("SetFit/sst2", None)
