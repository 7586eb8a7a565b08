"""--augment and its numbers: what they come to, and what is refused before anything is loaded."""

import sys
from argparse import Namespace

import pytest

from toolkit.arguments import parse_arguments
from toolkit.augmentation import PRESETS, Augmentation, augmentation_of, changes
from toolkit.errors import UserError

DEFAULTS = {"train_batch_size": 64}


def parse(*argv: str) -> Namespace:
    return parse_arguments(argv, description="test", defaults=DEFAULTS)


def faults(*argv: str) -> tuple[str, ...]:
    with pytest.raises(UserError) as caught:
        parse(*argv)
    return caught.value.lines


def test_without_augment_no_picture_is_changed() -> None:
    assert augmentation_of(parse()) == Augmentation()
    assert not Augmentation().active
    assert [name for name in PRESETS if not augmentation_of(parse("--augment", name)).active] == ["none"]


def test_numbers_stand_over_the_preset() -> None:
    found = augmentation_of(parse("--augment", "light", "--augment_kwargs", '{"degrees": 30, "ratio": [0.5, 2]}'))
    assert found == Augmentation(degrees=30.0, translate=0.05, scale=(0.9, 1.0), ratio=(0.5, 2.0))
    assert augmentation_of(parse("--augment_kwargs", '{"hue": 0.5}')) == Augmentation(hue=0.5)


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_within_the_bounds(name: str) -> None:
    setting = augmentation_of(parse("--augment", name))
    given = {"augment": "none", "augment_kwargs": setting.as_dict()}
    assert augmentation_of(Namespace(**given)) == setting


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ('{"degree": 3}', "degree: 3: augmentation has no such number; did you mean degrees?"),
        ('{"degrees": 181}', "degrees: 181: must be from 0 to 180; correct the value"),
        ('{"degrees": "3"}', "degrees: '3': expected a number, got string \"3\"; correct the value"),
        ('{"horizontal_flip": true}', "horizontal_flip: True: expected a number, got boolean true; correct the value"),
        ('{"vertical_flip": 1.1}', "vertical_flip: 1.1: must be from 0 to 1; correct the value"),
        ('{"hue": 0.6}', "hue: 0.6: must be from 0 to 0.5; correct the value"),
        ('{"brightness": -1}', "brightness: -1: must be 0 or more; correct the value"),
        ('{"contrast": 1e999}', "contrast: inf: must be 0 or more; correct the value"),
        ('{"scale": [0, 1]}', "scale: [0, 1]: must be above 0; correct the value"),
        ('{"scale": [0.9, 0.5]}', "scale: [0.9, 0.5]: the least must not be above the most; correct the value"),
        ('{"scale": [0.9, 1.5]}', "scale: [0.9, 1.5]: must be from 0 to 1; correct the value"),
        (
            '{"ratio": 2}',
            "ratio: 2: expected a list of two numbers, the least and the most, got integer 2; correct the value",
        ),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(given: str, line: str) -> None:
    assert faults("--augment", "light", "--augment_kwargs", given) == (f"--augment_kwargs: {line}",)


def test_a_preset_that_there_is_not_is_refused() -> None:
    (line,) = faults("--augment", "standart")
    assert line.endswith("expected one of none, light, standard, strong (did you mean standard?); correct the value")


def test_a_grid_is_drawn_of_changed_pictures_as_png() -> None:
    assert faults("--show_augmentations", "a.jpg") == (
        "--show_augmentations: 'a.jpg': unknown kind of file; name a .png file",
        "--show_augmentations: 'a.jpg': --augment none changes no picture; "
        "add --augment light, standard, strong, or leave it out",
    )
    assert parse("--augment", "light", "--show_augmentations", "a.PNG").show_augmentations == "a.PNG"


def test_without_kornia_a_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.augmentation.find_spec", lambda name: None)
    line = "--augment: 'light': it is done by Kornia, which is not installed; pip install 'oneloop[augment]'"
    assert faults("--augment", "light") == (line,)
    parse("--augment", "none")


def test_what_is_no_longer_as_it_was_is_told() -> None:
    before = Augmentation(degrees=5.0, scale=(0.9, 1.0)).as_dict()
    assert list(changes(Augmentation(degrees=10.0, scale=(0.9, 1.0)), before)) == [
        "augmentation: degrees is 10.0, it was 5.0"
    ]
    assert list(changes(Augmentation(degrees=10.0), {})) == []  # written before there was any, or by another tool


def test_the_checks_load_nothing_heavy() -> None:
    import subprocess

    code = "import sys, toolkit.arguments; sys.exit('torch' in sys.modules or 'kornia' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
