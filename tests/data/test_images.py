import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from toolkit.data import images as module
from toolkit.data.images import image_data
from toolkit.errors import UserError
from toolkit.models.vision import Processor

Given = Callable[..., Namespace]


@pytest.fixture(autouse=True)
def heard(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What was said to the user."""
    lines: list[str] = []
    monkeypatch.setattr(module, "say", lines.append)
    monkeypatch.setattr("toolkit.data.pictures.say", lines.append)
    return lines


def picture(mode: str, width: int, height: int, value: int = 7, kind: str = "PNG") -> bytes:
    stream = io.BytesIO()
    color = value if mode == "L" else (value, 20, 30, 255)[: len(mode)]
    Image.new(mode, (width, height), color).save(stream, kind)
    return stream.getvalue()


def parquet(folder: Path, images: list[bytes], column: str = "image") -> dict[str, str]:
    table = pa.table(
        {column: [{"bytes": data, "path": None} for data in images], "label": [i % 2 for i in range(len(images))]}
    )
    pq.write_table(table, folder / "rows.parquet")
    return {"train_file": str(folder / "rows.parquet"), "validation_file": str(folder / "rows.parquet")}


def ten(folder: Path, bad: dict[int, bytes | None], split: str = "train") -> str:
    """A csv of images 0.jpg to 9.jpg, all of one colour that is their number, five of each class."""
    for number in range(10):
        content = bad.get(number, picture("RGB", 6, 6, value=number, kind="BMP"))
        if content is not None:
            (folder / f"{split}-{number}.jpg").write_bytes(content)
    rows = "".join(f"{split}-{number}.jpg,{'cat' if number < 5 else 'dog'}\n" for number in range(10))
    (folder / f"{split}.csv").write_text(f"image,label\n{rows}")
    return str(folder / f"{split}.csv")


JPEG = picture("RGB", 64, 64, kind="JPEG")
BAD: dict[int, bytes | None] = {1: JPEG[: len(JPEG) // 2], 7: b"<html></html>"}


def test_the_embedded_fashion_mnist(arguments: Given) -> None:
    data = image_data(arguments(max_train_samples=500, max_eval_samples=50))
    assert (data.channels, data.image_size, data.num_labels) == (1, (28, 28), 10)
    assert (len(data.train), len(data.evaluation or ())) == (500, 50)
    (images,), targets = data.collate([data.train[i] for i in range(4)])
    assert (images.shape, images.dtype, targets.dtype) == ((4, 1, 28, 28), torch.uint8, torch.int64)
    assert int(images.max()) > 200
    assert data.label_names[:2] == ["T-shirt/top", "Trouser"]
    assert data.description.endswith("1 x 28 x 28 pixels")


@pytest.mark.parametrize(
    ("mode", "image_size", "shape", "pixel"),
    [
        ("L", None, (1, 6, 8), [7]),
        ("RGB", None, (3, 6, 8), [7, 20, 30]),
        ("RGBA", None, (3, 6, 8), [7, 20, 30]),
        ("RGB", 4, (3, 4, 4), [7, 20, 30]),
        ("L", 64, (1, 64, 64), [7]),
    ],
)
@pytest.mark.parametrize("column", ["image", "img"])
def test_channels_and_sizes(
    arguments: Given,
    tmp_path: Path,
    mode: str,
    image_size: int | None,
    shape: tuple[int, ...],
    pixel: list[int],
    column: str,
) -> None:
    typed = parquet(tmp_path, [picture(mode, width=8, height=6)] * 2, column)
    data = image_data(arguments(**typed, image_size=image_size))
    image, label = data.train[1]
    assert tuple(image.shape) == shape
    assert image[:, 1, 1].tolist() == pixel
    assert label == 1
    assert (data.channels, data.image_size) == (shape[0], shape[1:])


@pytest.mark.parametrize("split", ["train", "validation"])
def test_one_colour_image_after_many_grey_ones_makes_all_rgb(arguments: Given, tmp_path: Path, split: str) -> None:
    contents = {name: [picture("L", 4, 4)] * 300 for name in ("train", "validation")}
    contents[split][-1] = picture("RGB", 4, 4)
    files = {}
    for name, images in contents.items():
        (tmp_path / name).mkdir()
        files[f"{name}_file"] = parquet(tmp_path / name, images)["train_file"]
    data = image_data(arguments(**files))
    assert data.evaluation is not None
    assert data.channels == 3
    assert [part[0][0][:, 0, 0].tolist() for part in (data.train, data.evaluation)] == [[7, 7, 7]] * 2
    colours = [part[299][0][:, 0, 0].tolist() for part in (data.train, data.evaluation)]
    assert colours == ([[7, 20, 30], [7, 7, 7]] if split == "train" else [[7, 7, 7], [7, 20, 30]])


def test_images_of_several_sizes_need_an_image_size(arguments: Given, tmp_path: Path) -> None:
    typed = parquet(tmp_path, [picture("L", 4, 5), picture("L", 6, 7)])
    with pytest.raises(UserError, match="row 2: 7 x 6 pixels, where the first has 5 x 4; give --image_size"):
        image_data(arguments(**typed))
    assert image_data(arguments(**typed, image_size=8)).image_size == (8, 8)


def test_every_image_that_cannot_be_read_is_told_with_row_path_and_class(arguments: Given, tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        image_data(arguments(train_file=ten(tmp_path, BAD | {8: None}), validation_file=ten(tmp_path, {}, "test")))
    remedy = "repair the image, or remove the row, or --on_bad_sample skip"
    assert caught.value.lines == (
        f"--image_column_name: 'image': {tmp_path}/train.csv, line 3 ({tmp_path}/train-1.jpg, class cat): "
        f"not a readable image: {why(caught, 0)}; {remedy}",
        f"--image_column_name: 'image': {tmp_path}/train.csv, line 9 ({tmp_path}/train-7.jpg, class dog): "
        f"not a readable image: of no kind that is known here: it begins with b'<html></html'; {remedy}",
        f"--image_column_name: 'image': {tmp_path}/train.csv, line 10 ({tmp_path}/train-8.jpg, class dog): "
        f"not a readable image: no such file; {remedy}",
    )
    assert why(caught, 0).startswith("cannot be decoded: ")


def why(caught: pytest.ExceptionInfo[UserError], line: int) -> str:
    return caught.value.lines[line].split("not a readable image: ")[1].split(";")[0]


def test_of_many_bad_images_five_are_named(arguments: Given, tmp_path: Path) -> None:
    file = ten(tmp_path, dict.fromkeys(range(1, 8), b""))
    with pytest.raises(UserError) as caught:
        image_data(arguments(train_file=file, validation_file=file))
    assert len(caught.value.lines) == 6
    assert f"{file}: 7 of 10 images cannot be read, the first 5 are named; " in caught.value.lines[5]


def test_skipped_images_are_counted_and_named(arguments: Given, tmp_path: Path, heard: list[str]) -> None:
    files = {
        "train_file": ten(tmp_path, BAD),
        "validation_file": ten(tmp_path, {0: b"", 2: b"", 3: b"", 4: b""}, "test"),
    }
    data = image_data(arguments(**files, on_bad_sample="skip"))
    assert data.evaluation is not None
    assert (len(data.train), len(data.evaluation)) == (8, 6)
    used = [0, 2, 3, 4, 5, 6, 8, 9]
    assert [(int(image[0, 0, 0]), label) for image, label in (data.train[i] for i in range(8))] == [
        (number, int(number > 4)) for number in used
    ]
    assert data.description.startswith(
        f"{files['train_file']}, {files['validation_file']}: 8 training and 6 evaluation"
    )
    assert "2 of 10 images are left out, 8 used: " in heard[0]
    assert f"line 3 ({tmp_path}/train-1.jpg, class cat): cannot be decoded" in heard[0]
    assert f"line 9 ({tmp_path}/train-7.jpg, class dog): of no kind that is known here" in heard[0]
    assert "4 of 10 images are left out, 6 used: " in heard[1] and heard[1].endswith("; ... (4 in all)")


def test_a_class_of_which_no_image_is_left(arguments: Given, tmp_path: Path, heard: list[str]) -> None:
    cats = dict.fromkeys(range(5), b"")
    good, bad = ten(tmp_path, {}), ten(tmp_path, cats, "test")
    image_data(arguments(train_file=good, validation_file=bad, on_bad_sample="skip"))
    assert heard[-2] == f"{bad}: no image is left of cat: the evaluation tells nothing about it"
    with pytest.raises(UserError, match=f"--on_bad_sample: 'skip': {bad}: no image is left of cat; repair some of"):
        image_data(arguments(train_file=bad, validation_file=good, on_bad_sample="skip"))


@pytest.mark.parametrize("image_size", [None, 8])
def test_only_bad_images_are_refused(arguments: Given, tmp_path: Path, image_size: int | None) -> None:
    good, bad = ten(tmp_path, {}), ten(tmp_path, dict.fromkeys(range(10), b""), "test")
    for train, evaluation in ((bad, good), (good, bad)):
        given = arguments(train_file=train, validation_file=evaluation, on_bad_sample="skip", image_size=image_size)
        with pytest.raises(
            UserError, match="test.csv: (none of 10|10 of 10) images .*see that it is the images' column"
        ):
            image_data(given)


@pytest.fixture
def too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    """No image fits into memory."""
    monkeypatch.setattr(module, "IN_MEMORY", 0)


@pytest.mark.usefixtures("too_many")
def test_images_that_do_not_fit_are_decoded_when_asked_for(arguments: Given, tmp_path: Path, heard: list[str]) -> None:
    file = ten(tmp_path, {7: b""})
    data = image_data(arguments(train_file=file, validation_file=file))
    assert "10 images are too many to hold, each is decoded when it is asked for" in heard[0]
    assert data.train[3][0].unique().tolist() == [3, 20, 30]
    with pytest.raises(UserError, match=r"line 9 \(.*train-7.jpg, class dog\): not a readable image: an empty file; "):
        data.train[7]
    skipping = image_data(arguments(train_file=file, validation_file=file, on_bad_sample="skip"))
    assert len(skipping.train) == 9
    assert [int(skipping.train[row][0][0, 0, 0]) for row in (6, 7)] == [6, 8]
    assert skipping.train.pixels is None  # type: ignore[attr-defined]


@pytest.mark.usefixtures("too_many")
def test_a_colour_image_among_grey_ones_that_were_not_all_looked_at(
    arguments: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOKED_AT", 2)
    typed = parquet(tmp_path, [picture(mode, 4, 4) for mode in ("L", "L", "RGB", "L")])
    data = image_data(arguments(**typed))
    assert (data.channels, data.train[1][0].tolist()) == (1, [[[7] * 4] * 4])
    with pytest.raises(UserError, match="row 3: in colour, where all that were looked at are grey; .* skip"):
        data.train[2]
    assert image_data(arguments(**typed, on_bad_sample="skip")).channels == 3


def test_what_is_done_to_images_is_told_once(arguments: Given, tmp_path: Path, heard: list[str]) -> None:
    moving = io.BytesIO()
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    frames[0].save(moving, "GIF", save_all=True, append_images=frames[1:])
    clear = io.BytesIO()
    Image.new("RGBA", (4, 4), (0, 0, 0, 0)).save(clear, "PNG")
    typed = parquet(tmp_path, [moving.getvalue(), clear.getvalue(), picture("RGB", 4, 4), clear.getvalue()])
    data = image_data(arguments(train_file=typed["train_file"], validation_file=typed["train_file"]))
    assert [data.train[row][0][:, 0, 0].tolist() for row in range(3)] == [[255, 0, 0], [255, 255, 255], [7, 20, 30]]
    file = typed["train_file"]
    assert heard[:2] == [
        f"{file}: 2 of 4 images are transparent in places: they are laid on white",
        f"{file}: 1 of 4 images hold several frames or pages: the first is taken",
    ]


def test_a_model_says_channels_and_size(arguments: Given, tmp_path: Path, heard: list[str]) -> None:
    typed = parquet(tmp_path, [picture("L", 4, 5), picture("RGB", 6, 7)])
    for channels, pixels in ((3, [[7, 7, 7], [7, 20, 30]]), (1, [[7], [17]])):
        processor = Processor(channels, (2, 3), (0.5,) * channels, (0.5,) * channels)
        data = image_data(arguments(**typed), processor)
        assert (data.channels, data.image_size, data.tokenizer) == (channels, (2, 3), processor)
        assert [data.train[row][0].shape for row in (0, 1)] == [(channels, 2, 3)] * 2
        assert [data.train[row][0][:, 1, 1].tolist() for row in (0, 1)] == pixels
    assert heard[0].endswith("1 of 2 images are in colour: the model takes grey ones, and they are made grey")


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_of_numbers_are_images(arguments: Given, tmp_path: Path, kind: str) -> None:
    images = [[[row + across for across in range(4)] for row in range(3)] for _ in range(2)]
    table = pa.table({"image": images, "label": ["a", "b"]})
    file = tmp_path / f"rows.{kind}"
    if kind == "parquet":
        pq.write_table(table, file)
    else:
        file.write_text("".join(f'{{"image": {image}, "label": "{"ab"[n]}"}}\n' for n, image in enumerate(images)))
    data = image_data(arguments(train_file=str(file), validation_file=str(file)))
    assert data.train[1][0].tolist() == [images[1]]


def test_image_and_array_columns_of_datasets(arguments: Given, tmp_path: Path) -> None:
    import datasets

    pixels = np.arange(36, dtype=np.uint8).reshape(3, 4, 3)
    for feature, value in ((datasets.Image(), Image.fromarray(pixels)), (datasets.Array3D((3, 4, 3), "uint8"), pixels)):
        features = datasets.Features({"image": feature, "label": datasets.ClassLabel(names=["a", "b"])})
        rows = datasets.Dataset.from_dict({"image": [value] * 2, "label": [0, 1]}, features=features)
        rows.to_parquet(tmp_path / "rows.parquet")
        file = str(tmp_path / "rows.parquet")
        data = image_data(arguments(train_file=file, validation_file=file))
        assert data.train[1][0].permute(1, 2, 0).tolist() == pixels.tolist()
        assert data.label_names == ["a", "b"]


def test_a_folder_of_images_by_class(arguments: Given, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.png").write_bytes(picture("RGB", 4, 4, value=number))
    data = image_data(arguments(dataset_name=str(tmp_path)))
    assert data.label_names == ["cat", "dog"]
    assert [(int(image[0, 0, 0]), label) for image, label in (data.train[0], data.train[1])] == [(0, 0), (1, 1)]
