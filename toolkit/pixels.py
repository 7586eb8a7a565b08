"""How pixels become the numbers that a model takes."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Scale:
    """Images [B, C, H, W], uint8 0..255 or float 0..1, to float32 (pixel - mean) / std, on their own device.

    `mean` and `std` are those of each channel, [C], for pixels from 0 to 1.
    """

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        self.numbers = [list(mean), list(std)]
        self._constants: dict[torch.device, Tensor] = {}

    def __call__(self, images: Tensor) -> Tensor:
        if images.device not in self._constants:
            numbers = torch.tensor(self.numbers, device=images.device)
            self._constants[images.device] = numbers[:, None, :, None, None]  # [2, 1, C, 1, 1]
        mean, std = self._constants[images.device]
        unit = images.float() / 255 if images.dtype == torch.uint8 else images
        return (unit - mean) / std
