"""--show_augmentations: training pictures as they are, and as the epochs see them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from toolkit.data.augment import Augment
from toolkit.data.loader import TrainLoader
from toolkit.errors import UserError, fault
from toolkit.launch import say

SAMPLES = 6  # rows of the grid
EPOCHS = 7  # columns beside the original
INCH = 1.3  # side of a picture


def show_augmentations(train: TrainLoader, label_names: Sequence[str], file: str) -> None:
    """Draw the first samples of epoch 0, and what training makes of them in its first epochs, into a .png.

    Raises:
        UserError: it cannot be written.
    """
    import matplotlib
    from matplotlib.figure import Figure

    assert isinstance(train.transform, Augment)
    originals, columns, labels = grid(train, train.transform)
    width = INCH * min(max(originals.shape[2] / originals.shape[1], 0.5), 2)
    with matplotlib.rc_context({"text.parse_math": False}):
        figure = Figure(figsize=(width * (1 + EPOCHS) + 0.6, INCH * len(originals) + 0.4), layout="constrained")
        places = figure.subplots(len(originals), 1 + EPOCHS, squeeze=False)
        for row, label in enumerate(labels):
            for column, picture in enumerate([originals[row], *columns[:, row]]):
                axes = places[row, column]
                axes.imshow(picture, cmap="gray" if picture.ndim == 2 else None, vmin=0, vmax=1)
                axes.set(xticks=[], yticks=[])
                if row == 0:
                    axes.set_title(f"epoch {column - 1}" if column else "original", fontsize="small")
            name = label_names[label] if label_names else str(label)
            places[row, 0].set_ylabel(name if len(name) <= 20 else f"{name[:19]}…", fontsize="small")
        try:
            figure.savefig(file, dpi=110, format="png")
        except OSError as error:
            reason = f"cannot be written: {error.strerror or error}"
            raise UserError(
                fault("--show_augmentations", file, reason, "name a file in a folder that is there")
            ) from error
    say(f"{file}: {len(labels)} training images as --augment changes them; training goes on")


def grid(train: TrainLoader, augment: Augment) -> tuple[np.ndarray, np.ndarray, list[int]]:
    """The pictures [N, H, W] or [N, H, W, 3] from 0 to 1, those of the epochs [EPOCHS, N, ...], and the class ids."""
    ids = train.sampler.global_batch(0, 0)[:SAMPLES]
    inputs, targets = train.collate([train.dataset[sample] for sample in ids])
    assert isinstance(inputs, tuple)
    drawn = [augment.pictures(inputs[0], torch.tensor(ids), epoch).cpu() for epoch in range(EPOCHS)]
    pictures = torch.stack([inputs[0] / 255, *drawn]).movedim(2, -1).numpy()  # [1 + EPOCHS, N, H, W, C]
    pictures = pictures[..., 0] if pictures.shape[-1] == 1 else pictures
    return pictures[0], pictures[1:], targets.tolist()
