"""Evaluation and state: every sample once, sample-weighted loss, buffers, dropout, names."""

from __future__ import annotations

from typing import Any

import small
import torch
from small import ALL, ALONE, THREE, Chain, eval_loader, identity, prepare, train_loader
from torch import Tensor, nn

from toolkit.arguments import parse_arguments
from toolkit.metrics import Accuracy
from toolkit.models import bert, cnn, cross_entropy


class Seen:
    """A metric that keeps what it was given; it runs on rank 0 alone."""

    def compute(self, predictions: list[int], references: list[int]) -> dict[str, Any]:
        return {"references": references}


def counted(strategy: str) -> dict[str, Any]:
    """Ids scored for sizes that do not divide; the accuracy where one of all is wrong."""
    # A row's target is its id; its logits are one-hot at the target, for row 0 at another.
    engine = prepare(strategy, identity(22), cross_entropy, train_batch_size=12)
    left: dict[str, Any] = {}
    for size, batch_size in ((11, 4), (9, 4), (7, 4), (5, 4), (1, 4), (3, 8), (22, 8)):
        rows = [(nn.functional.one_hot(torch.tensor(n or 21), 22).float(), n) for n in range(size)]
        loader = eval_loader(engine, rows, batch_size)
        scores = engine.evaluate(loader, [Seen(), Accuracy()])
        left[f"{size}/{batch_size}"] = {"ids": scores["references"], "accuracy": scores["accuracy"]}
    engine.close()
    return left


def weighted(strategy: str) -> dict[str, float]:
    """8 rows of loss 1 and 2 of loss 6."""
    engine = prepare(strategy, identity(1), lambda outputs, targets: outputs[:, 0], train_batch_size=12)
    rows = [(torch.tensor([loss]), 0) for loss in [1.0] * 8 + [6.0] * 2]
    left = {str(size): engine.evaluate(eval_loader(engine, rows, size))["loss"] for size in (8, 3)}
    engine.close()
    return left


def uneven_ranks(strategy: str) -> dict[str, Any]:
    """9 samples, micro-batch 2: an epoch and an evaluation end on every rank."""
    engine = prepare(strategy, identity(9), cross_entropy, train_micro_batch_size_per_gpu=2)
    rows = [(nn.functional.one_hot(torch.tensor(n), 9).float(), n) for n in range(9)]
    trained = 0
    for batches in train_loader(engine, rows).epoch(0):
        engine.train_step(batches)
        trained += 1
    loader = eval_loader(engine, rows, 2)
    scores = engine.evaluate(loader, [Seen()])
    left = {"steps": trained, "eval_batches": len(list(loader)), "scored": len(scores["references"])}
    engine.close()
    return left


def reviews(strategy: str) -> dict[str, Any]:
    """The right answers of a random BERT over the 1,007 embedded validation reviews."""
    from toolkit.data.text import text_data

    arguments = parse_arguments([], description="", defaults={"max_train_samples": 8, "max_length": 64})
    tokenizer = bert.load_tokenizer(None)
    data = text_data(arguments, tokenizer)
    assert data.evaluation is not None

    def model_fn() -> Any:
        return bert.random_bert(2, vocab_size=len(tokenizer))

    engine = prepare(strategy, model_fn, cross_entropy, train_batch_size=6)
    loader = eval_loader(engine, data.evaluation, 64, data.collate, lengths=data.eval_lengths)
    scores = engine.evaluate(loader, [Accuracy()])
    engine.close()
    return {"rows": len(data.evaluation), "right": scores["accuracy"] * len(data.evaluation), "loss": scores["loss"]}


def buffers(strategy: str) -> dict[str, Any]:
    """BatchNorm statistics after 4 steps on other images per rank, and the evaluation that follows."""
    random = torch.Generator().manual_seed(3)
    images = [(torch.randint(0, 256, (1, 8, 8), generator=random, dtype=torch.uint8), n % 4) for n in range(32)]
    model = None

    def model_fn() -> nn.Module:
        nonlocal model
        model = cnn.CNN(1, 8, 4, width=0.25, activation="gelu", norm="batch")
        return model

    engine = prepare(strategy, model_fn, cross_entropy, train_batch_size=8, gradient_accumulation_steps=1)
    lost = small.losses(engine, train_loader(engine, images), 4)
    own = [buffer.flatten().tolist() for buffer in engine.owned_buffers()]
    scores = engine.evaluate(eval_loader(engine, images, 8), [Accuracy()])
    shared = [buffer.flatten().tolist() for buffer in engine.owned_buffers()]
    again = engine.evaluate(eval_loader(engine, images, 8), [Accuracy()])
    state = {name: tensor.flatten().tolist() for name, tensor in engine.named_state() if "norm" in name}
    engine.close()
    return {"couples": engine.couples_samples, "losses": lost, "own": own, "shared": shared, "state": state} | {
        "scores": scores,
        "again": again,
    }


def dropout(strategy: str) -> dict[str, Any]:
    """The same row on every rank: outputs under dropout, and the weights before the step."""
    outputs: list[Any] = []

    def model_fn() -> nn.Module:
        return Chain(nn.Linear(4, 64), nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 64)))

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        outputs.append(logits.detach().flatten().tolist())
        return logits.mean(1)

    engine = prepare(strategy, model_fn, loss_fn, train_batch_size=4)
    initial = dict(engine.named_state())
    small.losses(engine, train_loader(engine, [(torch.ones(4), 0)] * 4), 1)
    engine.close()
    return {"outputs": outputs[0] if outputs else None, "initial": {n: t.sum().item() for n, t in initial.items()}}


def strayed(strategy: str) -> str:
    """One rank's weight changed behind the engine's back."""
    model = identity(2)
    engine = prepare(strategy, model, cross_entropy, train_batch_size=4)
    engine.check_ranks_agree()
    if small.RANK == 1:
        with torch.no_grad():
            model[0].weight[0, 0] += 1e-6
    try:
        engine.check_ranks_agree()
    except RuntimeError as error:
        return str(error)
    finally:
        engine.close()
    return "not noticed"


def state(strategy: str) -> dict[str, Any]:
    """Names, shapes and values that the engine gives out, against the model's own before it was shared out."""
    model = cnn.CNN(1, 8, 4, width=0.25, norm="batch")
    torch.manual_seed(5)
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    engine = prepare(strategy, model, cross_entropy, train_batch_size=4)
    after = dict(engine.named_state())
    engine.close()
    return {
        "missing": sorted(before.keys() ^ after.keys()),
        "differ": [name for name in before if not torch.equal(before[name], after[name])],
        "dtypes": sorted({str(tensor.dtype) for tensor in after.values()}),
        "obtained": engine.obtained,
        "norm": sum(tensor.double().norm().item() for tensor in after.values()),
    }


CHECKS = {
    "counted": (counted, (*ALL, *ALONE, *THREE)),
    "weighted": (weighted, (*ALL, *ALONE, *THREE)),
    "uneven_ranks": (uneven_ranks, ALL),
    "reviews": (reviews, (*ALL, *ALONE, *THREE)),
    "buffers": (buffers, ALL),
    "dropout": (dropout, ALL),
    "strayed": (strayed, ("ddp x2", "zero1 x2", "zero2 x2")),
    "state": (state, (*ALL, *ALONE)),
}
