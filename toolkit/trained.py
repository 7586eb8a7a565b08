"""A trained classifier, read back from what a run or an export left.

Nothing is unpickled and no code of a model's folder is run; nothing is fetched from the hub.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from toolkit.checkpoint.files import ABOUT
from toolkit.checkpoint.reader import find, newest_whole
from toolkit.data.text import longest
from toolkit.errors import UserError, fault

GIVEN: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@dataclass
class Model:
    """A classifier in fp32 on its device, the name of each class, and how a row becomes its input."""

    module: nn.Module
    label_names: list[str]
    preprocessing: dict[str, Any]  # as `Data.preprocessing`; a column that is None is guessed
    device: torch.device
    tokenizer: Any = None


def load(path: Path) -> Model:
    """The model of an export, a checkpoint, an output folder, or a local `from_pretrained` folder, ready to predict.

    Raises:
        UserError: there is none, it is damaged, or it is neither the CNN nor a classifier of transformers.
    """
    if not path.is_dir():
        raise UserError(fault("MODEL", str(path), "no such folder", "give an export, a checkpoint or a run's folder"))
    folder = newest_whole(path).folder if find(path) else path
    about: dict[str, Any] = {}
    if (folder / ABOUT).is_file():
        try:
            about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
            told, data = dict(about.get("model") or {}), dict(about.get("data") or {})
        except (OSError, ValueError, TypeError, AttributeError) as error:
            reason = f"{ABOUT} is damaged ({error})"
            raise UserError(fault("MODEL", str(folder), reason, "export it again")) from error
    else:
        told, data = {}, {}
    if (folder / "config.json").is_file():
        return _pretrained(folder, data)
    if not about:
        reason = f"neither {ABOUT} nor config.json in it"
        raise UserError(fault("MODEL", str(path), reason, "give an export, a checkpoint or a run's folder"))
    if told.get("class") == "CNN" and data.get("kind") == "image" and isinstance(told.get("arguments"), dict):
        return _cnn(folder, told["arguments"], data)
    reason = f"a {told.get('class') or 'model'} of your own, or rows of your own: how to build it is not known here"
    remedy = "load its safetensors files into it with load_state_dict"
    raise UserError(fault("MODEL", str(folder), reason, remedy))


def _cnn(folder: Path, arguments: dict[str, Any], data: dict[str, Any]) -> Model:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    from toolkit.models.cnn import CNN

    files = sorted(folder.glob("model*.safetensors"))
    try:
        names = [str(name) for name in data.pop("label_names")]
        module = CNN(**arguments).eval()
        module.load_state_dict({name: tensor for file in files for name, tensor in load_file(file).items()})
    except (OSError, SafetensorError, RuntimeError, TypeError, ValueError, KeyError) as error:
        raise _not_loaded(folder, error) from error
    device = _device()
    return Model(module.to(device), names, data, device)


def _pretrained(folder: Path, data: dict[str, Any]) -> Model:
    """A folder in the form of `from_pretrained`; `data` is empty where no run of ours has left it."""
    from safetensors import SafetensorError
    from transformers import AutoConfig

    if not any(folder.glob("*.safetensors")):
        reason = "has no safetensors file; pickled weights (pytorch_model.bin) may run code and are not read"
        remedy = "convert it: from_pretrained, then save_pretrained, if you trust it"
        raise UserError(fault("MODEL", str(folder), reason, remedy))
    try:
        config = AutoConfig.from_pretrained(folder, **GIVEN)
        kind, loads = classifier_of(config)
        _check_config(folder, config, kind, one_will_do=len(data.get("label_names") or ()) == 1)
        module, report = loads.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            output_loading_info=True,
            ignore_mismatched_sizes=False,
            **GIVEN,
        )
        # transformers fills what a file lacks with random numbers.
        if missing := sorted(report["missing_keys"]):
            reason = f"its weights lack {', '.join(missing[:3])}: no trained {kind} classifier"
            raise UserError(fault("MODEL", str(folder), reason, "train it first"))
        module, preprocessing, tokenizer = (_image if kind == "image" else _text)(folder, data, module)
    except (OSError, ValueError, KeyError, ImportError, AttributeError, RuntimeError, SafetensorError) as error:
        raise _not_loaded(folder, error) from error
    names = [str(config.id2label[number]) for number in range(config.num_labels)]
    if len(data.get("label_names") or ()) == len(names):
        names = [str(name) for name in data["label_names"]]
    device = _device()
    return Model(module.to(device).eval(), names, preprocessing, device, tokenizer)


def _text(folder: Path, data: dict[str, Any], module: Any) -> tuple[Any, dict[str, Any], Any]:
    from transformers import AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder, **GIVEN), module.config
    if len(tokenizer) <= len(set(tokenizer.all_special_ids)):  # transformers makes an empty one where there is none
        raise UserError(fault("MODEL", str(folder), "has no tokenizer", "save the tokenizer into the folder"))
    if len(tokenizer) > config.vocab_size:
        reason = f"its tokenizer has {len(tokenizer)} words, the model {config.vocab_size}"
        raise UserError(fault("MODEL", str(folder), reason, "put the model's own tokenizer there"))
    if tokenizer.pad_token_id is None:
        raise UserError(fault("MODEL", str(folder), "its tokenizer has no padding token", "give it one"))
    most = min(longest(tokenizer), getattr(config, "max_position_embeddings", None) or longest(tokenizer))
    preprocessing = {
        "kind": "text",
        "text_column_name": data.get("text_column_name"),
        "text_pair_column_name": data.get("text_pair_column_name"),
        "max_length": data.get("max_length", most),
    }
    return module, preprocessing, tokenizer


def _image(folder: Path, data: dict[str, Any], module: Any) -> tuple[Any, dict[str, Any], Any]:
    from toolkit.models.vision import read_processor, with_processor

    processor = read_processor(folder, module.config, **GIVEN)
    if processor is None:
        raise UserError(fault("MODEL", str(folder), "has no preprocessor_config.json", "save one into the folder"))
    preprocessing = {
        "kind": "image",
        "image_column_name": data.get("image_column_name"),
        "channels": processor.channels,
        "image_size": list(processor.size),
        "resize": True,
    }
    return with_processor(module, processor), preprocessing, None


def classifier_of(config: Any) -> tuple[str, Any]:
    """What a model of this config classifies, "image" or "text", and the class of transformers that loads it.

    Of a model that can do both its architecture decides.
    """
    from transformers import (
        MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING,
        AutoModelForImageClassification,
        AutoModelForSequenceClassification,
    )

    from toolkit.models.vision import is_image_classifier

    both = is_image_classifier(config) and type(config) in MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING
    if "ImageClassification" in str(config.architectures) if both else is_image_classifier(config):
        return "image", AutoModelForImageClassification
    return "text", AutoModelForSequenceClassification


def _check_config(folder: Path, config: Any, kind: str, one_will_do: bool) -> None:
    kinds = config.architectures or ()
    wanted = "ImageClassification" if kind == "image" else "SequenceClassification"
    if kinds and not any(wanted in each for each in kinds):
        raise UserError(fault("MODEL", str(folder), f"a {kinds[0]} is no {kind} classifier", "train it as one first"))
    if config.num_labels < 2 - one_will_do or config.problem_type not in (None, "single_label_classification"):
        reason = "gives numbers or several labels a row, not one of two or more classes"
        raise UserError(fault("MODEL", str(folder), reason, "give a classifier with one label a row"))


def _not_loaded(folder: Path, error: Exception) -> UserError:
    reason = " ".join(str(error).split())[:300] or type(error).__name__
    return UserError(fault("MODEL", str(folder), f"cannot be loaded: {reason}", "export it again"))


def _device() -> torch.device:
    """The first GPU, unless the CPU is asked for as in training."""
    use_cpu = os.environ.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes", "y", "t", "on")
    return torch.device("cuda" if torch.cuda.is_available() and not use_cpu else "cpu")
