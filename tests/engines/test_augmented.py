"""Every setup trains on the same augmented pictures."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Got = Callable[[str, str], list[Any]]
OTHERS = ("ddp x2", "zero2 x2", "pipeline x2")


def read(rank: Any) -> dict[str, str]:
    """The pictures that a rank's model was given."""
    pictures: dict[str, str] = rank["seen"] if rank["reads_inputs"] else {}
    return pictures


def test_one_process_sees_every_sample_once_an_epoch_and_never_twice_the_same(got: Got) -> None:
    (alone,) = got("augmented", "single x1")
    assert len(read(alone)) == len(set(read(alone).values())) == 2 * 22


@pytest.mark.parametrize("setup", OTHERS)
def test_the_pictures_of_a_setup_are_bit_for_bit_those_of_one_process(got: Got, setup: str) -> None:
    (alone,) = got("augmented", "single x1")
    ranks = got("augmented", setup)
    assert [rank["reads_inputs"] for rank in ranks] == [True, setup != "pipeline x2"]
    assert {key: picture for rank in ranks for key, picture in read(rank).items()} == read(alone)


@pytest.mark.parametrize("setup", OTHERS)
def test_losses_are_those_of_one_process(got: Got, setup: str) -> None:
    (alone,) = got("augmented", "single x1")
    for rank in got("augmented", setup):
        # Measured: 1.8e-7.
        assert rank["losses"] == pytest.approx(alone["losses"], rel=5e-7)


@pytest.mark.parametrize("setup", ["single x1", *OTHERS])
def test_evaluation_sees_the_images_as_they_are(got: Got, setup: str) -> None:
    for rank in got("augmented", setup):
        assert rank["evaluated"] == ["torch.uint8"]
