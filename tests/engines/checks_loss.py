"""The loss of a global batch with class weights and label smoothing, however it is split."""

from __future__ import annotations

from typing import Any

import small
import torch
from small import ALL, Chain, linear, prepare, steps, weights
from torch import nn

import toolkit
from toolkit.class_weights import row_weights
from toolkit.data.loader import TrainLoader, collate_rows
from toolkit.data.sampler import Sampler

ROWS, BATCH, CLASSES = 10, 8, [3.0, 0.5, 1.0]  # a second batch of two rows: padding in every rank
LABELS = [row % 3 for row in range(ROWS)]
SMOOTHING = 0.2


def inputs() -> torch.Tensor:
    return torch.randn(ROWS, 4, generator=torch.Generator().manual_seed(3))


def class_weighted(strategy: str) -> dict[str, Any]:
    """Four steps of SGD from weights 0 over two epochs, global batches of 8 and 2 rows in micro-batches of 2."""

    def model_fn() -> nn.Module:
        return Chain(linear(torch.eye(4)), linear(torch.zeros(3, 4)))

    ranks = 1 if strategy in ("single", "pipeline") else small.WORLD
    engine = prepare(
        strategy,
        model_fn,
        toolkit.cross_entropy,
        train_batch_size=BATCH,
        gradient_accumulation_steps=4 // ranks,
        label_smoothing_factor=SMOOTHING,
        class_weights=CLASSES,
    )
    setup = engine.setup
    data = toolkit.Data(list(zip(inputs(), LABELS, strict=True)), labels=LABELS, label_names=["a", "b", "c"])
    loader = TrainLoader(
        data.train,
        collate_rows,
        Sampler(ROWS, BATCH, setup.seed),
        micro_batch_size=setup.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        rank=engine.rank,
        size=engine.size,
        row_weights=row_weights(setup.class_weights, data),
    )
    losses = []
    for batches in steps(engine, loader, 4):
        engine.set_lr(0.5)
        losses.append(engine.train_step(batches).loss.item())
    left = {"losses": losses, "weights": weights(engine)}
    engine.close()
    return left


def own_loss(strategy: str) -> None:
    """Refused: how a loss of one's own smooths is not known."""

    def loss_fn(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return toolkit.cross_entropy(logits, targets)

    prepare(strategy, lambda: Chain(linear(torch.eye(4))), loss_fn, train_batch_size=2, label_smoothing_factor=0.1)


CHECKS = {"class_weighted": (class_weighted, ALL), "own_loss": (own_loss, ("ddp x2",))}
