"""The range test of the learning rate: the same suggestion under every strategy, and no trace of it afterwards."""

from __future__ import annotations

import json
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

import small
import torch
from small import losses, prepare, train_loader
from torch import nn

import toolkit
from toolkit import range_test
from toolkit.arguments import parse_arguments
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError
from toolkit.models import cross_entropy
from toolkit.models.cnn import CNN

KINDS: dict[str, dict[str, Any]] = {
    "fp32": {},
    "bf16": {"mixed_precision": "bf16", "deepspeed": {"bf16": {"enabled": "auto"}}},
    "fp16": {"mixed_precision": "fp16", "deepspeed": {"fp16": {"enabled": "auto", "initial_scale_power": 17}}},
}
ROWS = [(torch.randn(6, generator=torch.Generator().manual_seed(n)) + n % 3, n % 3) for n in range(36)]
BROKEN_OFF = (("fp32", 0), ("fp32", 3), ("bf16", 0), ("fp16", 3))  # (precision, steps before the test)
STEPS = 4


def put_back(strategy: str) -> dict[str, Any]:
    """{kind/steps before the test: losses and weights that followed it, and the same where there was no test}."""
    result = {}
    for kind, before in BROKEN_OFF:
        values = KINDS[kind]
        if strategy in ("single", "ddp"):
            values = {name: value for name, value in values.items() if name != "deepspeed"}
        result[f"{kind}/{before}"] = [_goes_on(strategy, before, tests, values) for tests in (True, False)]
    return result


def suggested(strategy: str) -> dict[str, Any]:
    """What a small CNN's range test leaves, with SGD and with AdamW."""
    rows = [(image.unsqueeze(0), number % 4) for number, image in enumerate(_stripes(128))]
    result = {}
    for optimizer in ("sgd", "adamw"):

        def model_fn() -> nn.Module:
            return CNN(1, 12, 4, activation="gelu", pooling="avg", width=0.25)

        engine = prepare(
            strategy,
            model_fn,
            cross_entropy,
            toolkit.optimizer_from(small.built(strategy, optimizer=optimizer)),
            optimizer=optimizer,
            train_batch_size=32,
            max_grad_norm=1.0,
        )
        folder = _folder()
        suggestion = toolkit.find_learning_rate(engine, toolkit.Data(rows), _arguments(folder))
        content = json.loads((folder / "learning_rate.json").read_text())
        result[optimizer] = {"returned": suggestion, "left": sorted(path.name for path in folder.iterdir())} | content
        engine.close()
    return result


def _goes_on(strategy: str, before: int, tests: bool, values: dict[str, Any]) -> list[Any]:
    engine = prepare(strategy, _model, cross_entropy, _adamw, train_batch_size=12, partition="uniform", **values)
    loader = train_loader(engine, ROWS, drop_last=True)
    losses(engine, loader, before)
    if tests:
        folder, every_rate = _folder(), list(range_test.RATES)
        range_test.RATES[:] = every_rate[80::8]  # 1e-3 to 10, a few of them: enough to break the model
        try:
            toolkit.find_learning_rate(engine, toolkit.Data(ROWS), _arguments(folder))
        except UserError as error:  # too few rates to find one among, told once all is put back
            assert "no more than a decade of rates" in error.lines[0], error.lines
        finally:
            range_test.RATES[:] = every_rate
        assert not (folder / "before-the-range-test").exists()
        engine.set_lr(0.01)
    lost = losses(engine, loader, STEPS)
    scale = None if engine.scaler is None else engine.scaler.cur_scale
    own = [buffer.tolist() for buffer in engine.owned_buffers()]
    left = [lost, engine.updates, scale, engine.stuck, own, small.weights(engine)]
    engine.close()
    return left


class _Stem(nn.Linear):
    """Takes its input in its own format."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.to(self.weight.dtype))


def _model() -> nn.Module:
    """With dropout and BatchNorm: random states and each rank's own statistics matter."""
    return small.Chain(_Stem(6, 8), nn.BatchNorm1d(8), nn.Sequential(nn.GELU(), nn.Dropout(0.3)), nn.Linear(8, 3))


def _adamw(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=0.01)


def _stripes(count: int) -> torch.Tensor:
    """[count, 12, 12]: stripes of one of four directions, by the row's number, under noise."""
    across = torch.arange(12.0)
    x, y = across[None, :], across[:, None]
    waves = [torch.sin(math.pi / 3 * wave) for wave in (x + 0 * y, y + 0 * x, x + y, x - y)]
    noise = torch.randn(count, 12, 12, generator=torch.Generator().manual_seed(5))
    return torch.stack([waves[number % 4] for number in range(count)]) + noise


def _folder() -> Path:
    """A new one, which all ranks write to, beside the results."""
    return Path(on_rank_0(lambda: tempfile.mkdtemp(dir=Path(sys.argv[1]).parent)))


def _arguments(folder: Path) -> Any:
    return parse_arguments(["--find_learning_rate", "--output_dir", str(folder)], description="", defaults={})


CHECKS = {
    "range put back": (put_back, ("single x1", "ddp x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "pipeline x2")),
    "range suggested": (suggested, ("single x1", "ddp x2", "zero2 x2", "pipeline x2")),
}
