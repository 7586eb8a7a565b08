"""Random states of this process as tensors, so that a resumed run draws what the uninterrupted one would have."""

from __future__ import annotations

import random

import numpy as np
import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """The generators of torch (CPU, and this rank's GPU), numpy and Python."""
    state = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["torch_cuda"] = torch.cuda.get_rng_state(device)
    _, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    state["numpy"] = torch.tensor([*keys.tolist(), position, has_gauss], dtype=torch.int64)  # type: ignore[union-attr]
    state["numpy_gauss"] = torch.tensor([gauss], dtype=torch.float64)
    version, numbers, gauss_next = random.getstate()
    state["python"] = torch.tensor([version, *numbers], dtype=torch.int64)
    state["python_gauss"] = torch.tensor([torch.nan if gauss_next is None else gauss_next], dtype=torch.float64)
    return state


def set_random_state(state: dict[str, Tensor], device: torch.device) -> None:
    """Put back what `random_state` gave."""
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "torch_cuda" in state:
        torch.cuda.set_rng_state(state["torch_cuda"], device)
    *keys, position, has_gauss = state["numpy"].tolist()
    np.random.set_state(("MT19937", np.array(keys, dtype=np.uint32), position, has_gauss, state["numpy_gauss"].item()))
    version, *numbers = state["python"].tolist()
    gauss = state["python_gauss"].item()
    random.setstate((version, tuple(numbers), None if gauss != gauss else gauss))
