"""The pipeline: masks through stages, shared weights, and cuts that are refused."""

from __future__ import annotations

from typing import Any

import small
import torch
import torch.distributed as dist
from small import Chain, prepare, train_loader, weights
from torch import Tensor, nn

from toolkit.models import cross_entropy
from toolkit.models.bert import random_bert

PIPELINE = ("pipeline x2",)
BOTH = ("single x1", "pipeline x2")


def masked(strategy: str) -> list[float]:
    """A small BERT over rows with real padding: the int64 mask travels from stage to stage."""
    random = torch.Generator().manual_seed(2)
    lengths = (9, 3, 5, 9, 2, 7, 4, 8)
    ids = torch.randint(1, 100, (8, 9), generator=random)
    mask = torch.tensor([[1] * length + [0] * (9 - length) for length in lengths])
    rows = [({"input_ids": ids[n] * mask[n], "attention_mask": mask[n]}, n % 2) for n in range(8)]
    engine = prepare(
        strategy, lambda: random_bert(2), cross_entropy, lambda g: torch.optim.AdamW(g, lr=1e-3), train_batch_size=8
    )
    lost = small.losses(engine, train_loader(engine, rows), 4)
    engine.close()
    return lost


class Scale(nn.Module):
    """(x, mask) -> (x * weight, mask): a layer that passes a mask of any type on."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))

    def forward(self, inputs: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return inputs[0] * self.weight, inputs[1]


class MaskedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 2)

    def forward(self, inputs: tuple[Tensor, Tensor]) -> Tensor:
        return self.linear(inputs[0] * inputs[1])


class TwoInputs(Chain):
    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return super().forward((x, mask))


def mask_types(strategy: str) -> dict[str, list[float]]:
    left = {}
    for dtype in (torch.bool, torch.int64):
        rows = [(torch.ones(4) * n, torch.tensor([1, 1, 0, n % 2]).to(dtype), n % 2) for n in range(4)]
        engine = prepare(strategy, lambda: TwoInputs(Scale(), MaskedHead()), cross_entropy, train_batch_size=4)
        left[str(dtype)] = small.losses(engine, train_loader(engine, rows), 3)
        engine.close()
    return left


class Tied(nn.Module):
    """Embedding -> hidden layers -> logits by the embedding's own weight."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(12, 6)
        self.hidden = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(2))
        self.head = nn.Linear(6, 12, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        for layer in self.pipeline_layers():
            ids = layer(ids)
        return ids

    def pipeline_layers(self) -> list[nn.Module]:
        return [self.embedding, *self.hidden, self.head]


def tied(strategy: str) -> dict[str, Any]:
    """Three steps: losses, norms, and each stage's own copy of the shared weight after each."""
    model = None

    def model_fn() -> nn.Module:
        nonlocal model
        model = Tied()
        return model

    values = {"train_batch_size": 8, "max_grad_norm": 0.5, "partition": "uniform"}
    engine = prepare(strategy, model_fn, cross_entropy, lambda g: torch.optim.AdamW(g, lr=1e-2), **values)
    loader = train_loader(engine, [(torch.tensor(n % 12), (3 * n) % 12) for n in range(24)])
    lost, norms, copies = [], [], []
    for batches in small.steps(engine, loader, 3):
        stats = engine.train_step(batches)
        lost.append(stats.loss.item())
        norms.append(stats.grad_norm.item())
        assert model is not None
        own = model.embedding if engine.setup.rank == 0 else model.head
        copies.append(own.weight.detach().flatten().tolist())
    left = {
        "losses": lost,
        "norms": norms,
        "copies": copies,
        "weights": weights(engine),
        "names": list(weights(engine)),
    }
    engine.close()
    return left | {"obtained": engine.obtained}


def ranges(strategy: str) -> dict[str, Any]:
    """5 layers on 2 stages, each kind of cut."""
    left = {}
    for partition in ("uniform", "parameters", "type:linear"):
        engine = prepare(
            strategy,
            Chain(*(nn.Linear(4, 4) for _ in range(5))),
            cross_entropy,
            train_batch_size=4,
            partition=partition,
        )
        left[partition] = engine.obtained["layers"]
        engine.close()
    return left


def frozen(strategy: str) -> dict[str, Any]:
    """The first three of five layers are frozen (F38): cut by what trains, both stages train."""

    def model_fn() -> nn.Module:
        model = Chain(*(nn.Linear(4, 4) for _ in range(5)))
        for layer in list(model)[:3]:
            layer.requires_grad_(False)
        return model

    values: dict[str, Any] = {"train_batch_size": 4, "partition": "parameters"}
    engine = prepare(strategy, model_fn, cross_entropy, **values)
    rows = [(torch.randn(4, generator=torch.Generator().manual_seed(n)), n % 4) for n in range(8)]
    lost = small.losses(engine, train_loader(engine, rows), 4)
    left = {"losses": lost, "weights": weights(engine), "layers": engine.obtained.get("layers")}
    engine.close()
    return left


def refused(strategy: str) -> dict[str, Any]:
    """Cuts that no stage can train."""

    class Forgets(Chain):
        def pipeline_layers(self) -> list[nn.Module]:
            return list(self)[:2]

    cases: dict[str, tuple[nn.Module, str]] = {
        "one layer": (Chain(nn.Linear(4, 2)), "parameters"),
        "no layers named": (nn.Linear(4, 2), "parameters"),
        "frozen stage": (Chain(*(nn.Linear(2, 2) for _ in range(4))), "uniform"),
        "stage without parameters": (Chain(nn.Linear(4, 2), nn.Linear(2, 2), nn.Tanh(), nn.Tanh()), "uniform"),
        "parameter left out": (Forgets(*(nn.Linear(2, 2) for _ in range(3))), "uniform"),
        "no such type": (Chain(nn.Linear(4, 2), nn.Linear(2, 2)), "type:nosuch"),
    }
    cases["frozen stage"][0][:2].requires_grad_(False)  # type: ignore[index]
    left: dict[str, Any] = {}
    for name, (model, partition) in cases.items():
        try:
            prepare(strategy, model, cross_entropy, train_batch_size=4, partition=partition).close()
            left[name] = "taken"
        except small.toolkit.UserError as error:
            left[name] = error.lines
    return left


def timeouts(strategy: str) -> list[str]:
    """Of every process group, DeepSpeed's included."""
    engine = prepare(strategy, small.identity(2), cross_entropy, train_batch_size=4)
    backends = [pg._get_backend(torch.device("cpu")) for pg in dist.distributed_c10d._world.pg_map]
    engine.close()
    return sorted({str(backend.options._timeout) for backend in backends})


CHECKS = {
    "masked": (masked, BOTH),
    "mask_types": (mask_types, BOTH),
    "tied": (tied, BOTH),
    "ranges": (ranges, PIPELINE),
    "frozen": (frozen, BOTH),
    "refused": (refused, PIPELINE),
    "timeouts": (timeouts, PIPELINE),
}
