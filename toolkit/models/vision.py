"""Image classifiers of transformers, given their images as they were trained to see them.

transformers is imported where it is used: it takes seconds, and a wrong argument should be told before that.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.models.pretrained import checked_name, not_loaded, set_dropout
from toolkit.pixels import Scale

SIDE = 224  # pixels, where neither the model nor its image processor says a size
FILES = ("preprocessor_config.json", "processor_config.json")


@dataclass(frozen=True)
class Processor:
    """How images are prepared: all of `channels` (1 or 3) and resized to `size`, then (pixel / 255 - mean) / std."""

    channels: int
    size: tuple[int, int]  # height and width, in pixels
    mean: tuple[float, ...]  # [C]
    std: tuple[float, ...]  # [C]

    def save_pretrained(self, folder: str | Path) -> None:
        """Write a preprocessor_config.json that says just this to transformers."""
        told = {
            "image_processor_type": "ViTImageProcessor",
            "do_convert_rgb": self.channels == 3,
            "do_resize": True,
            "size": {"height": self.size[0], "width": self.size[1]},
            "resample": 2,  # bilinear
            "do_rescale": True,
            "rescale_factor": 1 / 255,
            "do_normalize": True,
            "image_mean": list(self.mean),
            "image_std": list(self.std),
        }
        Path(folder, FILES[0]).write_text(json.dumps(told, indent=2) + "\n", encoding="utf-8")


def load_processor(model_name_or_path: str, image_size: int | None = None, *, stages: int = 1) -> Processor:
    """The preparation that belongs to an image classifier; `image_size` (pixels a side) replaces its own.

    Raises:
        UserError: it is no image classifier or cannot be read, it prepares images in a way that is not understood, or
            the setup is a pipeline of several `stages`.
    """
    from transformers import AutoConfig

    where = checked_name(model_name_or_path)
    if stages > 1:
        reason = "an image model of transformers has no pipeline_layers(), so a pipeline cannot cut it"
        remedy = "take a setup without pipeline, or leave it out, which trains the CNN"
        raise UserError(fault("--model_name_or_path", where, reason, remedy))
    try:
        config = AutoConfig.from_pretrained(where, trust_remote_code=False)
        if not is_image_classifier(config):
            reason = f"transformers has no image classifier of the kind {config.model_type}"
            raise UserError(fault("--model_name_or_path", where, reason, "choose an image model"))
        processor = read_processor(where, config, trust_remote_code=False)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise not_loaded(where, error) from error
    if processor is None:
        channels, side = getattr(config, "num_channels", 3), getattr(config, "image_size", SIDE)
        size = (side, side) if isinstance(side, int) else tuple(side)
        processor = Processor(channels, size, (0.5,) * channels, (0.5,) * channels)
        say(f"{where} has no {FILES[0]}: its images are scaled to -1 .. 1 and resized to {size[0]} x {size[1]}")
    if processor.channels not in (1, 3):
        reason = f"takes images of {processor.channels} channels"
        raise UserError(fault("--model_name_or_path", where, reason, "choose a model for grey or RGB images"))
    if image_size is not None:
        processor = Processor(processor.channels, (image_size, image_size), processor.mean, processor.std)
    return processor


def read_processor(where: str | Path, config: Any, **given: Any) -> Processor | None:
    """What the image processor kept beside a model does to an image; None where there is none.

    Raises:
        OSError, ImportError: it cannot be read.
        ValueError: it does more than resize, scale and normalise.
    """
    from PIL import Image
    from transformers import AutoImageProcessor
    from transformers.utils.hub import has_file

    try:
        processor = AutoImageProcessor.from_pretrained(where, backend="pil", **given)
    except OSError:
        local = given.get("local_files_only", False)
        if any(has_file(where, name, local_files_only=local) for name in FILES):
            raise
        return None
    # Every kind of processor has attributes of its own; what they come to shows on images of one colour.
    shades = [0, 255, 50] if getattr(config, "num_channels", 3) == 1 else [(0, 0, 0), (255, 255, 255), (50, 100, 200)]
    mode = "L" if isinstance(shades[0], int) else "RGB"
    seen = [processor(Image.new(mode, (64, 64), shade), return_tensors="np")["pixel_values"][0] for shade in shades]
    height, width = seen[0].shape[1:]
    black, white, other = (values[:, height // 2, width // 2].astype(np.float64) for values in seen)
    std = 1 / (white - black)
    mean = -black * std
    if not (np.abs((np.array(shades[2]) / 255 - mean) / std - other) < 1e-4).all():
        raise ValueError(f"its {type(processor).__name__} does more to images than resize, scale and normalise them")
    # What float32 has left of the numbers in the file.
    return Processor(len(std), (height, width), *(tuple(np.round(numbers, 7).tolist()) for numbers in (mean, std)))


def load_vision(
    model_name_or_path: str, processor: Processor, *, label_names: Sequence[str], dropout: float | None = None
) -> Any:
    """An image classifier in fp32 for these labels, which its config then keeps, behind `with_processor`.

    A head for another number of classes is replaced, and a line says so. `dropout` replaces every dropout rate of its
    config, None keeps them. Parameters that the logits do not depend on are frozen, and told. Raises UserError if the
    model cannot be loaded, lacks weights, has no dropout to set, or takes no images of the processor's size.
    """
    from safetensors import SafetensorError
    from transformers import AutoConfig, AutoModelForImageClassification

    where, names = checked_name(model_name_or_path), list(label_names)
    try:
        config = AutoConfig.from_pretrained(
            where,
            id2label=dict(enumerate(names)),
            label2id={name: number for number, name in enumerate(names)},
            problem_type="single_label_classification" if len(names) > 1 else None,  # it wants two
            trust_remote_code=False,
        )
        if dropout is not None:
            set_dropout(config, dropout, where)
        # fp32 whatever the file has: transformers 5 loads in the file's own dtype, and precision is the setup's matter.
        model, report = AutoModelForImageClassification.from_pretrained(
            where,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            trust_remote_code=False,
            ignore_mismatched_sizes=True,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, ImportError, RuntimeError, SafetensorError) as error:
        raise not_loaded(where, error) from error
    _tell_new(where, model, report, len(names))
    model = with_processor(model, processor)
    _try(where, model, processor)
    return model


def is_image_classifier(config: Any) -> bool:
    """Whether transformers has an image classifier for this config."""
    from transformers import MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING

    return type(config) in MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING


def with_processor(model: Any, processor: Processor) -> Any:
    """Let a model take images as they come, uint8 [B, C, H, W], and scale them on its device; floats stay as they are.

    A hook: a module around the model would change its parameters' names.
    """
    scaled = Scale(processor.mean, processor.std)

    def scale(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        images, *rest = inputs
        if images.dtype == torch.uint8:
            images = scaled(images)
        return images.to(next(module.parameters()).dtype), *rest  # 16-bit weights take no fp32 images

    model.register_forward_pre_hook(scale)
    return model


def _tell_new(where: str, model: Any, report: dict[str, Any], classes: int) -> None:
    """Say which weights do not come from the model, which only the head's may be."""
    missing = sorted(report["missing_keys"])
    other = {name: (tuple(there), tuple(here)) for name, there, here in report["mismatched_keys"]}
    lacks = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    unlike = [f"{name} is {there}, not {here}" for name, (there, here) in other.items() if here[0] != classes]
    if lacks or unlike:
        reason = f"its weights do not fit its config: {', '.join([*(f'no {name}' for name in lacks), *unlike][:3])}"
        raise UserError(fault("--model_name_or_path", where, reason, "give a folder as save_pretrained leaves it"))
    if new := [*missing, *sorted(other)]:
        say(f"{where}: a new head for {classes} classes: {', '.join(new)} start at random, the rest is the model's")


def _try(where: str, model: Any, processor: Processor) -> None:
    """Put one image through: its size must do, and what the logits do not depend on is frozen, and told.

    Some models carry parameters for other tasks (DINOv2's mask, SigLIP's pooling): setups would treat them differently.
    """
    height, width = processor.size
    try:
        logits = model.eval()(torch.zeros(1, processor.channels, height, width, dtype=torch.uint8)).logits
    except (ValueError, RuntimeError) as error:
        reason = f"{where} takes no images of {height} x {width} pixels: {' '.join(str(error).split())[:200]}"
        raise UserError(fault("--image_size", height, reason, "leave it out for the model's own size")) from error
    nodes, reached = [logits.grad_fn], set()
    while nodes:
        if (node := nodes.pop()) is not None and node not in reached:
            reached.add(node)
            nodes += [other for other, _ in node.next_functions]
    used = {id(node.variable) for node in reached if hasattr(node, "variable")}
    idle = {name: parameter for name, parameter in model.named_parameters() if id(parameter) not in used}
    for parameter in idle.values():
        parameter.requires_grad_(False)
    if idle:
        more = f", ... ({len(idle)} in all)" if len(idle) > 3 else ""
        say(f"{where}: frozen, for its classes do not depend on them: {', '.join(list(idle)[:3])}{more}")
