"""Pixel values of images of every kind of file."""

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from toolkit.data.decode import Unreadable, read_picture

SIXTEEN = np.array([[0, 255, 257], [300, 32768, 65535]], dtype=np.uint16)
IN_EIGHT = [[0, 1, 1], [1, 128, 255]]  # / 257


def pixels(value: Any) -> list[Any]:
    return np.asarray(read_picture(value).image).tolist()


def saved(image: Any, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def png(width: int, depth: int, colour: int, rows: bytes, more: bytes = b"") -> bytes:
    """A PNG of one row, byte by byte: Pillow writes no 16-bit colour and no bare transparency."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    header = struct.pack(">IIBBBBB", width, 1, depth, colour, 0, 0, 0)
    transparency = chunk(b"tRNS", more) if more else b""
    body = chunk(b"IHDR", header) + transparency + chunk(b"IDAT", zlib.compress(b"\0" + rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


@pytest.mark.parametrize("kind", ["PNG", "TIFF", "PPM", "JPEG2000"])
def test_16_bits_are_scaled_and_not_clipped(kind: str) -> None:
    assert pixels(saved(Image.fromarray(SIXTEEN), kind)) == IN_EIGHT


def test_other_depths_of_grey() -> None:
    white_is_0 = saved(Image.fromarray(SIXTEEN), "TIFF", tiffinfo={262: 0})
    assert pixels(white_is_0) == [[255, 254, 254], [254, 127, 0]]
    twelve = bytearray(saved(Image.fromarray(np.zeros((1, 3), dtype=np.uint16)), "TIFF"))
    at = twelve.index(struct.pack("<HHI", 258, 3, 1)) + 8  # BitsPerSample
    twelve[at : at + 2] = struct.pack("<H", 12)
    twelve[-6:] = bytes.fromhex("fff800fff000")
    assert pixels(bytes(twelve)) == [[255, 128, 255]]
    assert pixels(png(4, 2, 0, bytes([0b00011011]))) == [[0, 85, 170, 255]]
    bits = Image.new("1", (2, 1))
    bits.putpixel((1, 0), 1)
    assert pixels(saved(bits, "PNG")) == [[0, 255]]
    assert pixels(saved(Image.fromarray(np.array([[0, 0.5, 1]], dtype=np.float32)), "TIFF")) == [[0, 128, 255]]


def test_16_bits_of_colour() -> None:
    rows = np.array([300, 65535, 32768, 255, 257, 0], dtype=">u2").tobytes()
    assert pixels(png(2, 16, 2, rows)) == [[[1, 255, 128], [0, 1, 0]]]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (saved(Image.merge("LA", [Image.new("L", (1, 1), 100), Image.new("L", (1, 1), 255)]), "PNG"), [[100]]),
        (saved(Image.merge("LA", [Image.new("L", (1, 1), 100), Image.new("L", (1, 1), 0)]), "PNG"), [[255]]),
        (saved(Image.new("RGBA", (1, 1), (10, 20, 30, 255)), "PNG"), [[[10, 20, 30]]]),
        (saved(Image.new("RGBA", (1, 1), (0, 0, 0, 0)), "PNG"), [[[255, 255, 255]]]),
        (saved(Image.new("RGBA", (1, 1), (0, 100, 200, 51)), "WEBP", lossless=True, exact=True), [[[204, 224, 244]]]),
        (png(2, 8, 0, bytes([7, 200]), more=struct.pack(">H", 7)), [[255, 200]]),
        (png(2, 8, 2, bytes([7, 8, 9, 1, 2, 3]), more=struct.pack(">HHH", 7, 8, 9)), [[[255, 255, 255], [1, 2, 3]]]),
        (png(2, 16, 0, struct.pack(">HH", 300, 65535), more=struct.pack(">H", 300)), [[255, 255]]),
    ],
)
def test_what_is_transparent_stands_on_white(value: bytes, expected: list[Any]) -> None:
    assert pixels(value) == expected
    assert read_picture(value).transparent is (expected not in ([[100]], [[[10, 20, 30]]]))


def test_palettes() -> None:
    image = Image.new("P", (2, 1))
    image.putpalette([10, 20, 30, 200, 100, 50])
    image.putpixel((1, 0), 1)
    for kind in ("PNG", "GIF", "TIFF"):
        assert pixels(saved(image, kind)) == [[[10, 20, 30], [200, 100, 50]]]
    assert pixels(saved(image, "PNG", transparency=bytes([255, 128]))) == [[[10, 20, 30], [227, 177, 152]]]
    assert pixels(saved(image, "GIF", transparency=1)) == [[[10, 20, 30], [255, 255, 255]]]


def test_other_colour_spaces() -> None:
    red = {"CMYK": (0, 255, 255, 0), "YCbCr": (76, 85, 255), "LAB": (136, 208, 195)}
    for mode, colour in red.items():
        [[found]] = pixels(saved(Image.new(mode, (1, 1), colour), "TIFF"))
        assert np.abs(np.array(found) - [255, 0, 0]).max() <= 12, mode
    # Pillow writes the inverted CMYK of Adobe.
    assert pixels(saved(Image.new("CMYK", (8, 8), red["CMYK"]), "JPEG", quality=100))[4][4] == [255, 0, 0]


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "TIFF", "JPEG", "MPO"])
@pytest.mark.parametrize(("orientation", "corner"), [(1, (0, 0)), (3, (15, 31)), (6, (0, 15)), (8, (31, 0))])
def test_images_stand_upright(kind: str, orientation: int, corner: tuple[int, int]) -> None:
    image = Image.new("RGB", (32, 16), "blue")
    image.paste("red", (0, 0, 8, 8))
    exif = Image.Exif()
    exif[274] = orientation
    found = np.asarray(read_picture(saved(image, kind, exif=exif, quality=95)).image)
    assert found.shape == ((16, 32, 3) if orientation < 5 else (32, 16, 3))
    assert found[corner][0] > 200 and found[corner][2] < 60


@pytest.mark.parametrize("kind", ["GIF", "TIFF", "WEBP", "PNG"])
def test_of_several_frames_or_pages_the_first_is_taken(kind: str) -> None:
    frames = [Image.new("RGB", (4, 4), colour) for colour in ("red", "blue")]
    value = saved(frames[0], kind, save_all=True, append_images=frames[1:], lossless=True)
    assert pixels(value)[1][1] == [255, 0, 0]
    assert read_picture(value).several
    assert not read_picture(saved(frames[0], kind)).several


def test_a_photo_with_its_preview_is_one_picture() -> None:
    photo = Image.new("RGB", (8, 8), "red")
    assert not read_picture(saved(photo, "MPO", save_all=True, append_images=[photo])).several


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([[0, 7], [200, 255]], [[0, 7], [200, 255]]),
        ([[[1], [2]]], [[1, 2]]),
        ([[[1, 2, 3], [4, 5, 6]]], [[[1, 2, 3], [4, 5, 6]]]),
        ([[[1, 2, 3, 4]], [[5, 6, 7, 8]], [[9, 10, 11, 12]]], [[[1, 5, 9], [2, 6, 10], [3, 7, 11], [4, 8, 12]]]),
        ([[0.0, 0.5, 1.0]], [[0, 128, 255]]),
        (np.array([[3]], dtype=np.int64), [[3]]),
    ],
)
def test_rows_of_numbers(rows: Any, expected: list[Any]) -> None:
    assert pixels(rows) == expected


PHOTO = saved(Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)), "JPEG")


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (PHOTO[: len(PHOTO) // 2], "cannot be decoded: image file is truncated"),
        (b"", "an empty file"),
        (b"<html><body>", "of no kind that is known here: it begins with b'<html><body>'"),
        (None, "nothing stands there, where an image, the path of one or its pixels are expected"),
        ("", "nothing stands there"),
        (7, "a value of type int stands there"),
        ("/nowhere/x.png", "no such file"),
        ("/", "a folder"),
        ([[0, 256]], "whole numbers from 0 to 256, where 0 to 255 is understood"),
        ([[0.0, 3.5]], "fractions from 0 to 3.5, where 0 to 1 is understood"),
        ([[0.0, float("nan")]], "fractions from nan to nan"),
        ([[1, 2], [3]], "a list whose rows are not of equal length"),
        ([1, 2, 3], "numbers of shape (3,), not [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels"),
        ([], "numbers of shape (0,)"),
        ([["a"]], "pixels of type <U1, not numbers"),
        (saved(Image.fromarray(np.array([[70000]], dtype=np.int32)), "TIFF"), "signed or 32-bit whole numbers"),
        (
            saved(Image.fromarray(np.array([[128]], dtype=np.float32)), "TIFF"),
            "fractions from 128 to 128",
        ),
    ],
)
def test_what_is_no_image_says_why(value: Any, told: str) -> None:
    with pytest.raises(Unreadable) as caught:
        read_picture(value)
    assert told in str(caught.value) and "\n" not in str(caught.value)
    assert not caught.value.of_disk


def test_a_failing_disk_is_told_from_a_bad_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(Image, "open", broken)
    with pytest.raises(Unreadable, match="cannot be read: Input/output error") as caught:
        read_picture(str(tmp_path / "a.png"))
    assert caught.value.of_disk
