"""Image classifiers of transformers, from small ones saved here."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import written
from PIL import Image
from torch import nn

from toolkit.errors import UserError
from toolkit.models import bert, vision
from toolkit.models.vision import Processor, load_processor, load_vision

NAMES = ["a", "b", "c"]
KINDS = ["resnet", "vit"]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, Any]]:
    """Folder and model of each kind."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in KINDS}
    return {kind: (str(folder), written.vision(kind, folder)) for kind, folder in folders.items()}


def test_mean_deviation_and_size_are_those_of_the_image_processor(saved: dict[str, tuple[str, Any]]) -> None:
    imagenet = Processor(3, (16, 16), (0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert load_processor(saved["resnet"][0]) == imagenet
    assert load_processor(saved["vit"][0]) == Processor(3, (16, 16), (0.5,) * 3, (0.25,) * 3)
    assert load_processor(saved["resnet"][0], 32).size == (32, 32)


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"image_processor_type": "ViTImageProcessor", "do_normalize": False, "size": 8}, ((8, 8), 0.0, 1.0)),
        ({"image_processor_type": "ViTImageProcessor", "do_rescale": False, "size": 8}, ((8, 8), 0.5 / 255, 0.5 / 255)),
        (
            # Normalised twice, as EfficientNet wants it.
            {
                "image_processor_type": "EfficientNetImageProcessor",
                "include_top": True,
                "size": {"height": 9, "width": 7},
                "image_mean": [0.4] * 3,
                "image_std": [0.5] * 3,
            },
            ((9, 7), 0.4, 0.25),
        ),
    ],
)
def test_what_other_image_processors_come_to(
    saved: dict[str, tuple[str, Any]], tmp_path: Path, told: dict[str, Any], expected: tuple[Any, float, float]
) -> None:
    saved["resnet"][1].config.save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    found = load_processor(str(tmp_path))
    assert (found.channels, found.size) == (3, expected[0])
    assert found.mean == pytest.approx([expected[1]] * 3, abs=1e-6)
    assert found.std == pytest.approx([expected[2]] * 3, abs=1e-6)


def test_a_model_of_grey_images_and_one_without_an_image_processor(
    saved: dict[str, tuple[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(vision, "say", heard.append)
    from transformers import ViTConfig

    ViTConfig(num_channels=1, image_size=12).save_pretrained(tmp_path)
    assert load_processor(str(tmp_path)) == Processor(1, (12, 12), (0.5,), (0.5,))
    line = f"{tmp_path} has no preprocessor_config.json: its images are scaled to -1 .. 1 and resized to 12 x 12"
    assert heard == [line]
    told = {"image_processor_type": "ViTImageProcessor", "size": 8, "image_mean": [0.1], "image_std": [0.3]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(told))
    assert load_processor(str(tmp_path)) == Processor(1, (8, 8), (0.1,), (0.3,))


@pytest.mark.parametrize("kind", KINDS)
def test_images_reach_the_model_as_its_own_processor_makes_them(saved: dict[str, tuple[str, Any]], kind: str) -> None:
    """Also through the preprocessor_config.json that a checkpoint keeps."""
    from transformers import AutoImageProcessor

    folder, expected = saved[kind]
    processor = load_processor(folder)
    model = load_vision(folder, processor, label_names=NAMES).eval()
    assert {name for name, _ in model.named_parameters()} == {name for name, _ in expected.named_parameters()}
    images = np.random.default_rng(0).integers(0, 256, (2, 16, 16, 3), dtype=np.uint8)
    pixels = torch.from_numpy(images).permute(0, 3, 1, 2)
    Path(folder, "kept").mkdir(exist_ok=True)
    expected.config.save_pretrained(Path(folder, "kept"))
    processor.save_pretrained(Path(folder, "kept"))
    theirs = AutoImageProcessor.from_pretrained(Path(folder, "kept"))
    inputs = theirs(images=[Image.fromarray(image) for image in images], return_tensors="pt")
    with torch.no_grad():
        logits = model(pixels).logits
        torch.testing.assert_close(logits, expected(**inputs).logits, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(model(inputs["pixel_values"]).logits, logits, rtol=1e-5, atol=1e-5)
        assert model.to(torch.bfloat16)(pixels).logits.dtype == torch.bfloat16
    assert load_processor(str(Path(folder, "kept"))) == processor
    # Resized as data of another size are.
    wide = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 24, 3), dtype=np.uint8))
    made = np.asarray(wide.resize((16, 16), Image.Resampling.BILINEAR)).transpose(2, 0, 1) / 255
    ours = (made - np.array(processor.mean)[:, None, None]) / np.array(processor.std)[:, None, None]
    assert np.abs(theirs(images=wide, return_tensors="np")["pixel_values"][0] - ours).max() < 1e-5


@pytest.mark.parametrize("kind", KINDS)
def test_fp32_and_a_new_head_where_the_classes_are_others(
    saved: dict[str, tuple[str, Any]], tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard: list[str] = []
    monkeypatch.setattr(vision, "say", heard.append)
    folder, original = saved[kind]
    processor = load_processor(folder)
    kept = load_vision(folder, processor, label_names=NAMES)
    assert heard == []
    assert kept.config.id2label == {0: "a", 1: "b", 2: "c"}
    head = "classifier.1" if kind == "resnet" else "classifier"
    weights = original.state_dict()
    assert torch.equal(kept.state_dict()[f"{head}.weight"], weights[f"{head}.weight"])
    half = written.vision(kind, tmp_path).half()
    half.save_pretrained(tmp_path)
    five = load_vision(str(tmp_path), processor, label_names=list("abcde"))
    assert {parameter.dtype for parameter in five.parameters()} == {torch.float32}
    assert five.config.num_labels == 5 and five.state_dict()[f"{head}.weight"].shape == (5, 16)
    told = f"a new head for 5 classes: {head}.bias, {head}.weight start at random, the rest is the model's"
    assert heard == [f"{tmp_path}: {told}"]
    first = next(name for name in weights if name.endswith(("convolution.weight", "projection.weight")))
    assert torch.equal(five.state_dict()[first], weights[first].half().float())
    half.base_model.save_pretrained(tmp_path)  # a body without a head
    bare = load_vision(str(tmp_path), processor, label_names=NAMES)
    assert heard[1].startswith(f"{tmp_path}: a new head for 3 classes: {head}.bias, {head}.weight start")
    assert torch.equal(bare.state_dict()[first], weights[first].half().float())


def test_dropout_is_set_where_there_is_one(saved: dict[str, tuple[str, Any]]) -> None:
    processor = load_processor(saved["vit"][0])
    model = load_vision(saved["vit"][0], processor, label_names=NAMES, dropout=0.25)
    assert {module.p for module in model.modules() if isinstance(module, nn.Dropout)} == {0.25}
    load_vision(saved["resnet"][0], processor, label_names=NAMES, dropout=0.0)
    with pytest.raises(UserError, match=r"--dropout: 0.1: the config of .* \(resnet\) has no dropout rate to set"):
        load_vision(saved["resnet"][0], processor, label_names=NAMES, dropout=0.1)


def test_a_vit_takes_images_of_its_own_size_alone(saved: dict[str, tuple[str, Any]]) -> None:
    for kind in KINDS:
        folder = saved[kind][0]
        if kind == "resnet":
            load_vision(folder, load_processor(folder, 32), label_names=NAMES)
            continue
        with pytest.raises(UserError, match="--image_size: 32: .* takes no images of 32 x 32 pixels: .*; leave it out"):
            load_vision(folder, load_processor(folder, 32), label_names=NAMES)


def test_what_the_classes_do_not_depend_on_is_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    heard: list[str] = []
    monkeypatch.setattr(vision, "say", heard.append)
    config = Dinov2Config(hidden_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=16, patch_size=8)
    config.num_labels = 3
    Dinov2ForImageClassification(config).save_pretrained(tmp_path)
    processor = Processor(3, (16, 16), (0.5,) * 3, (0.5,) * 3)
    model = load_vision(str(tmp_path), processor, label_names=NAMES)
    assert heard == [f"{tmp_path}: frozen, for its classes do not depend on them: dinov2.embeddings.mask_token"]
    model.train()(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)).logits.sum().backward()
    assert all((parameter.grad is not None) is parameter.requires_grad for parameter in model.parameters())
    assert sum(not parameter.requires_grad for parameter in model.parameters()) == 1


def test_a_model_that_cannot_be_used_is_refused_in_words(saved: dict[str, tuple[str, Any]], tmp_path: Path) -> None:
    resnet = Path(saved["resnet"][0])
    folders = {name: tmp_path / name for name in ("text", "pickled", "torn", "odd", "lacks", "json", "code", "empty")}
    for folder in folders.values():
        folder.mkdir()
        for file in () if folder.name in ("text", "empty") else resnet.iterdir():
            if file.is_file():
                (folder / file.name).write_bytes(file.read_bytes())
    bert.random_bert().save_pretrained(folders["text"])
    (folders["pickled"] / "model.safetensors").rename(folders["pickled"] / "pytorch_model.bin")
    weights = folders["torn"] / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    flips = {"image_processor_type": "MobileViTImageProcessor", "size": {"shortest_edge": 16}, "crop_size": 16}
    (folders["odd"] / "preprocessor_config.json").write_text(json.dumps(flips))
    (folders["json"] / "preprocessor_config.json").write_text("{")
    deeper = json.loads((folders["lacks"] / "config.json").read_text()) | {"depths": [1, 2]}
    (folders["lacks"] / "config.json").write_text(json.dumps(deeper))
    (folders["code"] / "own.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    config = json.loads((folders["code"] / "config.json").read_text())
    config |= {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}}
    (folders["code"] / "config.json").write_text(json.dumps(config))
    cases = [
        ("./none", "no such folder; give a folder that from_pretrained loads, or a name on the hub"),
        (folders["empty"], "cannot be loaded: "),
        (folders["text"], "transformers has no image classifier of the kind bert; choose an image model"),
        (folders["pickled"], "cannot be loaded: "),
        (folders["torn"], "cannot be loaded: "),
        (folders["odd"], "cannot be loaded: its MobileViTImageProcessorPil does more to images than resize, scale and"),
        (folders["json"], "cannot be loaded: "),
        (folders["lacks"], "its weights do not fit its config: no resnet.encoder.stages.1.layers.1."),
        (folders["code"], "cannot be loaded: "),
    ]
    for folder, told in cases:
        with pytest.raises(UserError) as caught:
            load_vision(str(folder), load_processor(str(folder)), label_names=NAMES)
        [line] = caught.value.lines
        assert line.startswith(f"--model_name_or_path: {str(folder)!r}: {told}") and "\n" not in line
    assert not (tmp_path / "ran").exists()  # a folder's own code is not run
    with pytest.raises(UserError, match="a pipeline cannot cut it; take a setup without pipeline"):
        load_processor("google/vit-base-patch16-224", stages=2)  # before it is asked for
