"""Checkpoints as a run leaves them, written from a model at hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from toolkit.checkpoint.files import MANIFEST, record
from toolkit.checkpoint.save import write_alone
from toolkit.models.bert import random_bert
from toolkit.models.cnn import CNN

SHARD = "model-00001-of-00001.safetensors"
LABELS = ["bad", "fair", "good"]
WORDS = "[PAD] [UNK] [CLS] [SEP] [MASK] a b c d na null none 007 true good bad film".split()
IMAGE = {"kind": "image", "image_column_name": "image", "channels": 1, "image_size": [8, 6], "resize": False}
TEXT = {"kind": "text", "text_column_name": "text", "text_pair_column_name": None, "max_length": 10}


def cnn(**arguments: Any) -> CNN:
    """With moved statistics."""
    torch.manual_seed(0)
    model = CNN(1, (8, 6), 3, norm="batch", width=0.2, **arguments)
    images = torch.randint(0, 256, (16, 1, 8, 6), dtype=torch.uint8)
    for _ in range(3):
        model(images)
    _spread(model.eval().head.linear, model(images))
    return model


def bert() -> Any:
    torch.manual_seed(0)
    model = random_bert(len(LABELS), vocab_size=len(WORDS), max_position_embeddings=16).eval()
    _spread(model.classifier, model(torch.randint(5, len(WORDS), (16, 6))).logits)
    return model


def vision(kind: str, folder: Path, labels: int = 3) -> Any:
    """A small "resnet" or "vit" for RGB images of 16 x 16 pixels, with moved statistics, and its saved folder."""
    from transformers import ResNetConfig, ResNetForImageClassification, ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    told: dict[str, Any] = {"do_resize": True, "do_normalize": True, "resample": 2}
    model: Any
    if kind == "resnet":
        config: Any = ResNetConfig(
            embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic", num_labels=labels
        )
        model = ResNetForImageClassification(config)
        told |= {"image_processor_type": "ConvNextImageProcessor", "size": {"shortest_edge": 16}, "crop_pct": 0.875}
        told |= {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    else:
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        # Its own 0.02 suits a hidden size of 768; here it would give all images the same logits.
        config = ViTConfig(**sizes, image_size=16, patch_size=4, num_labels=labels, initializer_range=0.25)
        model = ViTForImageClassification(config)
        told |= {"image_processor_type": "ViTImageProcessor", "size": {"height": 16, "width": 16}}
        told |= {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    images = torch.randn(16, 3, 16, 16)
    for _ in range(3):
        model.train()(images)
    model.eval()
    _spread(model.classifier[1] if kind == "resnet" else model.classifier, model(images).logits)
    model.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(told))
    return model


def _spread(last: Any, logits: Tensor) -> None:
    """Let the classes be chosen about equally often: a fresh model gives every row the same."""
    with torch.no_grad():
        last.bias -= logits.mean(0)
        last.weight *= 5
        last.bias *= 5


def tokenizer() -> Any:
    from transformers import BertTokenizer

    return BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}, model_max_length=16)


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and saved buffers, a tied one by its first name."""
    first = {id(tensor): name for name, tensor in reversed(model.state_dict(keep_vars=True).items())}
    return {name: tensor for name, tensor in model.state_dict().items() if name in first.values()}


def write(
    folder: Path,
    model: nn.Module,
    *,
    data: dict[str, Any] | None = None,
    optimizer: Iterable[tuple[str, Tensor]] = (),
    with_tokenizer: bool = True,
    processor: Any = None,
) -> Path:
    """A checkpoint `folder`, with an image `processor` instead of the tokenizer; step-000123 is of step 123."""
    data = data or {**(TEXT if hasattr(model, "config") else IMAGE), "label_names": LABELS}
    told = {"class": type(model).__name__, "arguments": getattr(model, "arguments", None)}
    about = {"step": int(folder.name.rpartition("-")[2]), "epoch": 1, "index": 2, "model": told, "data": data}
    write_alone(folder, weights_of(model).items(), optimizer, about)
    if hasattr(model, "config"):
        model.config.save_pretrained(folder)
        if processor is not None:
            processor.save_pretrained(folder)
        elif with_tokenizer:
            tokenizer().save_pretrained(folder)
    seal(folder)
    return folder


def seal(folder: Path) -> None:
    """Make the manifest fit what is there."""
    files = {path.name: record(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}))


def edit(folder: Path, name: str, **changed: Any) -> None:
    """Change keys of a JSON file of a checkpoint, whose manifest then fits."""
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | changed))
    seal(folder)
