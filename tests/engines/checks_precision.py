"""bf16 and fp16: formats, loss scaling, masters, BatchNorm, and the optimizer where state is offloaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import small
import torch
from checks_checkpoint import ROWS, Mixed, _folder
from small import Chain, linear, prepare, train_loader
from torch import Tensor, nn

import toolkit
from toolkit.checkpoint import Checkpoint
from toolkit.engines import scaler
from toolkit.errors import UserError
from toolkit.models import cnn, cross_entropy
from toolkit.optim import optimizer_from

ALL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2", "pipeline x2")
PLAIN = ("single", "ddp")
RANDOM = torch.Generator().manual_seed(3)
IMAGES = [(torch.randint(0, 256, (1, 8, 8), generator=RANDOM, dtype=torch.uint8), n % 4) for n in range(32)]


def small_cnn(norm: str = "none") -> nn.Module:
    return cnn.CNN(1, 8, 4, width=0.25, activation="gelu", pooling="avg", norm=norm)


def section(strategy: str, kind: str, **numbers: Any) -> dict[str, Any]:
    """Of DeepSpeed's JSON: 16-bit weights, or the loss scale's numbers."""
    return {kind: {"enabled": "auto", **numbers}} if numbers or strategy not in PLAIN else {}


def formats(strategy: str) -> dict[str, Any]:
    """What was obtained in each precision, and the losses of four steps, of a CNN with BatchNorm."""
    left = {}
    for name, kind, config in (
        ("fp32", "no", None),
        ("bf16", "bf16", None),
        ("bf16 weights", "bf16", section(strategy, "bf16")),
        ("fp16", "fp16", None),
    ):
        values: dict[str, Any] = {"mixed_precision": kind, "deepspeed": config, "train_batch_size": 8}
        engine = prepare(strategy, lambda: small_cnn("batch"), cross_entropy, gradient_accumulation_steps=1, **values)
        lost = []
        for batches in small.steps(engine, train_loader(engine, IMAGES), 4):
            lost.append(engine.train_step(batches).loss.item())
            engine.check_first_step()
        state = {n: t for n, t in engine.named_state() if "running" in n}
        left[name] = {key: value for key, value in engine.obtained.items() if key.endswith("dtype")} | {
            "losses": lost,
            "buffers": {n: (str(t.dtype), bool(t.isfinite().all()), t.flatten().tolist()) for n, t in state.items()},
        }
        engine.close()
    return left


def overflow(strategy: str) -> dict[str, Any]:
    """fp16 from scale 65536; the loss is a million times too large in the first 3 of 6 steps (C25)."""
    step = 0

    def loss_fn(logits: Tensor, targets: Tensor) -> Tensor:
        return cross_entropy(logits, targets) * (1e6 if step < 3 else 1.0)

    config = section(strategy, "fp16", hysteresis=1)
    values: dict[str, Any] = {"mixed_precision": "fp16", "deepspeed": config, "train_batch_size": 8}
    engine = prepare(strategy, small_cnn, loss_fn, gradient_accumulation_steps=2, **values)
    start = {name: tensor.clone() for name, tensor in engine.named_state()}
    left: dict[str, Any] = {"skipped": [], "scales": [], "rates": [], "updates": [], "norms": [], "still": []}
    for step, batches in enumerate(small.steps(engine, train_loader(engine, IMAGES), 6)):  # noqa: B007 - read by loss_fn
        rate = 0.125 / (1 + engine.updates)
        engine.set_lr(rate)
        stats = engine.train_step(batches)
        left["skipped"].append(stats.skipped)
        left["scales"].append(stats.loss_scale)
        left["rates"].append(rate)
        left["updates"].append(engine.updates)
        left["norms"].append(stats.grad_norm.item())
        left["still"].append(all(torch.equal(tensor, start[name]) for name, tensor in engine.named_state()))
    left["kept"] = scaler.kept(engine.scaler)
    scaler.restore(engine.scaler, {"cur_scale": 4.0, "cur_iter": 7, "last_overflow_iter": 2, "cur_hysteresis": 1})
    left["restored"] = scaler.kept(engine.scaler)
    engine.close()
    return left


def floor(strategy: str) -> dict[str, Any]:
    """Inputs of rank 1 are NaN from the first step on; the scale starts at 8."""
    left: dict[str, Any] = {}
    for name, numbers in (("dynamic", {"initial_scale_power": 3, "hysteresis": 1}), ("static", {"loss_scale": 64})):
        config = section(strategy, "fp16", **numbers)
        values: dict[str, Any] = {"mixed_precision": "fp16", "deepspeed": config, "train_batch_size": 4}
        engine = prepare(
            strategy, Chain(linear([[0.5, 0.5]]), linear([[0.5]])), gradient_accumulation_steps=1, **values
        )
        bad = float("nan") if small.RANK == 1 or strategy in ("single", "pipeline") else 1.0
        rows = [(torch.full((2,), bad).half(), 1.0)] * 80
        steps = 0
        try:
            for batches in small.steps(engine, train_loader(engine, rows), 20):
                engine.train_step(batches)
                steps += 1
        except UserError as error:
            left[name] = {"steps": steps, "updates": engine.updates, "lines": error.lines}
        engine.close()
    return left


def masters(strategy: str) -> dict[str, Any]:
    """A weight of 1 + 2^-9, which bf16 (7 bits) rounds to 1; SGD takes 2^-10 off it, three times."""
    model = Chain(linear([[1.0 + 2.0**-9]]), linear([[1.0]]))
    values: dict[str, Any] = {"mixed_precision": "bf16", "deepspeed": section(strategy, "bf16"), "train_batch_size": 4}
    engine = prepare(strategy, model, lambda outputs, targets: outputs[:, 0] * targets, **values)
    rows = [(torch.ones(1, dtype=torch.bfloat16), 1.0)] * 16
    name = "0.weight"
    left: dict[str, Any] = {"masters": [master_of(engine, name)]}
    for batches in small.steps(engine, train_loader(engine, rows), 3):
        engine.set_lr(2.0**-10)
        engine.train_step(batches)
        left["masters"].append(master_of(engine, name))
    engine.close()
    return left


def master_of(engine: Any, name: str) -> list[float]:
    """What this rank's optimizer holds of a parameter."""
    return [number for slot in engine.slots() if slot.name == name for number in slot.of(slot.tensor).tolist()]


def offloaded(strategy: str) -> dict[str, Any]:
    """The optimizer's class, and the weights after 10 steps, with --optimizer's three and with one of the user's."""
    left: dict[str, Any] = {}
    for name in ("sgd", "adam", "adamw", "own"):
        values: dict[str, Any] = {"train_batch_size": 8, "learning_rate": 1e-2, "weight_decay": 0.1}
        values["optimizer"] = "adamw" if name == "own" else name
        setup = small.built(strategy, **values)
        optimizer_fn = optimizer_from(setup)
        if name == "own":
            optimizer_fn = own_adamw
        engine = prepare(strategy, small_cnn, cross_entropy, optimizer_fn, **values)
        small.losses(engine, train_loader(engine, IMAGES), 10)
        left[name] = {
            "class": type(engine.torch_optimizer).__name__,
            "weights": [number for _, tensor in engine.named_state() for number in tensor.flatten().tolist()],
        }
        engine.close()
    return left


def own_adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=1e-2, weight_decay=0.1)


def recomputed(strategy: str) -> dict[str, Any]:
    """BatchNorm's running statistics after 2 steps, with activations kept and computed again."""
    left = {}
    for kind in ("no", "bf16"):
        for again in (False, True):
            values: dict[str, Any] = {"mixed_precision": kind, "train_batch_size": 8, "gradient_checkpointing": again}
            values["deepspeed"] = section(strategy, "bf16") if kind == "bf16" else None
            engine = prepare(strategy, lambda: small_cnn("batch"), cross_entropy, **values)
            small.losses(engine, train_loader(engine, IMAGES), 2)
            state = {n: t.flatten().tolist() for n, t in engine.named_state() if n.endswith(("var", "mean", "tracked"))}
            left[f"{kind} {again}"] = state
            engine.close()
    return left


# What the strategies before this one left: {precision: checkpoint}.
left_behind: dict[str, Path] = {}


def carried(strategy: str) -> dict[str, Any]:
    """16-bit checkpoints of the strategy before, read here in the same format and in fp32, and written again."""
    result: dict[str, Any] = {}
    for kind, source in (("bf16", "bf16"), ("fp16", "fp16"), ("no", "bf16")):
        if source not in left_behind:
            continue
        engine = mixed(strategy, kind)
        first = toolkit.load(engine, left_behind[source])
        again = _folder() / "step-000002"
        toolkit.save(engine, again)
        engine.close()
        second = Checkpoint(again)
        result[f"{source} to {kind}"] = {
            "weights": [name for name in first.names if not torch.equal(first.value(name), second.value(name))],
            "states": [difference for name in first.names for difference in _other_states(name, first, second)],
            "scale": [checkpoint.about["loss_scaler"] for checkpoint in (first, second)],
        }
    for kind in ("bf16", "fp16"):
        engine = mixed(strategy, kind)
        for batches in small.steps(engine, train_loader(engine, ROWS), 2):
            engine.train_step(batches)
        if engine.scaler is not None:
            engine.scaler.cur_scale = 512.0
        left_behind[kind] = _folder() / "step-000002"
        toolkit.save(engine, left_behind[kind])
        engine.close()
    return result


def mixed(strategy: str, kind: str) -> Any:
    values: dict[str, Any] = {"mixed_precision": kind, "train_batch_size": 12, "learning_rate": 1e-2}
    values["deepspeed"] = section(strategy, kind) if kind != "no" else None
    return prepare(strategy, Mixed, cross_entropy, optimizer_from(small.built(strategy, **values)), **values)


def _other_states(name: str, first: Checkpoint, second: Checkpoint) -> list[str]:
    size = first.value(name).numel()
    odd = [
        f"{name}/{state}"
        for state in first.states(name)
        if not torch.equal(first.optimizer(name, state, 0, size), second.optimizer(name, state, 0, size))
    ]
    if set(first.states(name)) != set(second.states(name)) or first.updates_of(name) != second.updates_of(name):
        odd.append(f"{name}: {second.states(name)}, {second.updates_of(name)} updates")
    return odd


CHECKS = {
    "carried": (carried, ALL),
    "recomputed": (recomputed, ALL),
    "formats": (formats, ALL),
    "overflow": (overflow, ALL),
    "floor": (floor, ALL),
    "masters": (masters, ("zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2", "pipeline x2")),
    "offloaded": (offloaded, ("zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2")),
}
