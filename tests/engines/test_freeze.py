"""--freeze: which names it takes, and what it says."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from torch import nn

import toolkit
from toolkit.engines.freeze import freeze
from toolkit.errors import UserError
from toolkit.models.cnn import CNN
from toolkit.setup import Setup


def cnn() -> CNN:
    return CNN(1, 8, 4, width=0.25)


@pytest.mark.parametrize(
    ("names", "right"),
    [
        (["stem"], {"stem.conv.weight", "stem.conv.bias"}),
        (["stem", "body"], {"stem.conv.weight", "stem.conv.bias", "body.conv.weight", "body.conv.bias"}),
        (["body.conv.bias"], {"body.conv.bias"}),
    ],
)
def test_a_name_is_a_parameters_or_a_layers(names: list[str], right: set[str]) -> None:
    model = cnn()
    freeze(model, names, "--freeze")
    assert {name for name, parameter in model.named_parameters() if not parameter.requires_grad} == right


def test_a_shared_parameter_goes_by_each_of_its_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    freeze(model, ["1.weight"], "--freeze")
    assert [parameter.requires_grad for parameter in model.parameters()] == [False, True, True]


def test_it_says_how_many_are_frozen_and_how_many_train(capfd: pytest.CaptureFixture[str]) -> None:
    freeze(cnn(), ["stem", "head"], "--freeze")
    # 8 x 9 + 8 and 128 x 4 + 4.
    said = "stem, head (--freeze): 596 parameters are frozen, 9,488 train"
    assert said in capfd.readouterr().err


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["sten"], "--freeze: 'sten': CNN has no parameter or layer with parameters of this name; did you mean stem?"),
        (["stem.activation"], "--freeze: 'stem.activation': CNN has no parameter or layer with parameters of this na"),
        (["classifier"], "of this name; one of stem, body, hidden, head, or what is in them"),
        (["ste"], "--freeze: 'ste': CNN has no parameter"),
        (["stem", "body", "hidden", "head"], "all 10,084 parameters of CNN are frozen; leave a layer that trains"),
    ],
)
def test_what_cannot_be_frozen_is_refused(names: Sequence[str], words: str) -> None:
    with pytest.raises(UserError) as caught:
        freeze(cnn(), names, "--freeze")
    (line,) = caught.value.lines
    assert words in line


@pytest.mark.parametrize(
    "argv",
    [
        ["--freeze", "stem", "body"],
        ["--freeze", "stem,body"],
        ["--freeze", "stem, body"],
        ["--freeze=stem", "--freeze=body"],
    ],
)
def test_names_stand_between_spaces_or_commas(argv: list[str]) -> None:
    arguments = toolkit.parse_arguments(argv, description="", defaults={"freeze": ["head"]})
    assert arguments.freeze == ["stem", "body"]
    assert Setup.from_run(arguments, {}, []).as_dict()["freeze"] == {
        "value": ["stem", "body"],
        "origin": "--freeze",
        "overrode": "script's default ['head']",
    }


def test_a_name_of_no_letters_is_refused() -> None:
    with pytest.raises(UserError, match="--freeze: 'stem,,body': expected names, with commas or spaces between them"):
        toolkit.parse_arguments(["--freeze", "stem,,body"], description="", defaults={})


def test_without_the_argument_the_script_decides() -> None:
    assert toolkit.parse_arguments([], description="", defaults={"freeze": ["head"]}).freeze == ["head"]
    assert Setup.build(strategy="single").freeze is None
    assert Setup.build(strategy="single", freeze=["stem"]).freeze == ["stem"]
