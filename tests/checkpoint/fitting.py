"""Runs of `fit` in one process for the tests of this folder: 64 rows, global batch 8, 8 steps an epoch."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import toolkit
from toolkit import stop
from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.files import ABOUT, MANIFEST, record

# where: value: reason; remedy
LINE = re.compile(r".+: .+: .+; .+")


class Rows:
    """A row's class is the sign of its inputs' sum. Remembers which rows were read; `before` {step: what is called}."""

    def __init__(self, size: int = 64) -> None:
        self.inputs = torch.randn(size, 4, generator=torch.Generator().manual_seed(7))
        self.read: list[int] = []
        self.before: dict[int, Callable[[], object]] = {}

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        if (step := 1 + len(self.read) / 8) in self.before:
            self.before[int(step)]()
        self.read.append(index)
        return self.inputs[index], int(self.inputs[index].sum() > 0)


def model(wide: int = 8) -> nn.Module:
    """With dropout: only equal random states give equal weights."""
    return nn.Sequential(nn.Linear(4, wide), nn.GELU(), nn.Dropout(0.3), nn.Linear(wide, 2))


@dataclass
class Run:
    """What a run left."""

    folder: Path
    read: list[int]  # rows, in the order of training
    scores: dict[str, Any] = field(default_factory=dict)

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "metrics.jsonl").read_text().splitlines()]

    @property
    def steps(self) -> list[dict[str, Any]]:
        """A row a step, without what the clock decides."""
        clocked = ("samples_per_second", "data_seconds", "step_seconds")
        return [{k: v for k, v in row.items() if k not in clocked} for row in self.rows if "loss" in row]

    @property
    def evaluated(self) -> list[int]:
        return [row["step"] for row in self.rows if "eval_loss" in row]

    @property
    def checkpoints(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "checkpoints").iterdir())

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads((self.folder / "summary.json").read_text())

    def checkpoint(self, step: int) -> Path:
        return self.folder / "checkpoints" / f"step-{step:06d}"


def fit(
    folder: Path,
    *argv: str,
    build: Callable[[], nn.Module] = model,
    size: int = 64,
    optimizer_fn: Any = None,
    lengths: Any = None,
    metrics: Any = (),
    tokenizer: Any = None,
    before: dict[int, Callable[[], object]] | None = None,
    **values: Any,
) -> Run:
    """Train for 2 epochs unless told otherwise. `argv` as typed, `before` {step: called before it}, `values` of the
    setup."""
    epochs = () if "--max_train_steps" in argv else ("--num_train_epochs", "2")
    typed = [*(("--output_dir", str(folder)) if folder else ()), *epochs, *argv]
    arguments = toolkit.parse_arguments(typed, description="", defaults={"logging_steps": 3})
    settings: dict[str, Any] = {
        "train_batch_size": 8,
        "learning_rate": 0.05,
        "optimizer": "adamw",
        "num_warmup_steps": 3,
        "lr_scheduler_type": "cosine",
    }
    setup = toolkit.Setup.build(strategy="single", launcher="python", use_cpu=True, **{**settings, **values})
    rows, held_out = Rows(size), Rows(10)
    rows.before = before or {}
    data = toolkit.Data(rows, held_out, lengths=lengths, label_names=["no", "yes"], tokenizer=tokenizer)
    engine = toolkit.prepare(build, toolkit.cross_entropy, optimizer_fn or toolkit.optimizer_from(setup), setup)
    try:
        return Run(folder, rows.read, toolkit.fit(engine, data, arguments, metrics))
    finally:
        stop.close_()


def copied(run: Run, folder: Path) -> Run:
    """The same run in another place."""
    return Run(Path(shutil.copytree(run.folder, folder)), run.read)


def weights(folder: Path) -> dict[str, Tensor]:
    checkpoint = Checkpoint(folder)
    return {name: checkpoint.weight(name) for name in checkpoint.names}


def same(a: Path, b: Path) -> bool:
    """Bit for bit, weights and optimizer state."""
    one, two = Checkpoint(a), Checkpoint(b)
    assert one.names == two.names
    for name in one.names:
        assert one.states(name) == two.states(name)
        size = one.weight(name).numel()
        pairs = [(one.weight(name), two.weight(name))]
        pairs += [(one.optimizer(name, s, 0, size), two.optimizer(name, s, 0, size)) for s in one.states(name)]
        if not all(torch.equal(x, y) for x, y in pairs) or one.updates_of(name) != two.updates_of(name):
            return False
    return True


def tell(folder: Path, name: str = ABOUT, **changed: Any) -> None:
    """Change what a JSON file of a checkpoint says; the manifest then fits."""
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps(content | changed))
    seal(folder)


def seal(folder: Path) -> None:
    files = {path.name: record(path) for path in sorted(folder.iterdir()) if path.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}))
