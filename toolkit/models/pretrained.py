"""What the models of transformers have in common when they are loaded."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from toolkit.errors import UserError, fault

_DROPOUT = re.compile(r"(dropout|dropout_prob|dropout_rate|dropout_p|pdrop)$")  # keys of a config


def checked_name(model_name_or_path: str) -> str:
    """The name; UserError where it can only be a path and is none: the hub takes half a minute to say so."""
    if re.match(r"[./~]", model_name_or_path) and not Path(model_name_or_path).is_dir():
        remedy = "give a folder that from_pretrained loads, or a name on the hub"
        raise UserError(fault("--model_name_or_path", model_name_or_path, "no such folder", remedy))
    return model_name_or_path


def set_dropout(config: Any, dropout: float, where: str) -> None:
    """Set every dropout rate of a config; UserError where there is none and `dropout` is more than 0."""
    names = [name for name in config.to_dict() if _DROPOUT.search(name)]
    if not names and dropout > 0:
        reason = f"the config of {where} ({config.model_type}) has no dropout rate to set"
        raise UserError(fault("--dropout", dropout, reason, "leave it out, or choose another model"))
    for name in names:
        setattr(config, name, dropout)


def not_loaded(where: str, error: Exception) -> UserError:
    """The error line for a model that its library could not load."""
    reason = " ".join(str(error).split()) or type(error).__name__
    if len(reason) > 300:
        reason = reason[:300] + "..."
    if Path(where).exists():
        remedy = "give a folder that from_pretrained loads: config.json, weights, tokenizer or preprocessor_config.json"
    else:
        remedy = "no such folder here: check the spelling, or the network if it is a name on the hub"
    return UserError(fault("--model_name_or_path", where, f"cannot be loaded: {reason}", remedy))
