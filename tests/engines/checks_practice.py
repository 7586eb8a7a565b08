"""Optimizers that every setup shares, and those that only whole layers have."""

from __future__ import annotations

from typing import Any

import small
import torch
from small import ALL, Add, Chain, built, linear, prepare, train_loader, weights
from torch import nn

from toolkit.optim import optimizer_from

SHARDED = ("zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2", "pipeline x2")


class Lamb(torch.optim.SGD):
    """The trust ratio of LAMB, over a whole parameter."""

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in (p for p in group["params"] if p.grad is not None):
                with torch.no_grad():
                    parameter -= group["lr"] * parameter.grad * parameter.norm() / parameter.grad.norm().clamp_min(1e-6)


def nesterov(strategy: str) -> list[float]:
    """Gradient exactly -1, learning rate 1, momentum 0.5: the weight after each of three steps."""
    values: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1.0, "momentum": 0.5, "nesterov": True}
    optimizer_fn = optimizer_from(built(strategy, **values))
    model = Chain(linear([[0.0]]), Add())
    engine = prepare(strategy, model, lambda outputs, _: -outputs[:, 0], optimizer_fn, train_batch_size=4, **values)
    loader = train_loader(engine, [(torch.ones(1), 0)] * 4)
    after = []
    for batches in small.steps(engine, loader, 3):
        engine.train_step(batches)
        after.append(weights(engine)["0.weight"][0])
    engine.close()
    return after


def layerwise(strategy: str) -> float:
    """Loss of a second step with LAMB, where it is not refused."""

    def model_fn() -> nn.Module:
        return Chain(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1))

    engine = prepare(strategy, model_fn, optimizer_fn=lambda groups: Lamb(groups, lr=0.1), train_batch_size=4)
    left = small.losses(engine, train_loader(engine, [(torch.ones(4), 1.0)] * 4), 2)
    engine.close()
    return left[1]


CHECKS = {"nesterov": (nesterov, ALL), "layerwise": (layerwise, ("single x1", "ddp x2", *SHARDED))}
