"""One JSON with an optimizer and a scheduler, read from its file and trained by `fit` under each strategy."""

from __future__ import annotations

import json
import os
from typing import Any

import small
import torch
from checks_checkpoint import _folder
from torch import nn

import toolkit
from toolkit.engines import group
from toolkit.models import cross_entropy

SECTIONS = {
    "train_batch_size": 8,
    "gradient_clipping": 0.5,
    "optimizer": {"type": "Adam", "params": {"betas": [0.8, 0.95], "eps": 1e-3, "weight_decay": 0.1}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"warmup_min_lr": 1e-3, "warmup_max_lr": 2e-2, "warmup_num_steps": 3, "total_num_steps": "auto"},
    },
}
STRATEGY: dict[str, dict[str, Any]] = {
    "ddp": {"zero_optimization": {"stage": 0}},
    "zero2": {"zero_optimization": {"stage": 2}},
    "zero2_offload": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "pipeline": {"pipeline": {"stages": 2}},
}
STEPS = 8


def model_fn() -> nn.Module:
    return small.Chain(nn.Linear(4, 16), nn.Sequential(nn.Tanh(), nn.Linear(16, 2)))


def from_json(strategy: str) -> dict[str, Any]:
    """The learning rates of metrics.jsonl, the optimizer's class, and the weights after 8 steps."""
    group.start(small.built(strategy))
    folder = _folder()
    path = folder / f"rank{small.RANK}.json"
    path.write_text(json.dumps(SECTIONS | STRATEGY[strategy]))
    argv = ["--deepspeed_config", str(path), "--max_train_steps", str(STEPS), "--output_dir", str(folder / "run")]
    arguments = toolkit.parse_arguments(argv, description="", defaults={"learning_rate": 5.0, "weight_decay": 0.5})
    environ = {name: value for name, value in os.environ.items() if not name.startswith("ACCELERATE_")}
    setup = toolkit.Setup.from_run(arguments, {**environ, "ACCELERATE_USE_CPU": "true"}, [])
    engine = toolkit.prepare(model_fn, cross_entropy, toolkit.optimizer_from(setup), setup)
    random = torch.Generator().manual_seed(3)
    rows = [(torch.randn(4, generator=random), n % 2) for n in range(32)]
    toolkit.fit(engine, toolkit.Data(rows), arguments)
    left = {
        "strategy": setup.strategy,
        "class": type(engine.torch_optimizer).__name__,
        "weights": small.weights(engine),
        "rates": [json.loads(line)["learning_rate"] for line in (folder / "run" / "metrics.jsonl").open()],
    }
    engine.close()
    return left


CHECKS = {"from_json": (from_json, tuple(f"{name} x2" for name in STRATEGY))}
