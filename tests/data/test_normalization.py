"""Images are normalised by the mean and deviation of the training set, counted when they are decoded."""

from __future__ import annotations

import io
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from toolkit.data import images as module
from toolkit.data.images import image_data
from toolkit.data.pictures import moments
from toolkit.models.vision import Processor

Given = Callable[..., Namespace]


def files(folder: Path, images: list[np.ndarray]) -> dict[str, str]:
    rows = []
    for pixels in images:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, "PNG")
        rows.append({"bytes": stream.getvalue(), "path": None})
    pq.write_table(pa.table({"image": rows, "label": [n % 2 for n in range(len(rows))]}), folder / "train.parquet")
    pq.write_table(pa.table({"image": rows[:2], "label": [0, 1]}), folder / "test.parquet")
    return {"train_file": str(folder / "train.parquet"), "validation_file": str(folder / "test.parquet")}


def colour(count: int) -> list[np.ndarray]:
    random = np.random.default_rng(2)
    return list((random.random((count, 5, 4, 3)) * (60, 150, 255)).astype(np.uint8))


def near(values: Any) -> Any:
    return pytest.approx(values, rel=1e-12)


def test_fashion_mnist_has_the_moments_of_its_pixels(arguments: Given) -> None:
    data = image_data(arguments())
    pixels = data.train.pixels / 255  # type: ignore[attr-defined]
    assert data.mean == near([pixels.mean()])
    assert data.std == near([pixels.std()])
    # The whole Fashion-MNIST, as it is commonly given: 0.2860 and 0.3530.
    assert (data.mean[0], data.std[0]) == pytest.approx((0.286, 0.353), abs=5e-3)


def test_each_channel_has_its_own_and_the_cache_gives_them_again(arguments: Given, tmp_path: Path) -> None:
    given = files(tmp_path, colour(9))
    pixels = np.stack(colour(9)) / 255
    for _ in range(2):
        data = image_data(arguments(**given))
        assert data.mean == near(pixels.mean((0, 1, 2)).tolist())
        assert data.std == near(pixels.std((0, 1, 2)).tolist())


def test_grey_images_among_coloured_ones_count_in_every_channel(arguments: Given, tmp_path: Path) -> None:
    images = [*colour(3), np.full((5, 4), 200, dtype=np.uint8)]
    data = image_data(arguments(**files(tmp_path, images)))
    pixels = np.stack([*images[:3], np.full((5, 4, 3), 200)]) / 255
    assert data.mean == near(pixels.mean((0, 1, 2)).tolist())


def test_a_half_where_asked_and_a_models_own_where_it_has_one(arguments: Given, tmp_path: Path) -> None:
    given = files(tmp_path, colour(4))
    data = image_data(arguments(**given, normalization="half"))
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)
    processor = Processor(3, (8, 8), (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    data = image_data(arguments(**given), processor)
    assert (data.mean, data.std) == (processor.mean, processor.std)


def test_too_many_images_are_known_by_some_of_them(
    arguments: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "IN_MEMORY", 0)
    monkeypatch.setattr(module, "LOOKED_AT", 3)
    data = image_data(arguments(**files(tmp_path, colour(9))))
    pixels = np.stack(colour(9))[[0, 4, 8]] / 255
    assert data.mean == near(pixels.mean((0, 1, 2)).tolist())
    assert "normalization: by 3 of the 9 images, evenly spread" in capfd.readouterr().err


def test_images_of_one_value_do_not_divide_by_zero(capfd: pytest.CaptureFixture[str]) -> None:
    counts = np.zeros((1, 256), dtype=np.int64)
    counts[0, 51] = 12
    assert moments(counts) == ((0.2,), (1.0,))
    assert "one value in a channel, whose deviation is taken for 1" in capfd.readouterr().err
