"""Class weights and label smoothing: torch's own loss over the whole global batch, in every setup."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from toolkit.data.sampler import Sampler

ALL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "pipeline x2")
CLASSES = torch.tensor([3.0, 0.5, 1.0])


def by_hand() -> tuple[list[float], torch.Tensor]:
    """Losses and last weights [3, 4] of one loop over whole batches, weights 0 and SGD at 0.5 as checks_loss has them.

    Each sample's smoothed loss counts by the weight of its own class.
    """
    inputs = torch.randn(10, 4, generator=torch.Generator().manual_seed(3))
    labels, weight, losses = torch.arange(10) % 3, torch.zeros(3, 4, requires_grad=True), []
    loss_fn, first = nn.CrossEntropyLoss(reduction="none", label_smoothing=0.2), torch.eye(4, requires_grad=True)
    for step in range(4):
        ids = Sampler(10, 8, 0).global_batch(step // 2, step % 2)
        w = CLASSES[labels[ids]]
        loss = (w * loss_fn(inputs[ids] @ first.T @ weight.T, labels[ids])).sum() / w.sum()
        losses.append(loss.item())
        for parameter, gradient in zip((weight, first), torch.autograd.grad(loss, (weight, first)), strict=True):
            parameter.data -= 0.5 * gradient
    return losses, weight.detach()


@pytest.mark.parametrize("setup", ALL)
def test_the_mean_is_that_of_the_whole_global_batch(got: Callable[..., Any], setup: str) -> None:
    losses, weight = by_hand()
    for left in got("class_weighted", setup):
        assert left["losses"] == pytest.approx(losses, rel=3e-7)  # measured: 1.5e-7
        if "1.weight" in left["weights"]:
            found = torch.tensor(left["weights"]["1.weight"]).reshape(3, 4)
            assert torch.allclose(found, weight, rtol=0, atol=2e-7)  # measured: 9e-8


def test_without_smoothing_it_is_torchs_weighted_loss() -> None:
    """sum(w x loss) / sum(w) is what CrossEntropyLoss(weight=...) calls a mean."""
    logits, labels = torch.randn(6, 3), torch.tensor([0, 1, 2, 0, 0, 1])
    w = CLASSES[labels]
    ours = (w * nn.functional.cross_entropy(logits, labels, reduction="none")).sum() / w.sum()
    assert ours.item() == pytest.approx(nn.CrossEntropyLoss(weight=CLASSES)(logits, labels).item(), rel=1e-6)


def test_smoothing_in_a_loss_of_ones_own_is_refused(got: Callable[..., Any]) -> None:
    for refused in got("own_loss", "ddp x2"):
        (line,) = refused["refused"]
        assert (
            "label_smoothing_factor: 0.1: loss_fn takes no label_smoothing, as toolkit.cross_entropy does; give it"
            in line
        )
