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

from toolkit.data.images import Images, image_data
from toolkit.data.readers import Table
from toolkit.errors import UserError

Given = Callable[..., Namespace]


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


def test_one_colour_image_makes_all_rgb(arguments: Given, tmp_path: Path) -> None:
    data = image_data(arguments(**parquet(tmp_path, [picture("L", 4, 4), picture("RGB", 4, 4)])))
    assert data.train[0][0][:, 0, 0].tolist() == [7, 7, 7]


def test_images_of_several_sizes_need_an_image_size(arguments: Given, tmp_path: Path) -> None:
    typed = parquet(tmp_path, [picture("L", 4, 5), picture("L", 6, 7)])
    with pytest.raises(UserError, match="row 2: 7 x 6 pixels, where the first has 5 x 4; give --image_size"):
        image_data(arguments(**typed))
    assert image_data(arguments(**typed, image_size=8)).image_size == (8, 8)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (picture("RGB", 64, 64, kind="JPEG")[:300], "OSError"),
        (b"", "UnidentifiedImageError"),
        (b"<html></html>", "UnidentifiedImageError"),
    ],
)
def test_a_corrupt_image_is_told_with_its_file(arguments: Given, tmp_path: Path, content: bytes, told: str) -> None:
    (tmp_path / "good.png").write_bytes(picture("RGB", 64, 64))
    (tmp_path / "bad.jpg").write_bytes(content)
    (tmp_path / "rows.csv").write_text("image,label\ngood.png,0\nbad.jpg,1\n")
    file = str(tmp_path / "rows.csv")
    with pytest.raises(UserError) as caught:
        image_data(arguments(train_file=file, validation_file=file))
    line = caught.value.lines[0]
    assert f"rows.csv, line 3 ({tmp_path / 'bad.jpg'}): not a readable image: {told}" in line


def test_an_absent_image_and_16_bits(arguments: Given, tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("image,label\nnone.png,0\nnone.png,1\n")
    file = str(tmp_path / "rows.csv")
    with pytest.raises(UserError, match="none.png.*FileNotFoundError"):
        image_data(arguments(train_file=file, validation_file=file))
    Image.fromarray(np.full((4, 4), 300, dtype=np.uint16)).save(tmp_path / "none.png")
    with pytest.raises(UserError, match="more than 8 bits a pixel"):
        image_data(arguments(train_file=file, validation_file=file))


def test_images_that_do_not_fit_are_decoded_when_asked_for() -> None:
    table = Table("rows", {"image": [picture("L", 4, 4, value) for value in (1, 2)]})
    held = Images(table, "image", [0, 1], 1, (4, 4), resize=False)
    asked = Images(table, "image", [0, 1], 1, (4, 4), resize=False, in_memory=31)
    assert held.decoded is not None and asked.decoded is None
    assert torch.equal(held[1][0], asked[1][0])
    assert asked[1][0].unique().tolist() == [2]


def test_a_folder_of_images_by_class(arguments: Given, tmp_path: Path) -> None:
    for split in ("train", "test"):
        for number, name in enumerate(("cat", "dog")):
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "1.png").write_bytes(picture("RGB", 4, 4, value=number))
    data = image_data(arguments(dataset_name=str(tmp_path)))
    assert data.label_names == ["cat", "dog"]
    assert [(int(image[0, 0, 0]), label) for image, label in (data.train[0], data.train[1])] == [(0, 0), (1, 1)]
