"""What the checks share: small models whose right values are known by hand, and their loaders."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import toolkit
from toolkit.data.batch import Batch
from toolkit.data.loader import EvalLoader, TrainLoader, collate_rows
from toolkit.data.sampler import Sampler
from toolkit.engines import Engine

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
DATA_PARALLEL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2")
ALL = (*DATA_PARALLEL, "pipeline x2")
ALONE = ("zero1 x1", "zero2 x1", "zero3 x1")
THREE = ("ddp x3", "zero1 x3", "zero2 x3", "zero3 x3", "pipeline x3")


class Chain(nn.Sequential):
    """Layers one after another, which a pipeline may cut between."""

    def pipeline_layers(self) -> list[nn.Module]:
        return list(self)


class Add(nn.Module):
    """x + b, b a single number that starts at 0."""

    def __init__(self) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.b


def linear(rows: Any) -> nn.Linear:
    """A linear layer without bias with these weights, [out, in]."""
    weight = torch.as_tensor(rows, dtype=torch.float32)
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    layer.weight.data = weight
    return layer


def identity(size: int) -> Chain:
    """Three layers that give their input [B, size] back."""
    return Chain(*(linear(torch.eye(size)) for _ in range(3)))


def sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=1.0)


def squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs[:, 0] - targets) ** 2


def prepare(
    strategy: str,
    model_fn: Callable[[], nn.Module] | nn.Module,
    loss_fn: Callable[[Any, Tensor], Tensor] = squared,
    optimizer_fn: Callable[[list[dict[str, Any]]], torch.optim.Optimizer] = sgd,
    **values: Any,
) -> Engine:
    return toolkit.prepare(model_fn, loss_fn, optimizer_fn, built(strategy, **values))


def built(strategy: str, **values: Any) -> toolkit.Setup:
    """The setup of `prepare`."""
    values = {"max_grad_norm": 0.0, "seed": 0, **values}
    return toolkit.Setup.build(strategy=strategy, rank=RANK, local_rank=RANK, world_size=WORLD, use_cpu=True, **values)


def train_loader(engine: Engine, rows: Sequence[Any], collate: Any = collate_rows, **options: Any) -> TrainLoader:
    setup = engine.setup
    return TrainLoader(
        rows,
        collate,
        Sampler(len(rows), setup.train_batch_size, setup.seed, **options),
        micro_batch_size=setup.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        rank=engine.rank,
        size=engine.size,
    )


def steps(engine: Engine, loader: TrainLoader, number: int) -> Iterator[Iterator[Batch]]:
    """The micro-batches of so many optimizer steps, over as many epochs as that takes."""
    epoch = 0
    while True:
        for batches in loader.epoch(epoch):
            if number == 0:
                return
            number -= 1
            yield batches
        epoch += 1


def losses(engine: Engine, loader: TrainLoader, number: int) -> list[float]:
    return [engine.train_step(batches).loss.item() for batches in steps(engine, loader, number)]


def eval_loader(
    engine: Engine, rows: Sequence[Any], batch_size: int, collate: Any = collate_rows, **options: Any
) -> Any:
    return EvalLoader(rows, collate, batch_size=batch_size, rank=engine.rank, size=engine.size, **options)


def weights(engine: Engine) -> dict[str, list[float]]:
    """Every tensor of the model by name, flat."""
    return {name: tensor.flatten().tolist() for name, tensor in engine.named_state()}
