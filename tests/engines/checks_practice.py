"""Optimizers that every setup shares, those of whole layers, and layers that do not train."""

from __future__ import annotations

from functools import partial
from typing import Any

import small
import torch
from checks_steps import cross_entropy
from small import ALL, Add, Chain, built, linear, prepare, train_loader, weights
from torch import Tensor, nn
from torch._dynamo.utils import counters

from toolkit.data.loader import collate_rows
from toolkit.models import cnn
from toolkit.models.bert import random_bert
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


def frozen(strategy: str) -> dict[str, Any]:
    """Of both models with frozen layers: losses of 4 steps, and whether each tensor is bit for bit what it was."""
    left: dict[str, Any] = {}
    for name, freeze in (
        ("cnn", ["stem", "hidden.linear.bias"]),
        ("bert", ["bert.embeddings", "bert.encoder.layer.0"]),
    ):
        values: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-2, "weight_decay": 0.1, "freeze": freeze}
        optimizer_fn = optimizer_from(built(strategy, **values))
        engine = prepare(strategy, partial(model_of, name), cross_entropy, optimizer_fn, train_batch_size=8, **values)
        before = {tensor: value.clone() for tensor, value in engine.named_state()}
        found = small.losses(engine, train_loader(engine, rows_of(name)), 4)
        same = {tensor: torch.equal(before[tensor], value) for tensor, value in engine.named_state()}
        trained = {tensor: row[2] for tensor, row in engine.layout().items()}
        left[name] = {"losses": found, "same": same, "trained": trained}
        engine.close()
    return left


def idle_stage(strategy: str) -> None:
    """A pipeline's first stage with nothing to train."""
    model = Chain(*(nn.Linear(2, 2) for _ in range(4)))
    prepare(strategy, model, freeze=["0", "1"], partition="uniform", train_batch_size=4)


def shared(strategy: str) -> list[float]:
    """Losses where the first and the last layer share a matrix that is frozen."""

    def model_fn() -> nn.Module:
        layers = [nn.Linear(4, 4) for _ in range(4)]
        layers[3].weight = layers[0].weight
        return Chain(*layers)

    engine = prepare(strategy, model_fn, freeze=["3.weight"], partition="uniform", train_batch_size=4)
    left = small.losses(engine, train_loader(engine, [(torch.ones(4), 1.0)] * 4), 2)
    engine.close()
    return left


def model_of(name: str) -> Any:
    return cnn.CNN(1, 8, 4, width=0.25, activation="gelu", pooling="avg") if name == "cnn" else random_bert(2)


def rows_of(name: str) -> list[Any]:
    """16 images [1, 8, 8], or texts of 6 tokens."""
    random = torch.Generator().manual_seed(1)
    if name == "cnn":
        return [(torch.randint(0, 256, (1, 8, 8), generator=random, dtype=torch.uint8), n % 4) for n in range(16)]
    mask = torch.ones(6, dtype=torch.int64)
    texts = torch.randint(1, 100, (16, 6), generator=random)
    return [({"input_ids": text, "attention_mask": mask}, n % 2) for n, text in enumerate(texts)]


def compiled(strategy: str) -> dict[str, Any]:
    """Losses of 4 steps, eager and compiled: under DDP over images, else over texts of 4 to 15 tokens. Each graph takes
    seconds to compile, so no check has both models."""
    images = strategy == "ddp"
    rows, collate = (rows_of("cnn"), collate_rows) if images else (uneven_texts(), pad)
    model_fn = partial(model_of, "cnn") if images else partial(random_bert, 2, num_hidden_layers=1)
    left: dict[str, Any] = {}
    for name in ("eager", "compiled"):
        values: dict[str, Any] = {"optimizer": "adamw", "learning_rate": 1e-3, "torch_compile": name == "compiled"}
        optimizer_fn = optimizer_from(built(strategy, **values))
        engine = prepare(strategy, model_fn, cross_entropy, optimizer_fn, train_batch_size=4, **values)
        graphs = counters["stats"]["unique_graphs"]
        losses = small.losses(engine, train_loader(engine, rows, collate), 4)
        graphs = counters["stats"]["unique_graphs"] - graphs
        left[name] = {"losses": losses, "graphs": graphs, "names": [each for each, _ in engine.named_state()]}
        if images:
            left[name] |= engine.evaluate(small.eval_loader(engine, rows, 2, collate)) or {}
        engine.close()
    return left


def uneven_texts() -> list[Any]:
    random = torch.Generator().manual_seed(1)
    return [(torch.randint(1, 100, (4 + 7 * n % 12,), generator=random), n % 2) for n in range(16)]


def pad(rows: list[Any]) -> tuple[dict[str, Tensor], Tensor]:
    ids = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": (ids > 0).long()}, torch.tensor([row[1] for row in rows])


CHECKS = {
    "compiled": (compiled, ("single x1", "ddp x2")),
    "nesterov": (nesterov, ALL),
    "layerwise": (layerwise, ("single x1", "ddp x2", *SHARDED)),
    "frozen_by_name": (frozen, (*ALL, "zero2_offload x2")),
    "idle_stage": (idle_stage, ("pipeline x2",)),
    "shared_frozen": (shared, ("single x1", "pipeline x2")),
}
