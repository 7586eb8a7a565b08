"""Augmented pictures: each change against what it must give, and that a picture follows from (seed, epoch, sample)."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

import toolkit
from toolkit.augmentation import PRESETS, Augmentation
from toolkit.data.augment import DRAWS, Augment, augment_of, parameters_of, philox, uniform
from toolkit.data.augmented import EPOCHS, grid, show_augmentations
from toolkit.data.loader import TrainLoader
from toolkit.data.pictures import stack_images
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError
from toolkit.pixels import Scale

CPU = torch.device("cpu")
STRONG = Augmentation(**PRESETS["strong"])
# Coordinates are float32: a bilinear sample is off by up to 1e-6 of a side times the step between two pixels (0..1).
# Measured at 12 pixels a side: 1.2e-6.
NEAR = 3e-6


def images(count: int, channels: int = 1, height: int = 12, width: int = 12) -> Tensor:
    random = torch.Generator().manual_seed(5)
    return torch.randint(0, 256, (count, channels, height, width), generator=random, dtype=torch.uint8)


def augment(setting: Augmentation, channels: int = 1, seed: int = 3) -> Augment:
    return Augment(setting, seed, Scale((0.5,) * channels, (0.5,) * channels), CPU)


def drawn(monkeypatch: pytest.MonkeyPatch, **numbers: float) -> None:
    """Let every sample draw these numbers, and 0.5 (the middle of every range) for the others."""
    column = [numbers.get(name, 0.5) for name in DRAWS]
    monkeypatch.setattr(
        "toolkit.data.augment.uniform", lambda seed, epoch, ids: np.repeat(np.array(column)[:, None], len(ids), 1)
    )


def changed(pictures: Tensor, **setting: Any) -> Tensor:
    ids = torch.arange(len(pictures))
    return augment(Augmentation(**setting), pictures.shape[1]).pictures(pictures, ids, epoch=0)


def test_philox_gives_the_known_answers() -> None:
    """Random123's kat_vectors for philox4x32, 10 rounds."""
    pi = [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344]
    counters = np.array([[0] * 4, [0xFFFFFFFF] * 4, pi], dtype=np.uint64).T
    keys = [(0, 0), (0xFFFFFFFF, 0xFFFFFFFF), (0xA4093822, 0x299F31D0)]
    answers = [philox(counters[:, [n]], key)[:, 0].tolist() for n, key in enumerate(keys)]
    assert answers == [
        [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8],
        [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ]


def test_the_numbers_are_even_and_go_together_by_nothing() -> None:
    numbers = uniform(3, 1, np.arange(20_000))
    assert ((numbers >= 0) & (numbers < 1)).all()
    # Standard errors: 0.002 of a mean, 0.007 of a correlation.
    assert np.abs(numbers.mean(1) - 0.5).max() < 0.01
    assert np.abs(np.corrcoef(numbers) - np.eye(len(numbers))).max() < 0.035


def test_seed_epoch_and_sample_each_decide_all_numbers() -> None:
    ids = np.array([0, 1, 2**32, 2**53 - 1])
    found = [uniform(seed, epoch, ids) for seed in (0, 1, 2**32, 2**63 - 1) for epoch in (0, 1)]
    assert len(np.unique(np.concatenate(found, axis=1))) == 8 * 4 * 16


def test_parameters_do_not_depend_on_the_others_of_a_batch() -> None:
    ids = np.array([7, 3, 900, 3, 12])
    together = parameters_of(STRONG, 3, 2, ids, (12, 16))
    for place, sample in enumerate(ids):
        alone = parameters_of(STRONG, 3, 2, np.array([sample]), (12, 16))
        assert (together.matrices[place] == alone.matrices[0]).all()
        assert (together.factors[place] == alone.factors[0]).all()


@pytest.mark.parametrize("channels", [1, 3])
def test_a_picture_is_bit_for_bit_the_same_in_any_batch(channels: int) -> None:
    pictures, ids = images(12, channels, 20, 28), torch.arange(100, 112)
    change = augment(STRONG, channels)
    whole = change.pictures(pictures, ids, 4)
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    assert torch.equal(change.pictures(pictures[order], ids[order], 4), whole[order])
    for size in (1, 2, 5):
        parts = [change.pictures(pictures[n : n + size], ids[n : n + size], 4) for n in range(0, 12, size)]
        assert torch.equal(torch.cat(parts), whole)


def test_epochs_and_samples_differ() -> None:
    change, same = augment(STRONG), images(1).repeat(6, 1, 1, 1)
    seen = [change.pictures(same, torch.arange(6), epoch) for epoch in (0, 1)]
    flat = torch.cat(seen).flatten(1)
    assert (torch.cdist(flat, flat) + torch.eye(12) > 0.5).all()


def test_what_changes_nothing_gives_the_picture_back() -> None:
    pictures = images(4, 3)
    assert torch.allclose(changed(pictures), pictures / 255, rtol=0, atol=NEAR)


def test_a_flip_mirrors(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = images(3, 3, 8, 12)
    assert torch.allclose(changed(pictures, horizontal_flip=1.0), pictures.flip(3) / 255, rtol=0, atol=NEAR)
    assert torch.allclose(changed(pictures, vertical_flip=1.0), pictures.flip(2) / 255, rtol=0, atol=NEAR)
    drawn(monkeypatch, horizontal_flip=0.3)
    assert torch.allclose(changed(pictures, horizontal_flip=0.3), pictures / 255, rtol=0, atol=NEAR)
    assert torch.allclose(changed(pictures, horizontal_flip=0.31), pictures.flip(3) / 255, rtol=0, atol=NEAR)


def test_a_turn_is_counter_clockwise_about_the_centre(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = images(2)
    drawn(monkeypatch, degrees=1.0)
    assert torch.allclose(changed(pictures, degrees=90.0), pictures.rot90(1, (2, 3)) / 255, rtol=0, atol=NEAR)
    assert torch.allclose(changed(pictures, degrees=180.0), pictures.flip(2, 3) / 255, rtol=0, atol=NEAR)
    wide = images(2, 1, 8, 14)  # a turn of pixels, not of a square that was stretched
    turned = changed(wide, degrees=90.0)
    assert torch.allclose(turned[..., 3:11], (wide[..., 3:11] / 255).rot90(1, (2, 3)), rtol=0, atol=NEAR)


def test_a_shift_by_whole_pixels_repeats_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = images(2)
    drawn(monkeypatch, translate_x=1.0, translate_y=0.25)  # 3 pixels to the right, 1.5 - 3 = -1.5 up
    moved = changed(pictures, translate=3 / 12)
    right = functional.pad(pictures / 255, (3, 0, 0, 0), mode="replicate")[..., :12]
    drawn(monkeypatch, translate_x=1.0)
    assert torch.allclose(changed(pictures, translate=3 / 12), right, rtol=0, atol=NEAR)
    half = functional.pad(right, (0, 0, 0, 2), mode="replicate")
    assert torch.allclose(moved, (half[..., 1:13, :] + half[..., 2:14, :]) / 2, rtol=0, atol=NEAR)


def test_a_crop_is_resized_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    pictures = images(2)
    drawn(monkeypatch, scale=0.0, crop_x=0.0, crop_y=1.0)  # a quarter of the area: 6 x 6, at the lower left
    part = pictures[..., 6:, :6] / 255
    found = changed(pictures, scale=(0.25, 1.0))
    right = functional.interpolate(part, size=12, mode="bilinear", align_corners=False)
    inside = slice(1, -1)  # at its rim a crop sees the pixels beside it, where the part alone ends
    assert torch.allclose(found[..., inside, inside], right[..., inside, inside], rtol=0, atol=NEAR)
    drawn(monkeypatch, scale=0.0, ratio=1.0, crop_x=0.0)  # sides of sqrt(1/4 x 4) and sqrt(1/4 / 4): 12 wide, 3 high
    rows = functional.interpolate(pictures / 255, size=(48, 12), mode="bilinear", align_corners=False)
    assert torch.allclose(changed(pictures, scale=(0.25, 1.0), ratio=(1.0, 4.0)), rows[..., 18:30, :], atol=NEAR)


def test_all_moves_are_one_in_the_order_turn_shift_mirror_crop(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn(monkeypatch, degrees=1.0, translate_x=1.0, scale=0.0, horizontal_flip=0.0, crop_x=0.0, crop_y=0.0)
    setting = Augmentation(degrees=90.0, translate=0.25, scale=(0.25, 1.0), horizontal_flip=1.0)
    (matrix,) = parameters_of(setting, 0, 0, np.array([0]), (12, 12)).matrices
    # The new middle is the crop's, (-0.5, -0.5); mirrored (0.5, -0.5); before the shift (0, -0.5) of an old quarter
    # turn to the left, which was at (0.5, 0).
    assert matrix @ [0, 0, 1] == pytest.approx([0.5, 0.0], abs=1e-15)
    # One to the right there is half to the left in the mirror, and half up before the turn.
    assert matrix @ [1, 0, 1] - matrix @ [0, 0, 1] == pytest.approx([0.0, -0.5], abs=1e-15)


def grey_of(pictures: Tensor) -> Tensor:
    weights = torch.tensor([0.299, 0.587, 0.114], dtype=pictures.dtype)[:, None, None]
    return (pictures * weights).sum(1, keepdim=True)


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("channels", [1, 3])
def test_colours_follow_pillows_formulas(monkeypatch: pytest.MonkeyPatch, share: float, channels: int) -> None:
    pictures, factor = images(3, channels), 1 + 0.6 * (2 * share - 1)
    unit = pictures.double() / 255
    mean = (grey_of(unit) if channels == 3 else unit).mean((1, 2, 3), keepdim=True)
    drawn(monkeypatch, brightness=share, contrast=share, saturation=share)
    right = {"brightness": unit * factor, "contrast": mean + (unit - mean) * factor}
    right["saturation"] = grey_of(unit) + (unit - grey_of(unit)) * factor if channels == 3 else unit
    for name, picture in right.items():
        found = changed(pictures, **{name: 0.6})
        assert torch.allclose(found, picture.clamp(0, 1).float(), rtol=0, atol=NEAR), name


def test_a_turn_of_a_third_of_the_hue_makes_red_green(monkeypatch: pytest.MonkeyPatch) -> None:
    red = torch.zeros(1, 3, 4, 4, dtype=torch.uint8)
    red[:, 0] = 204
    drawn(monkeypatch, hue=1.0)
    found = changed(red, hue=1 / 3)
    assert torch.allclose(found[0, :, 0, 0], torch.tensor([0.0, 0.8, 0.0]), atol=1e-5)
    assert torch.equal(changed(images(2), hue=0.5), changed(images(2)))  # grey has none


class Pictures:
    """24 images of two classes."""

    def __init__(self) -> None:
        self.images = images(24)

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.images[index], index % 2


def loader(change: Augment | None, rank: int = 0, size: int = 1, micro: int = 8, accumulated: int = 1) -> TrainLoader:
    given: dict[str, Any] = {"micro_batch_size": micro, "gradient_accumulation_steps": accumulated}
    sampler = Sampler(24, 8, seed=3)
    return TrainLoader(Pictures(), stack_images, sampler, rank=rank, size=size, transform=change, **given)


def seen(loaders: list[TrainLoader], epoch: int, start: int = 0) -> dict[int, Tensor]:
    """The picture of each sample, from all ranks."""
    found = {}
    for each in loaders:
        for batch in (batch for step in each.epoch(epoch, start) for batch in step):
            assert isinstance(batch.inputs, tuple)
            found |= dict(zip(batch.ids.tolist(), batch.inputs[0], strict=True))
    return found


def test_ranks_micro_batches_and_a_resume_see_the_same_pictures() -> None:
    change = augment(STRONG)
    right = seen([loader(change)], epoch=1)
    assert sorted(right) == list(range(24))
    others = {
        "two ranks": [loader(change, rank, 2, 4) for rank in (0, 1)],
        "four micro-batches": [loader(change, micro=2, accumulated=4)],
        "two ranks, two micro-batches with padding": [loader(change, rank, 2, 3, 2) for rank in (0, 1)],
    }
    for name, loaders in others.items():
        found = seen(loaders, epoch=1)
        assert all(torch.equal(found[sample], right[sample]) for sample in right), name
    rest = seen([loader(augment(STRONG))], epoch=1, start=2)
    assert len(rest) == 8 and all(torch.equal(rest[sample], right[sample]) for sample in rest)


def test_what_leaves_the_loader_is_scaled_as_the_model_would() -> None:
    change = Augment(Augmentation(horizontal_flip=1.0), 3, Scale((0.25,), (0.125,)), CPU)
    found, plain = seen([loader(change)], epoch=0), seen([loader(None)], epoch=0)
    for sample, picture in plain.items():
        assert found[sample].dtype == torch.float32
        assert torch.allclose(found[sample], (picture.flip(2) / 255 - 0.25) / 0.125, atol=8 * NEAR)


def test_rows_that_are_not_known_to_be_images_are_refused() -> None:
    arguments = Namespace(augment="light", augment_kwargs=None)
    with pytest.raises(UserError, match="--augment: 'light': these rows are no images .*; give mean and std to Data"):
        augment_of(arguments, toolkit.Data(Pictures()), 0, CPU)
    arguments.augment = "none"
    assert augment_of(arguments, toolkit.Data(Pictures()), 0, CPU) is None


def test_colours_asked_of_grey_images_are_told(capfd: pytest.CaptureFixture[str]) -> None:
    data = toolkit.Data(Pictures(), channels=1, mean=(0.5,), std=(0.5,))
    assert augment_of(Namespace(augment="standard", augment_kwargs=None), data, 0, CPU) is not None
    line = "augmentation: the images are grey, which have no saturation and no hue to change"
    assert capfd.readouterr().err.count(line) == 1


def test_the_grid_holds_what_training_sees(tmp_path: Path) -> None:
    from PIL import Image

    change = augment(STRONG)
    train = loader(change)
    originals, epochs, labels = grid(train, change)
    ids = train.sampler.global_batch(0, 0)[:6]
    assert labels == [sample % 2 for sample in ids]
    assert (originals.shape, epochs.shape) == ((6, 12, 12), (EPOCHS, 6, 12, 12))
    for epoch in (0, 2):
        trained = seen([train], epoch)
        for place, sample in enumerate(ids):
            assert torch.equal(change.scale(torch.from_numpy(epochs[epoch, place])[None, None])[0], trained[sample])
    show_augmentations(train, ["even", "odd"], str(tmp_path / "grid.png"))
    with Image.open(tmp_path / "grid.png") as picture:
        assert picture.width > 1000 and picture.height > 700
    with pytest.raises(UserError, match="--show_augmentations: .*: cannot be written: No such file or directory; name"):
        show_augmentations(train, [], str(tmp_path / "none" / "grid.png"))
