"""A pipeline's stages against the layers of the model, where those can be told without building it."""

import json
import os
from argparse import Namespace

from toolkit.errors import fault
from toolkit.setup.batch import Given


def layer_faults(arguments: Namespace, stages: Given) -> list[str]:
    """A line where the model has fewer layers than stages.

    The script's own model is as deep as `script_layers` says; a BERT has embeddings and a head around its encoder's.
    """
    name = getattr(arguments, "model_name_or_path", None)
    layers, model = getattr(arguments, "script_layers", None), "the script's model"
    if name is not None:
        layers, model = _bert_layers(name), name
    if stages.value == 1 or layers is None or layers >= stages.value:
        return []
    return [fault(stages.origin, stages.value, f"{model} has {layers} layers, fewer than stages", "use fewer stages")]


def _bert_layers(name: str) -> int | None:
    """None for what is no local BERT: the run refuses it once the model is there."""
    try:
        with open(os.path.join(name, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        return int(config["num_hidden_layers"]) + 2 if config["model_type"] == "bert" else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
