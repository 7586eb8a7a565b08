"""Images as uint8 [C, H, W]: decoded once into memory where they fit, else when they are asked for."""

import io
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from toolkit.data.readers import Table
from toolkit.data.sources import Data, load_labelled
from toolkit.errors import UserError, fault

IN_MEMORY = 2**30  # bytes of decoded images that are held
LOOKED_AT = 200  # images looked at to choose between grey and colour


class Images:
    """Rows (image uint8 [C, H, W], class id). All have `channels` (1 or 3) and `size`; others raise UserError."""

    def __init__(
        self,
        table: Table,
        column: str,
        labels: Sequence[int],
        channels: int,
        size: tuple[int, int],
        resize: bool,
        in_memory: int = IN_MEMORY,
        other_size: tuple[str, str] = ("the first has", "give --image_size"),  # rule and remedy of the error line
    ) -> None:
        self.table, self.column, self.labels = table, column, labels
        self.channels, self.size, self.resize, self.other_size = channels, size, resize, other_size
        self.decoded: Tensor | None = None
        if len(table) * channels * size[0] * size[1] <= in_memory:
            self.decoded = torch.empty((len(table), channels, *size), dtype=torch.uint8)
            for index in range(len(table)):
                self.decoded[index] = self._decode(index)

    def __len__(self) -> int:
        return len(self.table)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return (self._decode(index) if self.decoded is None else self.decoded[index]), int(self.labels[index])

    def _decode(self, index: int) -> Tensor:
        from PIL import Image

        image = open_image(self.table, self.column, index)
        height, width = self.size
        image = image.convert("L" if self.channels == 1 else "RGB")
        if self.resize and image.size != (width, height):
            image = image.resize((width, height), Image.Resampling.BILINEAR)
        if image.size != (width, height):
            reason = (
                f"{_named(self.table, self.column, index)}: {image.height} x {image.width} pixels, "
                f"where {self.other_size[0]} {height} x {width}"
            )
            raise UserError(fault("--image_column_name", self.column, reason, self.other_size[1]))
        pixels = np.array(image)  # [H, W] or [H, W, 3]
        return torch.from_numpy(pixels.reshape(height, width, self.channels)).permute(2, 0, 1).contiguous()


def open_image(table: Table, column: str, index: int) -> Any:
    """Row `index` as a loaded PIL image. A value is bytes, a file's path, or {bytes, path} as `datasets` has it."""
    from PIL import Image, ImageOps

    value, _ = _held(table, column, index)
    try:
        if isinstance(value, bytes):
            value = io.BytesIO(value)
        elif not isinstance(value, str) or not value:
            raise TypeError(f"neither an image nor the path of one, but {type(value).__name__}")
        image = Image.open(value)
        if image.mode.startswith(("I", "F")):
            raise TypeError(f"more than 8 bits a pixel (mode {image.mode})")
        image.load()
        return ImageOps.exif_transpose(image) if image.format == "JPEG" else image
    except (OSError, ValueError, TypeError, SyntaxError, Image.DecompressionBombError) as error:
        cause = " ".join(str(error).split())
        reason = f"{_named(table, column, index)}: not a readable image: {type(error).__name__}: {cause}"
        raise UserError(fault("--image_column_name", column, reason, "repair the image, or remove the row")) from error


def _held(table: Table, column: str, index: int) -> tuple[Any, str]:
    """An image's bytes, or the path of its file, or whatever else stands there; and the path if one is told."""
    held = table.columns[column][index]
    value = held.as_py() if hasattr(held, "as_py") else held
    path = ""
    if isinstance(value, dict):
        path = value.get("path") or ""
        value = value.get("bytes") or path
    if isinstance(value, str) and value:
        path = value = str(value if table.folder is None else table.folder / value)
    return value, path


def _named(table: Table, column: str, index: int) -> str:
    """A row in a message, with the image's file."""
    path = _held(table, column, index)[1]
    return f"{table.name}, {table.where([index])}" + (f" ({path})" if path else "")


def stack_images(rows: list[tuple[Tensor, int]]) -> tuple[tuple[Tensor, ...], Tensor]:
    """Rows of Images -> ((images uint8 [B, C, H, W],), labels int64 [B])."""
    return (torch.stack([image for image, _ in rows]),), torch.tensor([label for _, label in rows], dtype=torch.int64)


def image_data(arguments: Namespace) -> Data:
    """Training and evaluation images as the arguments name them; without any, the embedded small Fashion-MNIST.

    Columns not named are `image` or `img`, and `label` or `labels`. With `image_size` (pixels) all are resized to
    squares, without it they must have one size. Grey images stay one channel, all others become RGB. Raises UserError.
    """
    found = load_labelled(arguments, ("fashion_mnist_small", "test"), {"image": ("image", "img")})
    column = found.columns["image"]
    looked = [open_image(found.train, column, index) for index in range(min(LOOKED_AT, len(found.train)))]
    channels = 1 if all(image.mode in ("1", "L") for image in looked) else 3
    resize = arguments.image_size is not None
    size = (arguments.image_size, arguments.image_size) if resize else (looked[0].height, looked[0].width)
    train, evaluation = (
        Images(table, column, ids, channels, size, resize)
        for table, ids in ((found.train, found.ids), (found.evaluation, found.eval_ids))
    )
    description = found.describe(column) + f", {channels} x {size[0]} x {size[1]} pixels"
    return Data(
        train,
        evaluation,
        stack_images,
        found.label_names,
        description,
        channels=channels,
        image_size=size,
        preprocessing={
            "kind": "image",
            "image_column_name": column,
            "channels": channels,
            "image_size": list(size),
            "resize": resize,
        },
    )
