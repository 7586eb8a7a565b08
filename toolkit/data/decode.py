"""One image, whatever its file holds, as a viewer shows it: upright, 8 bits, grey or RGB, opaque.

Pillow's own `convert` clips 16 bits at 255, and shows the colours that lie under transparent pixels.
"""

from __future__ import annotations

import io
from typing import Any, NamedTuple

import numpy as np

GREY = ("1", "L", "LA")  # modes of Pillow with 8 bits or less
NO_FILE = (FileNotFoundError, IsADirectoryError, NotADirectoryError)
HEAD = 12  # bytes of an unknown file that a message shows


class Unreadable(Exception):
    """Why there is no image to use; `of_disk` where the disk failed, and not the image."""

    def __init__(self, cause: str, of_disk: bool = False) -> None:
        super().__init__(cause)
        self.of_disk = of_disk


class Picture(NamedTuple):
    image: Any  # of Pillow, mode L or RGB
    transparent: bool  # some of it was, and stands on white now
    several: bool  # the first of an animation's frames, or of a file's pages


def read_picture(value: Any) -> Picture:
    """The image in `value`: bytes of a file, a file's path, or rows of numbers ([H, W], [H, W, C] or [C, H, W], C 1 or
    3; whole numbers 0 to 255, or fractions 0 to 1).

    Raises:
        Unreadable: there is none, or what its numbers mean cannot be told.
    """
    from PIL import Image, ImageOps

    try:
        if isinstance(value, list | np.ndarray):
            return Picture(_of_numbers(value), transparent=False, several=False)
        if not isinstance(value, bytes | str) or value == "":
            kind = "nothing" if value in (None, "") else f"a value of type {type(value).__name__}"
            raise Unreadable(f"{kind} stands there, where an image, the path of one or its pixels are expected")
        with Image.open(io.BytesIO(value) if isinstance(value, bytes) else value) as image:
            # An MPO's other pictures are previews and depth maps.
            several = image.format != "MPO" and getattr(image, "is_animated", False)
            image.load()
            ImageOps.exif_transpose(image, in_place=True)
            return Picture(*_as_seen(image), several)
    except (Unreadable, MemoryError):
        raise
    except Exception as error:  # Pillow's decoders raise whatever damaged bytes lead them to
        raise _cause(value, error) from error


def _cause(value: Any, error: Exception) -> Unreadable:
    from PIL import UnidentifiedImageError

    if isinstance(error, UnidentifiedImageError):
        with io.BytesIO(value) if isinstance(value, bytes) else open(value, "rb") as file:
            head = file.read(HEAD)
        return Unreadable(f"of no kind that is known here: it begins with {head!r}" if head else "an empty file")
    if isinstance(error, NO_FILE):
        return Unreadable("a folder" if isinstance(error, IsADirectoryError) else "no such file")
    if isinstance(error, OSError) and error.errno is not None:
        return Unreadable(f"cannot be read: {error.strerror}", of_disk=True)
    return Unreadable(f"cannot be decoded: {' '.join(str(error).split()) or type(error).__name__}")


def _as_seen(image: Any) -> tuple[Any, bool]:
    """A loaded image in mode L or RGB, and whether it was transparent anywhere."""
    from PIL import Image

    if image.mode.startswith(("I", "F")):
        return _eight_bits(image), "transparency" in image.info
    grey, transparent = image.mode in GREY, image.has_transparency_data
    if transparent:
        image = image.convert("RGBA")
        transparent = image.getchannel("A").getextrema()[0] < 255
        white = Image.new("RGBA", image.size, "white")
        white.alpha_composite(image)
        image = white
    return image.convert("L" if grey else "RGB"), transparent


def _eight_bits(image: Any) -> Any:
    """Grey of 16 bits or of fractions, in mode L."""
    from PIL import Image

    numbers = np.asarray(image)
    if image.mode == "F":
        return Image.fromarray(_bytes(numbers))
    if image.mode == "I" and image.format != "PPM":
        raise Unreadable("signed or 32-bit whole numbers, of which none is known to be white: save it in 8 or 16 bits")
    tags = getattr(image, "tag_v2", {})  # of a TIFF
    most = 2 ** tags.get(258, (16,))[0] - 1
    grey = np.rint(numbers * (255 / most)).astype(np.uint8)
    if "transparency" in image.info:  # of a PNG: the grey that stands for it
        grey[numbers == image.info["transparency"]] = 255
    return Image.fromarray(255 - grey if tags.get(262) == 0 else grey)  # there 0 is white


def _of_numbers(rows: Any) -> Any:
    from PIL import Image

    try:
        numbers = np.asarray(rows)
    except ValueError:
        raise Unreadable("a list whose rows are not of equal length") from None
    if numbers.ndim == 3 and numbers.shape[2] not in (1, 3):
        numbers = numbers.transpose(1, 2, 0)
    if numbers.ndim == 3 and numbers.shape[2] == 1:
        numbers = numbers[:, :, 0]
    if numbers.size == 0 or numbers.ndim not in (2, 3) or (numbers.ndim == 3 and numbers.shape[2] != 3):
        raise Unreadable(f"numbers of shape {np.shape(rows)}, not [H, W], [H, W, C] or [C, H, W] with 1 or 3 channels")
    return Image.fromarray(np.ascontiguousarray(_bytes(numbers)))


def _bytes(numbers: np.ndarray) -> np.ndarray:
    """Whole numbers 0 to 255 as they are, fractions 0 to 1 as 0 to 255."""
    fractions = numbers.dtype.kind == "f"
    if not fractions and numbers.dtype.kind not in "iu":
        raise Unreadable(f"pixels of type {numbers.dtype}, not numbers")
    most, low, high = 1 if fractions else 255, numbers.min(), numbers.max()
    if not (0 <= low and high <= most):  # also where there are NaNs
        kind = "fractions" if fractions else "whole numbers"
        raise Unreadable(f"{kind} from {low:g} to {high:g}, where 0 to {most} is understood")
    return np.rint(numbers * 255).astype(np.uint8) if fractions else numbers.astype(np.uint8)
