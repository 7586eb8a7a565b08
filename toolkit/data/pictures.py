"""A table's images, each made into one form: uint8 [C, H, W]."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.data.decode import Unreadable, read_picture
from toolkit.data.prepared import shown
from toolkit.data.readers import Table
from toolkit.errors import UserError, fault
from toolkit.launch import say

REMEDY = "repair the image, or remove the row"
NOTES = (  # what is done to an image beyond resizing, and told
    "are transparent in places: they are laid on white",
    "hold several frames or pages: the first is taken",
    "are in colour: the model takes grey ones, and they are made grey",
)


@dataclass(frozen=True)
class Form:
    """What every image is made into."""

    channels: int  # 1, grey, or 3, RGB
    size: tuple[int, int]  # height and width
    resize: bool  # to that size; one of another is refused otherwise
    to_grey: bool = False  # colour becomes grey where there is one channel; it is refused otherwise
    colour_remedy: str = "save it in grey, or give --on_bad_sample skip, which looks at all images first"
    size_rule: tuple[str, str] = ("the first has", "give --image_size")  # rule and remedy of the refusal


class Images:
    """Rows (image uint8 [C, H, W], class id). `pixels` uint8 [N, 1 or C, H, W] are the decoded images; without them
    each is decoded when it is asked for, and UserError names one that cannot be.
    """

    def __init__(
        self,
        table: Table,
        column: str,
        labels: Sequence[int],
        form: Form,
        pixels: np.ndarray | None = None,
        label_names: Sequence[str] = (),
    ) -> None:
        self.table, self.column, self.labels, self.form, self.pixels = table, column, labels, form, pixels
        self.label_names = label_names
        self.notes: dict[int, tuple[bool, ...]] = {}  # of rows decoded here: which of NOTES they have, if any

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        label = int(self.labels[index])
        if self.pixels is not None:
            pixels = self.pixels[index]
        else:
            try:
                pixels, notes = _decode(self.table, self.column, index, self.form)
            except Unreadable as error:
                of_class = self.label_names[label] if self.label_names else ""
                raise UserError(unreadable(self.table, self.column, index, str(error), REMEDY, of_class)) from error
            if any(notes):
                self.notes[index] = notes
        if len(pixels) < self.form.channels:
            pixels = np.repeat(pixels, self.form.channels, axis=0)
        return torch.from_numpy(np.array(pixels)), label


def stack_images(rows: list[tuple[Tensor, int]]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Rows of Images -> ((images uint8 [B, C, H, W],), labels int64 [B])."""
    return (torch.stack([image for image, _ in rows]),), torch.tensor([label for _, label in rows], dtype=torch.int64)


def decode_all(table: Table, column: str, form: Form, keep: bool) -> dict[str, np.ndarray]:
    """Every image of the table, once.

    Returns:
        `pixels`: uint8 [n, C, H, W] of the n that can be read, in their order, C = 1 where all are grey (n = 0 unless
        `keep`); `channels`: int64 [], that C; `bad`: int64 rows that cannot be read; `why`: str, of each;
        `notes`: int64, how many images have each of NOTES; `counts`: int64 [3, 256], how often each channel of those
        that can be read has each value, where a grey image counts in all three.

    Raises:
        UserError: an image of another size, one in colour where the form refuses that, a disk that fails.
    """
    images: list[Any] = []
    bad: dict[int, str] = {}
    noted, channels = np.zeros(len(NOTES), dtype=np.int64), 1
    counts = np.zeros((3, 256), dtype=np.int64)
    for row in shown(range(len(table)), len(table), f"{table.name}: images decoded"):
        try:
            pixels, notes = _decode(table, column, row, form)
        except Unreadable as error:
            if error.of_disk:  # another try, or another rank, might read it: no reason to leave it out
                line = unreadable(table, column, row, str(error), "see that the disk can be read")
                raise UserError(line) from error
            bad[row] = str(error)
            continue
        noted += notes
        counts += [np.bincount(each.reshape(-1), minlength=256) for each in pixels]
        channels = max(channels, len(pixels))
        if keep:
            images.append(pixels)
    whole = np.empty((len(images), channels, *form.size), dtype=np.uint8)
    for number in range(len(images)):
        whole[number], images[number] = images[number], None  # not all of them twice in memory
    return {
        "pixels": whole,
        "channels": np.array(channels),
        "bad": np.array(list(bad), dtype=np.int64),
        "why": np.array(list(bad.values()), dtype=np.str_),
        "notes": noted,
        "counts": counts,
    }


def moments(counts: np.ndarray) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of each channel, for pixels from 0 to 1, from how often each value is there.

    Args:
        counts: int64 [C, 256]; sums of whole numbers, so that every machine gets the same.
    """
    values, held = np.arange(256), counts.sum(1)
    mean = counts @ values / held
    deviation = np.sqrt((counts * (values - mean[:, None]) ** 2).sum(1) / held)
    if (flat := deviation == 0).any():
        say("normalization: the images have one value in a channel, whose deviation is taken for 1")
    return tuple((mean / 255).tolist()), tuple(np.where(flat, 1.0, deviation / 255).tolist())


def tell(counts: np.ndarray, name: str, total: int) -> None:
    """Say how many of `total` images have each of NOTES: `counts` [3]."""
    for count, text in zip(counts.tolist(), NOTES, strict=True):
        if count:
            say(f"{name}: {count:,} of {total:,} images {text}")


def value_at(table: Table, column: str, row: int) -> tuple[Any, str]:
    """An image's bytes, or the path of its file, or whatever else stands there; and the path if one is told."""
    value = table.columns[column][row]
    value = value.as_py() if hasattr(value, "as_py") else value
    path = ""
    if isinstance(value, dict):  # as `datasets` has it
        path = value.get("path") or ""
        value = path if value.get("bytes") is None else value["bytes"]
    if isinstance(value, str) and value:
        path = value = str(value if table.folder is None else table.folder / value)
    return value, path


def named(table: Table, column: str, row: int, of_class: str = "") -> str:
    """A row in a message, with the image's file and class."""
    more = ", ".join(filter(None, (value_at(table, column, row)[1], of_class and f"class {of_class}")))
    return f"{table.name}, {table.where([row])}" + (f" ({more})" if more else "")


def unreadable(table: Table, column: str, row: int, cause: str, remedy: str, of_class: str = "") -> str:
    """The error line for an image that cannot be read."""
    reason = f"{named(table, column, row, of_class)}: not a readable image: {cause}"
    return fault("--image_column_name", column, reason, remedy)


def _decode(table: Table, column: str, row: int, form: Form) -> tuple[np.ndarray, tuple[bool, ...]]:
    """uint8 [C, H, W], C the form's channels, or 1 where the image is grey; which of NOTES it has.

    Raises Unreadable and UserError.
    """
    from PIL import Image

    picture = read_picture(value_at(table, column, row)[0])
    image, (height, width) = picture.image, form.size
    if image.size != (width, height) and not form.resize:
        rule, remedy = form.size_rule
        reason = f"{image.height} x {image.width} pixels, where {rule} {height} x {width}"
        raise UserError(fault("--image_column_name", column, f"{named(table, column, row)}: {reason}", remedy))
    colour = form.channels == 1 and image.mode == "RGB"
    if colour and not form.to_grey:
        reason = "in colour, where all that were looked at are grey"
        where = named(table, column, row)
        raise UserError(fault("--image_column_name", column, f"{where}: {reason}", form.colour_remedy))
    image = image.convert("L") if colour else image
    if image.size != (width, height):
        image = image.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(image)
    pixels = pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)
    return pixels, (picture.transparent, picture.several, colour)
