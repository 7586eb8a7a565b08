"""Class folders of images and of texts: which files are rows, of which class and split; what is told and refused."""

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import toolkit
from toolkit.data.folders import class_folders, read_classes
from toolkit.data.images import image_data
from toolkit.data.sources import load_labelled
from toolkit.data.text import text_data
from toolkit.errors import UserError

Given = Callable[..., Namespace]
USUAL: dict[str, dict[str, tuple[str, ...]]] = {"image": {"image": ("image",)}, "text": {"text": ("text",)}}


def put(folder: Path, *names: str, content: bytes | str = "a b") -> Path:
    """Files, with pictures in those whose name says so: of one colour each, the number in their name."""
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.suffix.lower() in (".png", ".jpg") and content == "a b":
            Image.fromarray(np.full((4, 4), int(file.stem.strip("._")), dtype=np.uint8)).save(file)
        else:
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def images(folder: Path, given: Namespace) -> tuple[Any, list[tuple[int, int]], list[tuple[int, int]]]:
    """Data, and (colour, class id) of each training and evaluation row."""
    given.on_bad_sample = "error"
    data = image_data(given)
    assert data.evaluation is not None
    pairs = [
        [(int(rows[i][0][0, 0, 0]), rows[i][1]) for i in range(len(rows))] for rows in (data.train, data.evaluation)
    ]
    return data, *pairs


@pytest.mark.parametrize(
    ("train", "held"),
    [("train", "validation"), ("train", "val"), ("training", "dev"), ("Train", "TEST"), ("train", "eval")],
)
def test_images_in_class_folders(arguments: Given, tmp_path: Path, train: str, held: str) -> None:
    put(tmp_path, f"{train}/dog/7.png", f"{train}/cat/1.png", f"{train}/cat/deep/2.JPG", f"{held}/dog/8.png")
    data, rows, evaluated = images(tmp_path, arguments(dataset_name=str(tmp_path)))
    assert (data.label_names, rows, evaluated) == (["cat", "dog"], [(1, 0), (2, 0), (7, 1)], [(8, 1)])
    split = "test" if held.lower() in ("test", "eval") else "validation"
    assert data.description.startswith(f"{tmp_path} (train, {split}): 3 training and 1 evaluation rows, image -> label")
    assert data.preprocessing["image_column_name"] == "image"


def test_validation_goes_before_test_and_numbers_by_value(arguments: Given, tmp_path: Path) -> None:
    put(tmp_path, "train/10/1.png", "train/9/2.png", "test/9/3.png", "valid/10/4.png")
    data, rows, evaluated = images(tmp_path, arguments(dataset_name=str(tmp_path)))
    assert (data.label_names, rows, evaluated) == (["9", "10"], [(1, 1), (2, 0)], [(4, 1)])


def test_without_splits_a_tenth_is_held_out(arguments: Given, tmp_path: Path) -> None:
    put(tmp_path, *(f"cat/{i}.png" for i in range(12)), *(f"dog/{100 + i}.png" for i in range(8)))
    data, rows, evaluated = images(tmp_path, arguments(dataset_name=str(tmp_path)))
    assert (len(rows), len(evaluated)) == (18, 2)
    assert sorted(rows + evaluated) == [(i, 0) for i in range(12)] + [(100 + i, 1) for i in range(8)]
    assert "it has no split for evaluation: 2 of its 20 rows, drawn by --seed 0, are held out" in data.description


def test_what_is_left_out_is_told(arguments: Given, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Hidden files are none: the system's own."""
    put(tmp_path, "train/cat/1.png", "train/dog/2.png", "val/cat/3.png")
    put(
        tmp_path,
        "train/.DS_Store",
        "train/cat/.DS_Store",
        "train/cat/._1.png",
        "train/.cache/1.png",
        "val/cat/.x/9.png",
    )
    put(
        tmp_path,
        "train/Thumbs.db",
        "train/cat/notes.txt",
        "train/dog/x/a.heic",
        "train/dog/b",
        "labels.csv",
        "README.md",
        "extra/owl/1.png",
    )
    _, rows, evaluated = images(tmp_path, arguments(dataset_name=str(tmp_path)))
    assert (rows, evaluated) == ([(1, 0), (2, 1)], [(3, 0)])
    beside, told = [line for line in capfd.readouterr().err.splitlines() if "left out" in line]
    assert beside == f"oneloop: {tmp_path}: folders left out, beside its splits: 1 (extra)"
    start = f"oneloop: {tmp_path}/train: files left out, in no class folder or no image by their ending: 4 ("
    assert told == f"{start}Thumbs.db, cat/notes.txt, dog/b, ...)"


IMDB = ("train/pos/0_9.txt", "train/pos/1_8.txt", "train/neg/0_2.txt", "test/pos/0_10.txt", "test/neg/1_1.txt")


def test_imdbs_folders_of_texts(
    arguments: Given, tokenizer: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    put(
        tmp_path,
        *IMDB,
        "train/unsup/0_0.txt",
        "train/unsup/1_0.txt",
        "train/urls_pos.txt",
        "train/labeledBow.feat",
        "README",
    )
    put(tmp_path, "train/pos/1_8.txt", content="\ufeffNA\n\nb <br /> c\n")
    put(tmp_path, "test/neg/1_1.txt", content="")
    found = load_labelled(arguments(dataset_name=str(tmp_path)), ("", ""), USUAL["text"])
    assert found.train.values("text") == ["a b", "a b", "NA\n\nb <br /> c\n"]
    assert found.evaluation.values("text") == ["", "a b"]
    assert (found.ids, found.eval_ids, found.label_names) == ([0, 1, 1], [0, 1], ["neg", "pos"])
    told = capfd.readouterr().err
    assert f"oneloop: {tmp_path}/train/unsup: 2 texts without a label are left out\n" in told
    assert f"oneloop: {tmp_path}/train: files left out, in no class folder or no text by their ending: 2 (label" in told
    data = text_data(arguments(dataset_name=str(tmp_path)), tokenizer)
    assert (data.lengths, data.eval_lengths) == ([4, 4, 9], [2, 4])


def test_bad_bytes_are_named_by_file_and_line(arguments: Given, tmp_path: Path) -> None:
    put(tmp_path, *IMDB)
    put(tmp_path, *(f"train/pos/{i}.txt" for i in range(3, 6)), content="a\ngr\xfcn\n".encode("latin-1"))
    given = arguments(dataset_name=str(tmp_path))
    with pytest.raises(UserError) as caught:
        load_labelled(given, ("", ""), USUAL["text"])
    told = "line 2 is not UTF-8 (byte 0xfc); save the file as UTF-8, or give its --encoding"
    assert caught.value.lines == tuple(f"--dataset_name: '{tmp_path}/train/pos/{i}.txt': {told}" for i in range(3, 6))
    given.encoding = "latin-1"
    assert load_labelled(given, ("", ""), USUAL["text"]).train.values("text")[-1] == "a\ngr\xfcn\n"
    put(tmp_path, *(f"train/pos/{i}.txt" for i in range(3, 33)), content=b"\xff")
    given.encoding = None
    with pytest.raises(UserError) as caught:
        load_labelled(given, ("", ""), USUAL["text"])
    assert len(caught.value.lines) == 6
    assert caught.value.lines[-1] == f"--dataset_name: '{tmp_path}/train': 30 such files in all; see all of them"


@pytest.mark.parametrize("kind", ["image", "text"])
@pytest.mark.parametrize(
    ("files", "folders", "typed", "told"),
    [
        (["train/a/1", "train/b/2", "val/c/3", "val/b/4"], [], {}, "val, row 2: labels that no training row has: c; "),
        (["train/a/1", "val/a/4"], ["train/b", "train/c"], {}, "in b, c; put "),
        (["train/a/1", "val/a/4"], ["val/b"], {}, "in b; put "),
        (["train/01/1", "train/1/2"], [], {}, "'01' and '1' are one number in two spellings"),
        (["test/a/1"], [], {}, "has no split 'train'; it has: test"),
        (
            ["train/a/1", "val/a/2", "dev/a/3"],
            [],
            {},
            "dev and val are both its split validation; leave one of",
        ),
        (
            ["train/a/1"],
            [],
            {"dataset_config_name": "x"},
            "is a folder of classes, without configurations; leave",
        ),
    ],
)
def test_folders_that_do_not_go_together_are_refused(
    arguments: Given, tmp_path: Path, kind: str, files: list[str], folders: list[str], typed: dict[str, str], told: str
) -> None:
    put(tmp_path, *(f"{file}{'.png' if kind == 'image' else '.txt'}" for file in files))
    for folder in folders:
        (tmp_path / folder).mkdir()
    with pytest.raises(UserError) as caught:
        load_labelled(arguments(dataset_name=str(tmp_path), **typed), ("", ""), USUAL[kind])
    assert len(caught.value.lines) == 1 and told in caught.value.lines[0]


def test_the_other_kind_and_an_encoding_of_images_are_refused(arguments: Given, tmp_path: Path) -> None:
    put(tmp_path / "images", "train/a/1.png")
    put(tmp_path / "texts", "train/a/1.txt")
    for kind, folder in (("image", "texts"), ("text", "images")):
        with pytest.raises(UserError) as caught:
            class_folders(str(tmp_path / folder), kind)
        reason = (
            f"holds class folders of {folder}, and this script takes {kind}s; train on {folder} with the other script"
        )
        assert caught.value.lines == (f"--dataset_name: '{tmp_path / folder}': {reason}",)
    with pytest.raises(UserError, match="--encoding: 'latin-1': .*images is not read from text files; leave it out"):
        load_labelled(arguments(dataset_name=str(tmp_path / "images"), encoding="latin-1"), ("", ""), USUAL["image"])


@pytest.mark.parametrize(
    "files",
    [
        ["train.csv", "images/1.png"],  # rows that name images
        ["README.md", "data/train.parquet", "assets/1.png"],  # as the hub hands data sets out
        ["train/metadata.csv", "train/a/1.png"],
        ["metadata.jsonl", "train/a/1.png"],
        ["train/1.png", "test/2.png"],  # no classes
        ["all/train/a/1.png", "all/val/a/2.png"],  # one folder too high
        ["1.png"],
        [],
    ],
)
def test_folders_of_another_form_are_left_to_datasets(tmp_path: Path, files: list[str]) -> None:
    assert class_folders(str(put(tmp_path, *files)), "image") == {}
    assert class_folders("uoft-cs/cifar10", "image") == {}


def test_a_card_that_says_where_the_splits_are_goes_first(tmp_path: Path) -> None:
    put(tmp_path, "a/cat/1.png", "b/cat/2.png")
    assert list(class_folders(str(tmp_path), "image")) == ["train"]
    (tmp_path / "README.md").write_text("---\nconfigs:\n- config_name: default\n---\n")
    assert class_folders(str(tmp_path), "image") == {}


def test_linked_folders_are_followed(tmp_path: Path) -> None:
    put(tmp_path, "there/1.png", "data/dog/2.png")
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "there")
    table = read_classes(tmp_path / "data", "image")
    assert table.values("image") == [f"{tmp_path}/data/cat/1.png", f"{tmp_path}/data/dog/2.png"]
    (tmp_path / "there" / "round").symlink_to(tmp_path / "there")
    with pytest.raises(UserError) as caught:
        read_classes(tmp_path / "data", "image")
    told = f"folder: '{tmp_path}/data/cat/round': is {tmp_path}/there again; remove the link"
    assert caught.value.lines == (told,)


def test_a_folder_that_cannot_be_read_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "train/cat/1.png")

    def refused(self: Path) -> Any:
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(UserError) as caught:
        class_folders(str(tmp_path), "image")
    assert caught.value.lines == (f"folder: '{tmp_path}': cannot be read: Permission denied; see that it can be",)


def test_class_folders_stream(arguments: Given, tokenizer: Any, tmp_path: Path) -> None:
    """Held out are rows of every class, though they stand class by class."""
    for name, text in (("neg", "b"), ("pos", "a")):
        put(tmp_path, *(f"{name}/{i}.txt" for i in range(40)), content=text)
    setup = toolkit.Setup.build(
        strategy="single", launcher="python", use_cpu=True, train_batch_size=8, learning_rate=0.1, seed=1
    )
    typed: dict[str, Any] = {"streaming": True, "shuffle_buffer_size": 4, "max_eval_samples": 20, "typed": frozenset()}
    data = text_data(arguments(dataset_name=str(tmp_path), **typed), tokenizer, setup)
    assert (data.label_names, data.evaluation and len(data.evaluation)) == (["neg", "pos"], 20)
    rows = [data.train[position] for position in range(60)]
    held = [data.evaluation[row] for row in range(20)] if data.evaluation else []
    found = [(tokenizer.decode(row["input_ids"][1:-1]), int(row["label"])) for row in rows + held]
    assert sorted(found) == [("a", 1)] * 40 + [("b", 0)] * 40
    assert 4 < sum(label for _, label in found[:8]) + sum(label for _, label in found[60:]) < 24
    put(tmp_path, *(f"pos/{i}.txt" for i in range(40)), content=b"\xff")
    bad = text_data(arguments(dataset_name=str(tmp_path), **typed, encoding="latin-1"), tokenizer, setup)
    assert bad.label_names == ["neg", "pos"]
    with pytest.raises(UserError, match=r"--dataset_name: '.*/pos/\d+.txt': line 1 is not UTF-8 \(byte 0xff\)"):
        text_data(arguments(dataset_name=str(tmp_path), **typed), tokenizer, setup)
