"""The optimizer step: clipping, learning rate, accumulation, epochs, shards, padding."""

from __future__ import annotations

from typing import Any

import small
import torch
from small import ALL, ALONE, DATA_PARALLEL, Add, Chain, linear, prepare, train_loader, weights
from torch import Tensor, nn

from toolkit.models import cnn
from toolkit.models.bert import random_bert
from toolkit.optim import lr_at


def clipped(strategy: str, max_grad_norm: float) -> dict[str, Any]:
    """One step from weights 0, x ones(2, 4), target 100: a gradient of -200 in each of 4 weights, norm 400."""

    def model_fn() -> nn.Module:
        first = linear(torch.zeros(1, 4))
        # The second layer's exact gradient is 0, so the first must move as it does alone.
        return Chain(first, linear([[1.0]])) if strategy == "pipeline" else first

    engine = prepare(strategy, model_fn, max_grad_norm=max_grad_norm, train_batch_size=2)
    loader = train_loader(engine, [(torch.ones(4), 100.0)] * 2)
    stats = engine.train_step(next(loader.epoch(0)))
    left = {"weights": weights(engine), "grad_norm": stats.grad_norm.item(), "loss": stats.loss.item()}
    engine.close()
    return left


def schedules(strategy: str) -> dict[str, Any]:
    """Gradient exactly 1: the weight's movement is the learning rate. 1/(1+s) over 3 updates; linear over 10."""
    moved: dict[str, Any] = {}
    for name, number in (("inverse", 4), ("linear", 11)):

        def model_fn() -> nn.Module:
            return Chain(linear([[0.0]]), Add())

        engine = prepare(strategy, model_fn, lambda outputs, targets: -outputs[:, 0], train_batch_size=4)
        loader = train_loader(engine, [(torch.ones(1), 0)] * 8)
        rates, at = [], [0.0]
        for batches in small.steps(engine, loader, number):
            if name == "inverse":
                rate = 1 / (1 + engine.updates)
            else:
                rate = lr_at(engine.updates, schedule="linear", learning_rate=1.0, num_warmup_steps=0, total_steps=10)
            engine.set_lr(rate)
            rates.append(rate)
            engine.train_step(batches)
            at.append(weights(engine)["0.weight"][0])
        moved[name] = {"rates": rates, "moved": [b - a for a, b in zip(at, at[1:], strict=False)]}
        moved[name]["updates"] = engine.updates
        engine.close()
    return moved


def accumulated(strategy: str) -> dict[str, Any]:
    """20 samples, gradient exactly -1 each, global batches of 8: two full, the last of 4, over two epochs."""

    def model_fn() -> nn.Module:
        return Chain(linear([[0.0]]), Add())

    values = {"train_batch_size": 8, "gradient_accumulation_steps": 4}
    engine = prepare(strategy, model_fn, lambda outputs, targets: -outputs[:, 0], **values)
    loader = train_loader(engine, [(torch.ones(1), number) for number in range(20)])
    after, ids = [], []
    for epoch in (0, 1):
        for index, batches in enumerate(loader.epoch(epoch)):
            taken = list(batches) if engine.reads_batches else []
            engine.train_step(iter(taken))
            after.append(weights(engine)["0.weight"][0])
            real = [i for batch in taken for i, w in zip(batch.ids.tolist(), batch.weights.tolist(), strict=True) if w]
            ids.append({"epoch": epoch, "index": index, "ids": real, "micro_batches": len(taken)})
    left = {"after": after, "updates": engine.updates, "steps_per_epoch": len(loader), "ids": ids}
    engine.close()
    return left


def shares(strategy: str) -> dict[str, Any]:
    """16 samples, 4 a rank and step: the ids that each rank's engine reads, in three epochs."""
    engine = prepare(strategy, small.identity(2), lambda o, t: o.sum(1), train_batch_size=4 * small.WORLD)
    loader = train_loader(engine, [(torch.zeros(2), number) for number in range(16)])
    epochs = [[i for batches in loader.epoch(e) for batch in batches for i in batch.ids.tolist()] for e in range(3)]
    left = {"rank": engine.rank, "size": engine.size, "steps": len(loader), "epochs": epochs}
    engine.close()
    return left


class Embed(nn.Module):
    """int64 [B, T] -> [B, T, 8]; id 0 is padding and gives zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)

    def forward(self, ids: Tensor) -> Tensor:
        return self.embedding(ids)


class SumHead(nn.Module):
    """[B, T, 8] -> [B, 3]."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 3)

    def forward(self, hidden: Tensor) -> Tensor:
        return self.linear(hidden.tanh().sum(1))


def pad(rows: list[Any]) -> tuple[tuple[Tensor], Tensor]:
    inputs = nn.utils.rnn.pad_sequence([row[0] for row in rows], batch_first=True)
    return (inputs,), torch.tensor([row[1] for row in rows])


def uneven(strategy: str) -> dict[str, Any]:
    """15 rows of 2 to 16 tokens; steps of 8 and 7 rows in 2 micro-batches of 4 (2 ranks x 4 under DDP), two epochs."""

    def model_fn() -> nn.Module:
        return Chain(Embed(), SumHead())

    random = torch.Generator().manual_seed(7)
    rows = [(torch.randint(1, 20, (2 + number,), generator=random), number % 3) for number in range(15)]
    values = {"train_batch_size": 8, "gradient_accumulation_steps": 1 if strategy in ("single", "ddp") else 2}
    engine = prepare(strategy, model_fn, cross_entropy, lambda g: torch.optim.SGD(g, lr=0.1, momentum=0.9), **values)
    loader = train_loader(engine, rows, pad, lengths=range(2, 17))
    shapes, seen, lost = [], set(), []
    for batches in small.steps(engine, loader, 4):
        taken = list(batches)
        shapes.append([list(batch.inputs[0].shape) for batch in taken])
        seen |= {i for batch in taken for i in batch.ids[batch.weights > 0].tolist()}
        lost.append(engine.train_step(iter(taken)).loss.item())
    left = {"losses": lost, "weights": weights(engine), "shapes": shapes, "seen": sorted(seen)}
    engine.close()
    return left


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(outputs, targets, reduction="none")


def checkpointed(strategy: str) -> dict[str, list[float]]:
    """Losses of 3 steps of both models, with activations kept and recomputed."""
    random = torch.Generator().manual_seed(1)
    images = [(torch.randint(0, 256, (1, 8, 8), generator=random, dtype=torch.uint8), n % 4) for n in range(16)]
    tokens = torch.randint(1, 100, (16, 6), generator=random)
    mask = torch.ones(6, dtype=torch.int64)
    texts = [({"input_ids": row, "attention_mask": mask}, n % 2) for n, row in enumerate(tokens)]
    left = {}
    for model, rows in (("cnn", images), ("bert", texts)):
        for again in (False, True):

            def model_fn(model: str = model) -> Any:
                return cnn.CNN(1, 8, 4, width=0.25, activation="gelu") if model == "cnn" else random_bert(2)

            engine = prepare(
                strategy,
                model_fn,
                cross_entropy,
                lambda groups: torch.optim.AdamW(groups, lr=1e-2),
                train_batch_size=8,
                gradient_checkpointing=again,
            )
            left[f"{model} {'recomputed' if again else 'kept'}"] = small.losses(engine, train_loader(engine, rows), 3)
            engine.close()
    return left


def scalar_loss(strategy: str) -> Any:
    engine = prepare(strategy, small.identity(2), lambda outputs, targets: outputs.mean(), train_batch_size=4)
    try:
        small.losses(engine, train_loader(engine, [(torch.ones(2), 0)] * 4), 1)
    finally:
        engine.close()


CHECKS = {
    "unclipped": (lambda strategy: clipped(strategy, 0.0), (*ALL, *ALONE)),
    "clipped": (lambda strategy: clipped(strategy, 1.0), (*ALL, *ALONE)),
    "schedules": (schedules, ALL),
    "accumulated": (accumulated, (*ALL, *ALONE)),
    "shares": (shares, ALL),
    "uneven": (uneven, ALL),
    "checkpointed": (checkpointed, ALL),
    "scalar_loss": (scalar_loss, DATA_PARALLEL),
}
