"""Training pictures, changed at random on the device: turned, cropped, shifted, mirrored, coloured.

What a picture becomes follows from (seed, epoch, sample) alone: every setup, rank, micro-batch and resumed run sees the
same. Kornia, a pure torch library, samples and colours whole batches; it is imported where it is used.
"""

from __future__ import annotations

import math
from argparse import Namespace
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from toolkit.augmentation import COLOUR, Augmentation, augmentation_of
from toolkit.data.batch import Batch
from toolkit.data.sources import Data
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.pixels import Scale

# Which of a sample's random numbers decides what: one that is not used takes none from the others.
DRAWS = (
    *("degrees", "translate_x", "translate_y", "scale", "ratio", "crop_x", "crop_y"),
    *("horizontal_flip", "vertical_flip", "brightness", "contrast", "saturation", "hue"),
)
_WAYS = ("horizontal", "vertical")
BLOCKS = math.ceil(len(DRAWS) / 4)  # Philox gives four numbers at once
_WORD = 0xFFFFFFFF


class Parameters(NamedTuple):
    """What is done to each of N pictures."""

    matrices: np.ndarray  # [N, 2, 3] float64: a place in the new picture -> its place in the old; both -1..1 a side
    factors: np.ndarray  # [N, 4] float64: of brightness, contrast and saturation; and the hue's shift, in turns


def parameters_of(setting: Augmentation, seed: int, epoch: int, ids: np.ndarray, size: tuple[int, int]) -> Parameters:
    """The parameters of samples `ids` (int64 [N]) in `epoch`, for pictures of `size` (height, width). Pure."""
    draw = dict(zip(DRAWS, uniform(seed, epoch, ids), strict=False))

    def between(name: str, low: float, high: float) -> np.ndarray:
        return low + (high - low) * draw[name]

    angle = np.deg2rad(between("degrees", -setting.degrees, setting.degrees))
    shift = [2 * between(f"translate_{axis}", -setting.translate, setting.translate) for axis in "xy"]
    mirror = [np.where(draw[f"{way}_flip"] < getattr(setting, f"{way}_flip"), -1.0, 1.0) for way in _WAYS]
    area, aspect = between("scale", *setting.scale), np.exp(between("ratio", *np.log(setting.ratio)))
    # A side that would be longer than the picture's is cut to it.
    sides = [np.minimum(np.sqrt(area * aspect), 1.0), np.minimum(np.sqrt(area / aspect), 1.0)]
    corner = [(1 - side) * between(f"crop_{axis}", -1, 1) for side, axis in zip(sides, "xy", strict=True)]

    # Turn, shift, mirror, crop: from the new picture back to the old in the opposite order. A turn is one of pixels,
    # so in units of half sides it has the picture's aspect in it.
    wide = size[1] / size[0]
    across, down = ([mirror[i] * sides[i], mirror[i] * corner[i] - shift[i]] for i in (0, 1))
    cos, sin = np.cos(angle), np.sin(angle)
    rows = [
        [cos * across[0], -sin / wide * down[0], cos * across[1] - sin / wide * down[1]],
        [sin * wide * across[0], cos * down[0], sin * wide * across[1] + cos * down[1]],
    ]
    strengths = (setting.brightness, setting.contrast, setting.saturation)
    factors = [
        between(name, max(0.0, 1 - strength), 1 + strength)
        for name, strength in zip(("brightness", "contrast", "saturation"), strengths, strict=True)
    ]
    factors.append(between("hue", -setting.hue, setting.hue))
    return Parameters(np.moveaxis(np.array(rows), 2, 0), np.stack(factors, axis=1))


def uniform(seed: int, epoch: int, ids: np.ndarray) -> np.ndarray:
    """[4 * BLOCKS, N] float64 in [0, 1): the random numbers of samples `ids` (int64 [N]) in `epoch`."""
    samples = np.tile(ids.astype(np.uint64), BLOCKS)
    blocks = np.repeat(np.arange(BLOCKS, dtype=np.uint64), len(ids))
    epochs = np.full_like(samples, epoch & _WORD)
    words = philox(np.stack([samples & _WORD, samples >> 32, epochs, blocks]), (seed & _WORD, seed >> 32 & _WORD))
    return words.reshape(4, BLOCKS, len(ids)).reshape(4 * BLOCKS, len(ids)) / 2.0**32


def philox(counters: np.ndarray, key: tuple[int, int]) -> np.ndarray:
    """Philox4x32-10 (Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011) of N counters at once.

    A generator of numpy's for each sample would cost more than a step of a small model.

    Args:
        counters: uint64 [4, N], each below 2**32.
        key: each below 2**32.

    Returns:
        uint64 [4, N], each below 2**32.
    """
    a, b, c, d = counters
    first, second = key
    for _ in range(10):
        x, y = a * np.uint64(0xD2511F53), c * np.uint64(0xCD9E8D57)
        a, b, c, d = (y >> 32) ^ b ^ np.uint64(first), y & _WORD, (x >> 32) ^ d ^ np.uint64(second), x & _WORD
        first, second = first + 0x9E3779B9 & _WORD, second + 0xBB67AE85 & _WORD
    return np.stack([a, b, c, d])


class Augment:
    """Changes the pictures of a batch and scales them as the model does, so that it takes them as they are: float32."""

    def __init__(self, setting: Augmentation, seed: int, scale: Scale, device: torch.device) -> None:
        self.setting, self.seed, self.scale, self.device = setting, seed, scale, device

    def __call__(self, batch: Batch, epoch: int) -> Batch:
        """The batch with its images, uint8 [B, C, H, W], changed and on the device."""
        assert isinstance(batch.inputs, tuple)
        images, *rest = batch.inputs
        return batch._replace(inputs=(self.scale(self.pictures(images, batch.ids, epoch)), *rest))

    def pictures(self, images: Tensor, ids: Tensor, epoch: int) -> Tensor:
        """uint8 [B, C, H, W] -> float32 from 0 to 1 on the device; `ids` int64 [B] are the samples'."""
        height, width = images.shape[-2:]
        drawn = parameters_of(self.setting, self.seed, epoch, ids.numpy(), (height, width))
        table = np.concatenate([drawn.matrices.reshape(-1, 6), drawn.factors], axis=1).astype(np.float32)
        numbers = torch.from_numpy(table).to(self.device, non_blocking=True)  # [B, 10]
        pictures = images.to(self.device, non_blocking=True).float() / 255
        return self._coloured(self._moved(pictures, numbers[:, :6, None, None]), *numbers[:, 6:].unbind(1))

    def _moved(self, pictures: Tensor, matrices: Tensor) -> Tensor:
        """One interpolation, bilinear; beyond its edges a picture goes on with their pixels. `matrices` [B, 6, 1, 1].

        Not by kornia's warp_affine: it makes the grid by way of the inverse and of products of batches.
        """
        from kornia.geometry.transform import remap

        height, width = pictures.shape[-2:]
        x = _centres(width, self.device)  # [W]
        y = _centres(height, self.device)[:, None]  # [H, 1]
        a, b, c, d, e, f = matrices.unbind(1)
        across, down = a * x + b * y + c, d * x + e * y + f  # [B, H, W]
        return remap(
            pictures, across, down, padding_mode="border", align_corners=False, normalized_coordinates=True
        )  # fmt: skip

    def _coloured(
        self, pictures: Tensor, brightness: Tensor, contrast: Tensor, saturation: Tensor, hue: Tensor
    ) -> Tensor:
        """In this order, by Pillow's formulas; each result is cut to 0..1."""
        from kornia import enhance

        setting, colour = self.setting, pictures.shape[1] == 3
        if setting.brightness:
            pictures = enhance.adjust_brightness_accumulative(pictures, brightness)
        if setting.contrast:
            # The mean in float64: in float32 its last bit would depend on how many pictures are in the batch.
            pictures = enhance.adjust_contrast_with_mean_subtraction(pictures.double(), contrast.double()).float()
        if setting.saturation and colour:
            pictures = enhance.adjust_saturation_with_gray_subtraction(pictures, saturation[:, None, None, None])
        if setting.hue and colour:
            pictures = enhance.adjust_hue(pictures, 2 * math.pi * hue)
        return pictures


def _centres(count: int, device: torch.device) -> Tensor:
    """Middles of so many pixels in a row that reaches from -1 to 1."""
    return (2 * torch.arange(count, device=device, dtype=torch.float32) + 1) / count - 1


def augment_of(arguments: Namespace, data: Data, seed: int, device: torch.device) -> Augment | None:
    """What the arguments ask for; None where they change no picture.

    Raises:
        UserError: the data are not known to be images.
    """
    setting = augmentation_of(arguments)
    if not setting.active:
        return None
    if data.mean is None or data.std is None:
        reason = "these rows are no images that toolkit.data.images has read: how the model scales them is not known"
        raise UserError(fault("--augment", arguments.augment, reason, "give mean and std to Data, or leave it out"))
    asked = [name for name in COLOUR if getattr(setting, name)]
    if asked and data.channels == 1:
        say(f"augmentation: the images are grey, which have no {' and no '.join(asked)} to change")
    return Augment(setting, seed, Scale(data.mean, data.std), device)
