"""What an import reads: pickles of tensors and plain values, through torch's restricted unpickler alone."""

from __future__ import annotations

import pickle
import re
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import Tensor

from toolkit.errors import UserError, fault

# They stand in DeepSpeed's files beside what is read here.
HARMLESS = (
    "deepspeed.runtime.fp16.loss_scaler.DynamicLossScaler",
    "deepspeed.runtime.fp16.loss_scaler.LossScaler",
    "deepspeed.runtime.zero.config.ZeroStageEnum",
    "deepspeed.utils.tensor_fragment.fragment_address",
)
COPY = "copy it again from where it was written"

Shape = tuple[int, ...]


@dataclass
class Found:
    """What was read: tensors as flat views of mapped files, in pieces, which take no memory until written."""

    kind: str
    step: int = 0
    updates: int = 0
    optimizer: str | None = None  # its class, where its settings tell
    weights: dict[str, tuple[Shape, list[Tensor]]] = field(default_factory=dict)  # shape, pieces in order
    states: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)  # parameter: state: pieces in order
    stepped: dict[str, float] = field(default_factory=dict)  # parameter: how often Adam has stepped it
    alone: str = ""  # why the weights come without optimizer state

    def add(self, name: str, state: str, pieces: list[Any]) -> None:
        if state == "step":
            self.stepped[name] = float(pieces[0])
        elif isinstance(pieces[0], Tensor):
            self.states.setdefault(name, {})[state] = pieces


class _Ignored:
    """Stands for a harmless class of DeepSpeed, and keeps nothing."""

    def __init__(self, *_: Any) -> None: ...

    def __setstate__(self, _: Any) -> None: ...


def load(path: Path) -> Any:
    """The tensors and plain values in a file of `torch.save`, mapped; no class in it is made, nothing is called."""
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch.load passes over a flipped bit
                raise zipfile.BadZipFile("checksum")
        with torch.serialization.safe_globals([(_Ignored, name) for name in HARMLESS]):
            return torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    except OSError as error:
        refuse(path, f"cannot be read ({error.strerror or error})", COPY)
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        what = f"an object of {named[1]}" if named else "more than tensors and plain values"
        refuse(path, f"holds {what}, which could run code: not read", "save it again without")
    except Exception as error:  # bytes of any kind may come here
        refuse(path, f"is damaged, or older than torch.save's zip format ({type(error).__name__})", COPY)


def class_of(optimizer: Any) -> str | None:
    """SGD, Adam or AdamW, where the settings tell; those of other optimizers, and of DeepSpeed's own Adam, do not."""
    settings = optimizer["param_groups"][0] if isinstance(optimizer, dict) else {}
    if "dampening" in settings:
        return "SGD"
    decoupled = settings.get("decoupled_weight_decay") if "amsgrad" in settings else None
    return None if decoupled is None else "AdamW" if decoupled else "Adam"


def refuse(path: Path, reason: str, remedy: str) -> NoReturn:
    raise UserError(fault("SOURCE", str(path), reason, remedy))
