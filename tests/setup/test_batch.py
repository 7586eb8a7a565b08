"""Batch arithmetic: what follows from what, and what is refused."""

import pytest

from toolkit.errors import UserError
from toolkit.setup import Given, settle_batch

GLOBAL, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"


def settled(numbers, ranks, default=64, auto=1):
    given = {key: Given(value, f"a.json: {key}") for key, value in numbers.items()}
    sizes = settle_batch(given, Given(default, "script's default"), ranks, auto_accumulation=Given(auto, "default"))
    return (
        sizes.train_batch_size,
        sizes.train_micro_batch_size_per_gpu,
        sizes.gradient_accumulation_steps,
        sizes.padding_rows,
    )


@pytest.mark.parametrize(
    ("numbers", "ranks", "expected"),
    [
        ({MICRO: 2, STEPS: 4}, 2, (16, 2, 4, 0)),
        ({GLOBAL: 32, STEPS: 4}, 2, (32, 4, 4, 0)),
        ({GLOBAL: 32}, 2, (32, 16, 1, 0)),
        ({GLOBAL: 32, MICRO: 4}, 2, (32, 4, 4, 0)),
        ({GLOBAL: 16, MICRO: 2, STEPS: 4}, 2, (16, 2, 4, 0)),
        ({MICRO: 8}, 2, (16, 8, 1, 0)),
        ({STEPS: 4}, 2, (64, 8, 4, 0)),
        ({}, 1, (64, 64, 1, 0)),
        ({}, 3, (64, 22, 1, 2)),
        ({STEPS: 4}, 3, (64, 6, 4, 8)),
        ({STEPS: 128}, 1, (64, 1, 128, 64)),
    ],
)
def test_the_third_number_follows(numbers, ranks, expected):
    assert settled(numbers, ranks) == expected


@pytest.mark.parametrize(
    ("numbers", "ranks", "words"),
    [
        ({GLOBAL: 30, MICRO: 2, STEPS: 4}, 2, (GLOBAL, MICRO, STEPS, "x 2 data-parallel ranks = 16", "not 30")),
        ({GLOBAL: 10, STEPS: 4}, 1, ("10 is not a multiple of 4 x 1",)),
        ({GLOBAL: 2, STEPS: 4}, 1, ("2 is smaller than 4 x 1",)),
        ({GLOBAL: 32}, 3, ("32 is not a multiple of 1 x 3",)),
        ({GLOBAL: 32, MICRO: 8}, 3, ("32 is not a multiple of 8 x 3",)),
        ({STEPS: 0}, 1, (STEPS, "0", "must be 1 or more")),
        ({MICRO: -2}, 1, (MICRO, "-2", "must be 1 or more")),
    ],
)
def test_numbers_that_do_not_multiply_are_refused(numbers, ranks, words):
    with pytest.raises(UserError) as caught:
        settled(numbers, ranks)
    (line,) = caught.value.lines
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("numbers", "ranks", "expected"),
    [
        ({}, 1, (64, 16, 4, 0)),
        ({GLOBAL: 10}, 1, (10, 5, 2, 0)),
        ({GLOBAL: 7}, 1, (7, 7, 1, 0)),
        ({MICRO: 4}, 2, (32, 4, 4, 0)),
    ],
)
def test_a_pipelines_auto_accumulation_is_lowered_until_it_divides(numbers, ranks, expected):
    assert settled(numbers, ranks, auto=4) == expected


def test_a_typed_micro_batch_wins_over_the_default_and_the_note_says_the_new_global():
    given = {MICRO: Given(8, "--per_device_train_batch_size")}
    sizes = settle_batch(given, Given(64, "script's default"), 2)
    assert sizes.notes == (
        "train_batch_size is 16, from --per_device_train_batch_size, instead of 64, script's default",
    )


def test_padding_is_said():
    sizes = settle_batch({}, Given(64, "script's default"), 3)
    assert "2 of 66 rows are padding of weight 0" in sizes.notes[0]
