"""What `--augment` and `--augment_kwargs` say: by how much training pictures may be changed.

Names and meanings are those of torchvision's and Kornia's RandomAffine, RandomResizedCrop, flips and ColorJitter, which
agree. How the pictures are made is in `toolkit.data.augment`; here nothing heavy is imported.
"""

from __future__ import annotations

import math
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from importlib.util import find_spec
from typing import Any

from toolkit.errors import fault
from toolkit.setup.words import came, nearest

LARGEST_RATIO = 10.0  # of a crop's aspect


@dataclass(frozen=True)
class Augmentation:
    """Ranges that are drawn from, evenly; as they stand here they change nothing."""

    degrees: float = 0.0  # rotation about the centre, from -degrees to degrees
    translate: float = 0.0  # shift by up to this share of width and of height, either way
    scale: tuple[float, float] = (1.0, 1.0)  # share of the picture's area that a crop keeps, then resized to the whole
    ratio: tuple[float, float] = (1.0, 1.0)  # aspect of the crop over that of the picture, even in its logarithm
    horizontal_flip: float = 0.0  # probability that left and right change places
    vertical_flip: float = 0.0  # probability that top and bottom do
    brightness: float = 0.0  # pixels times a factor from 1 - brightness (0 or more) to 1 + brightness
    contrast: float = 0.0  # distance from the picture's mean grey times a factor, likewise
    saturation: float = 0.0  # distance from each pixel's own grey times a factor, likewise
    hue: float = 0.0  # shift from -hue to hue of a turn of the colour circle

    @property
    def active(self) -> bool:
        """Whether any picture is changed."""
        return self != Augmentation()

    def as_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {name: list(held) if isinstance(held, tuple) else held for name, held in asdict(self).items()}


# `light` mirrors nothing, so that letters and digits stay what they are.
PRESETS: dict[str, dict[str, Any]] = {
    "none": {},
    "light": {"degrees": 5.0, "translate": 0.05, "scale": (0.9, 1.0)},
    "standard": {
        "degrees": 10.0,
        "translate": 0.08,
        "scale": (0.75, 1.0),
        "ratio": (0.9, 1.1),
        "horizontal_flip": 0.5,
        "brightness": 0.2,
        "contrast": 0.2,
        "saturation": 0.2,
        "hue": 0.02,
    },
    "strong": {
        "degrees": 20.0,
        "translate": 0.12,
        "scale": (0.5, 1.0),
        "ratio": (0.75, 4 / 3),
        "horizontal_flip": 0.5,
        "brightness": 0.4,
        "contrast": 0.4,
        "saturation": 0.4,
        "hue": 0.1,
    },
}
# (lowest, highest) of each number; those of `scale` and `ratio` are above the lowest.
BOUNDS = {
    "degrees": (0, 180),
    "translate": (0, 1),
    "scale": (0, 1),
    "ratio": (1 / LARGEST_RATIO, LARGEST_RATIO),
    "horizontal_flip": (0, 1),
    "vertical_flip": (0, 1),
    "brightness": (0, math.inf),
    "contrast": (0, math.inf),
    "saturation": (0, math.inf),
    "hue": (0, 0.5),
}
COLOUR = ("saturation", "hue")  # that grey pictures have not


def augmentation_of(arguments: Namespace) -> Augmentation:
    """The preset with the numbers given over it. ValueError for numbers that `augmentation_faults` would tell."""
    given = {name: _number(name, value) for name, value in (arguments.augment_kwargs or {}).items()}
    return Augmentation(**{**PRESETS[arguments.augment], **given})


def augmentation_faults(values: Mapping[str, Any]) -> Iterator[str]:
    """A line for each number that there is not or that is out of its range, and for what cannot be done at all."""
    names, wrong = [each.name for each in fields(Augmentation)], False
    for name, value in (values["augment_kwargs"] or {}).items():
        where = f"--augment_kwargs: {name}"
        if name not in names:
            wrong = True
            remedy = nearest(name, names) or f"there are {', '.join(names)}"
            yield fault(where, value, "augmentation has no such number", remedy)
            continue
        try:
            _number(name, value)
        except ValueError as error:
            wrong = True
            yield fault(where, value, str(error), "correct the value")
    shown = values["show_augmentations"]
    if shown is not None and not shown.lower().endswith(".png"):
        yield fault("--show_augmentations", shown, "unknown kind of file", "name a .png file")
    if wrong:
        return
    if not augmentation_of(Namespace(**values)).active:
        if shown is not None:
            reason = f"--augment {values['augment']} changes no picture"
            remedy = f"add --augment {', '.join(name for name in PRESETS if name != 'none')}, or leave it out"
            yield fault("--show_augmentations", shown, reason, remedy)
    elif find_spec("kornia") is None:
        remedy = "pip install 'oneloop[augment]'"
        yield fault("--augment", values["augment"], "it is done by Kornia, which is not installed", remedy)


def changes(now: Augmentation, before: Mapping[str, Any]) -> Iterator[str]:
    """A line for each number that is not what it was; `before` as `as_dict` gives it."""
    for name, value in now.as_dict().items():
        if name in before and before[name] != value:
            yield f"augmentation: {name} is {value}, it was {before[name]}"


def _number(name: str, value: Any) -> Any:
    """The value as `Augmentation` holds it; ValueError says what is wrong with it."""
    low, high = BOUNDS[name]
    if name not in ("scale", "ratio"):
        return _within(value, low, high)
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError(f"expected a list of two numbers, the least and the most, got {came(value)}")
    least, most = (_within(each, low, high) for each in value)
    if least == 0:
        raise ValueError("must be above 0")
    if least > most:
        raise ValueError("the least must not be above the most")
    return least, most


def _within(value: Any, low: float, high: float) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected a number, got {came(value)}")
    if not low <= value <= high or math.isinf(value):
        raise ValueError(f"must be {low:g} or more" if math.isinf(high) else f"must be from {low:g} to {high:g}")
    return float(value)
