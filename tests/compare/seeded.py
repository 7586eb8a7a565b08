"""Trainings of a few steps in this process, some with a fault that their setup does not tell."""

from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import nn
from torch.utils.data import TensorDataset

import toolkit
from toolkit import loop
from toolkit.compare.runs import read_run
from toolkit.data.sampler import Sampler


class Small(nn.Module):
    """Two layers, with BatchNorm between them or without; `reduced` rounds to bf16 behind the setup's back."""

    def __init__(self, norm, dropout, reduced):
        super().__init__()
        self.body, self.head = nn.Linear(6, 16), nn.Linear(16, 1)
        self.norm = nn.BatchNorm1d(16) if norm else nn.Identity()
        self.dropout, self.reduced = nn.Dropout(dropout), reduced

    def forward(self, x):
        rounded = (lambda tensor: tensor.bfloat16().float()) if self.reduced else lambda tensor: tensor
        hidden = self.dropout(torch.tanh(self.norm(rounded(self.body(rounded(x))))))
        return rounded(self.head(rounded(hidden)))


def squared(outputs, targets):
    return (outputs.reshape(-1) - targets.reshape(-1)) ** 2


def material(reverse=False):
    """Targets grow from batch to batch, and so do the gradients: clipping first acts after some steps."""
    drawn = torch.Generator().manual_seed(1)
    inputs = torch.randn(40, 6, generator=drawn)
    targets = inputs.sum(1, keepdim=True) * torch.linspace(0.2, 4, 40)[:, None]
    if reverse:
        targets = targets.flip(0)
    return toolkit.Data(TensorDataset(inputs, targets), TensorDataset(inputs[:10], targets[:10]))


def one_short(real):
    """The third global batch of an epoch without its last row."""
    return lambda self, epoch, index: real(self, epoch, index)[: -1 if index == 2 else None]


@contextmanager
def silently(fault, optimizer):
    """A fault in the update, or in the schedule, that no setup tells."""

    changed = {
        "decays": {"weight_decay": 0.1},
        "momentum": {"momentum": 0.9},
        "betas": {"betas": (0.5, 0.9)},
    }
    bounds = {"clips": 20.0, "clips all": 0.5}

    def before(*_):
        groups = optimizer.param_groups
        if fault in bounds:
            nn.utils.clip_grad_norm_([p for group in groups for p in group["params"]], bounds[fault])
        for group in groups:
            group.update(changed.get(fault, {}))

    hook = optimizer.register_step_pre_hook(before)
    patches = {
        "schedule": patch.object(loop, "lr_at", lambda updates, real=loop.lr_at, **k: real(2 * updates, **k)),
        "does not clip": patch.object(nn.utils, "clip_grads_with_norm_", lambda *_: None),
        "drops": patch.object(Sampler, "global_batch", one_short(Sampler.global_batch)),
    }
    try:
        with patches.get(fault, nullcontext()):
            yield
    finally:
        hook.remove()


def train(folder, argv=(), fault="", norm=False, dropout=0.0, **values):
    """The run in `folder`, read as `compare` reads it."""
    given = ["--output_dir", str(folder), "--max_train_steps", "8", "--save_initial", "true", *argv]
    arguments = toolkit.parse_arguments(given, description="", defaults={"dropout": dropout})
    values = {"train_batch_size": 8, "optimizer": "sgd", "learning_rate": 0.02, "momentum": 0.0} | values
    values = {"max_grad_norm": 0.0, "lr_scheduler_type": "linear"} | values
    setup = toolkit.Setup.build(strategy="single", launcher="python", use_cpu=True, **values)
    build = toolkit.optimizer_from(setup)
    optimizers = []

    def optimizer_fn(groups):
        optimizers.append(build(groups))
        return optimizers[-1]

    engine = toolkit.prepare(lambda: Small(norm, dropout, fault == "reduced"), squared, optimizer_fn, setup)
    if fault == "weights":
        state = dict(engine.named_state())
        engine.load_named_state((state | {"head.weight": 1.5 * state["head.weight"]}).items())
    if fault == "scale":
        engine.scaler.cur_scale = 1.0
    if fault == "masks":
        torch.manual_seed(5)
    with silently(fault, engine.torch_optimizer):
        if fault == "statistics":
            real = engine.sync_buffers

            def drift():
                if engine.updates == 8:
                    engine._buffers["norm.running_mean"].add_(0.3)
                    engine.sync_buffers = real
                real()

            engine.sync_buffers = drift
        toolkit.fit(engine, material(reverse=fault == "data"), arguments)
    return read_run(folder)
