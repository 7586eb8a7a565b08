"""The article's image classifier: two convolutions, two poolings, 512 units."""

import math
from collections import OrderedDict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from toolkit.errors import UserError, fault
from toolkit.pixels import Scale

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU}
POOLINGS: dict[str, type[nn.Module]] = {"max": nn.MaxPool2d, "avg": nn.AvgPool2d}
NORMS = ("none", "group", "batch")


class Stem(nn.Sequential):
    """Takes the images as they come, uint8 0..255 (scaled here, on the device) or float (left as it is)."""

    def __init__(self, layers: "OrderedDict[str, nn.Module]", scale: Scale) -> None:
        super().__init__(layers)
        self.scale = scale

    def forward(self, images: Tensor) -> Tensor:
        scaled = self.scale(images) if images.dtype == torch.uint8 else images
        return super().forward(scaled.to(next(self.parameters()).dtype))  # 16-bit weights take no fp32 images


class CNN(nn.Module):
    """conv 3x3 -> 32, pool, conv 3x3 -> 64, pool, linear -> 512, linear -> num_labels; an activation after each but
    the last.

    `width` is a factor on 32, 64 and 512. `depthwise` makes the second convolution one of each channel, then 1x1 over
    the channels (MobileNet, arXiv 1704.04861, whose first one is whole too). `dropout` acts before the last layer.
    `norm` stands behind each convolution: "batch" couples the samples of a micro-batch, so results depend on its size;
    "group" (up to 8 groups) does not. The convolutions keep the size and each pooling halves it, so `image_size` (one
    side, or height and width, in pixels) is at least 4; the linear layer is sized for it. `mean` and `std`, of each
    channel of pixels from 0 to 1, are those of the training images; a half where left out.
    """

    def __init__(
        self,
        in_channels: int,
        image_size: int | Sequence[int],
        num_labels: int,
        *,
        norm: str = "none",
        activation: str = "relu",
        pooling: str = "max",
        width: float = 1.0,
        dropout: float = 0.0,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        depthwise: bool = False,
    ) -> None:
        super().__init__()
        height, across = (image_size, image_size) if isinstance(image_size, int) else image_size
        mean, std = ([0.5] * in_channels if each is None else list(each) for each in (mean, std))
        # JSON-able: with it a checkpoint builds the model again, by CNN(**arguments).
        self.arguments = {
            "in_channels": in_channels,
            "image_size": [height, across],
            "num_labels": num_labels,
            "norm": norm,
            "activation": activation,
            "pooling": pooling,
            "width": width,
            "dropout": dropout,
            "mean": mean,
            "std": std,
            "depthwise": depthwise,
        }
        faults = [
            fault(name, value, f"must be one of {', '.join(known)}", "choose one of them")
            for name, value, known in (
                ("--norm", norm, NORMS),
                ("--activation", activation, ACTIVATIONS),
                ("--pooling", pooling, POOLINGS),
            )
            if value not in known
        ]
        if min(height, across) < 4:
            reason = f"images of {height} x {across} vanish in two poolings"
            faults.append(fault("--image_size", image_size, reason, "use 4 or more"))
        if not width > 0:
            faults.append(fault("--width", width, "must be above 0", "1 is the article's size"))
        if faults:
            raise UserError(*faults)
        first, second, hidden = (max(1, round(base * width)) for base in (32, 64, 512))
        act, pool = ACTIVATIONS[activation], POOLINGS[pooling]

        def block(channels_in: int, channels_out: int, separable: bool) -> "OrderedDict[str, nn.Module]":
            # BatchNorm takes away each channel's mean: a bias before it would have a gradient of exactly zero, and Adam
            # turns the rounding noise of such a gradient into steps that differ from setup to setup.
            bias = norm != "batch"
            if separable:
                each = nn.Conv2d(channels_in, channels_in, 3, padding=1, groups=channels_in, bias=False)
                mixed = nn.Conv2d(channels_in, channels_out, 1, bias=bias)
                conv: nn.Module = nn.Sequential(OrderedDict([("depthwise", each), ("pointwise", mixed)]))
            else:
                conv = nn.Conv2d(channels_in, channels_out, 3, padding=1, bias=bias)
            parts = [("conv", conv)]
            if norm == "group":
                parts.append(("norm", nn.GroupNorm(math.gcd(channels_out, 8), channels_out)))
            elif norm == "batch":
                parts.append(("norm", nn.BatchNorm2d(channels_out)))
            return OrderedDict([*parts, ("activation", act()), ("pool", pool(2))])

        self.stem = Stem(block(in_channels, first, False), Scale(mean, std))  # [B, C, H, W] -> [B, 32, H/2, W/2]
        self.body = nn.Sequential(block(first, second, depthwise))  # -> [B, 64, H/4, W/4]
        flat = second * (height // 4) * (across // 4)
        self.hidden = nn.Sequential(
            OrderedDict([("flatten", nn.Flatten()), ("linear", nn.Linear(flat, hidden)), ("activation", act())])
        )  # -> [B, 512]
        self.head = nn.Sequential(
            OrderedDict([("dropout", nn.Dropout(dropout)), ("linear", nn.Linear(hidden, num_labels))])
        )  # -> [B, num_labels]

    def forward(self, images: Tensor) -> Tensor:
        """Images [B, C, H, W], uint8 or float, to logits [B, num_labels]."""
        for layer in self.pipeline_layers():
            images = layer(images)
        return images

    def pipeline_layers(self) -> list[nn.Module]:
        """The model's own modules in order; each takes and returns one tensor and has parameters."""
        return [self.stem, self.body, self.hidden, self.head]
