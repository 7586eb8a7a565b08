import json

import pytest
import torch

from toolkit.errors import UserError
from toolkit.models.cnn import CNN


@pytest.mark.parametrize(
    ("channels", "size", "labels"), [(1, 28, 10), (3, 32, 10), (3, 64, 100), (1, 4, 2), (4, 5, 3), (3, (6, 31), 7)]
)
def test_any_image_size_and_channel_count(channels: int, size: int | tuple[int, int], labels: int) -> None:
    height, width = (size, size) if isinstance(size, int) else size
    images = torch.randint(0, 256, (2, channels, height, width), dtype=torch.uint8)
    assert CNN(channels, size, labels)(images).shape == (2, labels)


def test_the_articles_layout() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in CNN(3, 64, 10).named_parameters()}
    assert shapes == {
        "stem.conv.weight": (32, 3, 3, 3),
        "stem.conv.bias": (32,),
        "body.conv.weight": (64, 32, 3, 3),
        "body.conv.bias": (64,),
        "hidden.linear.weight": (512, 64 * 16 * 16),
        "hidden.linear.bias": (512,),
        "head.linear.weight": (10, 512),
        "head.linear.bias": (10,),
    }


def test_depthwise_cuts_the_second_convolution_in_two() -> None:
    shapes = {name: tuple(parameter.shape) for name, parameter in CNN(3, 64, 10, depthwise=True).named_parameters()}
    assert list(shapes.items())[:5] == [
        ("stem.conv.weight", (32, 3, 3, 3)),
        ("stem.conv.bias", (32,)),
        ("body.conv.depthwise.weight", (32, 1, 3, 3)),  # a filter for each channel
        ("body.conv.pointwise.weight", (64, 32, 1, 1)),
        ("body.conv.pointwise.bias", (64,)),
    ]
    model = CNN(1, 8, 3, depthwise=True, norm="group", dropout=0.1)
    assert CNN(**model.arguments).state_dict().keys() == model.state_dict().keys()


def test_arguments_of_a_checkpoint_before_depthwise_build_the_whole_convolution() -> None:
    old = {name: value for name, value in CNN(1, 8, 3).arguments.items() if name != "depthwise"}
    assert CNN(**old).body.conv.weight.shape == (64, 32, 3, 3)


@pytest.mark.parametrize(("width", "sizes"), [(0.5, (16, 32, 256)), (2.0, (64, 128, 1024)), (0.01, (1, 1, 5))])
def test_width_scales_all_three(width: float, sizes: tuple[int, int, int]) -> None:
    model = CNN(1, 8, 10, width=width)
    found = (model.stem.conv.out_channels, model.body.conv.out_channels, model.hidden.linear.out_features)
    assert found == sizes


@pytest.mark.parametrize("norm", ["none", "group", "batch"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("pooling", ["max", "avg"])
@pytest.mark.parametrize(("width", "depthwise"), [(1.0, False), (0.3, False), (1.0, True), (0.01, True)])
def test_the_layers_are_the_model(norm: str, activation: str, pooling: str, width: float, depthwise: bool) -> None:
    torch.manual_seed(0)
    arguments = {"norm": norm, "activation": activation, "pooling": pooling, "width": width, "depthwise": depthwise}
    model = CNN(1, 12, 5, dropout=0.5, **arguments).eval()
    images = torch.randint(0, 256, (3, 1, 12, 12), dtype=torch.uint8)
    hidden = images
    for layer in model.pipeline_layers():
        hidden = layer(hidden)
    assert torch.equal(hidden, model(images))
    owned = [id(parameter) for layer in model.pipeline_layers() for parameter in layer.parameters()]
    assert owned == [id(parameter) for parameter in model.parameters()]
    assert all(next(layer.parameters(), None) is not None for layer in model.pipeline_layers())


def test_only_batch_norm_couples_the_samples() -> None:
    images = torch.randint(0, 256, (4, 1, 8, 8), dtype=torch.uint8)
    for norm, coupled in (("none", False), ("group", False), ("batch", True)):
        torch.manual_seed(0)
        model = CNN(1, 8, 3, norm=norm).train()
        alone = torch.allclose(model(images)[:2], model(images[:2]), atol=1e-6)
        assert alone is not coupled


def test_bytes_are_scaled_and_floats_are_not() -> None:
    model = CNN(1, 8, 3)
    images = torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)
    assert torch.allclose(model(images), model((images / 255 - 0.5) / 0.5), atol=1e-6)
    assert model.to(torch.bfloat16)(images).dtype == torch.bfloat16
    assert model(images.float()).dtype == torch.bfloat16


def test_mean_and_deviation_are_the_models_own_and_build_it_again() -> None:
    model = CNN(3, 8, 3, mean=(0.1, 0.2, 0.3), std=(0.5, 1.0, 2.0))
    images = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    numbers = torch.tensor([[0.1, 0.2, 0.3], [0.5, 1.0, 2.0]])[:, :, None, None]
    assert torch.equal(model(images), model((images / 255 - numbers[0]) / numbers[1]))
    again = CNN(**json.loads(json.dumps(model.arguments)))
    again.load_state_dict(model.state_dict())
    assert torch.equal(again(images), model(images))
    assert (CNN(1, 8, 3).arguments["mean"], CNN(1, 8, 3).arguments["std"]) == ([0.5], [0.5])


def test_every_wrong_option_has_a_line() -> None:
    with pytest.raises(UserError) as caught:
        CNN(1, 3, 10, norm="layer", activation="tanh", pooling="min", width=0.0)
    found = [line.split(":")[0] for line in caught.value.lines]
    assert found == ["--norm", "--activation", "--pooling", "--image_size", "--width"]
