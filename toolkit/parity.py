"""Parity: the same data, seed and global batch under every setup, measured against one process.

`run` starts one process group per number of ranks (real processes, gloo or NCCL), trains each setup in it with
`prepare` and `fit`, and compares what metrics.jsonl says and the weights by name.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from toolkit.launch import say

MODELS = ("cnn", "cnn_article", "bert", "minilm")
# (name, ranks, stages); the first is what the others are measured against.
SETUPS = (
    ("single", 1, 1),
    ("ddp", 2, 1),
    ("zero1", 2, 1),
    ("zero2", 2, 1),
    ("zero3", 2, 1),
    ("zero2_offload", 2, 1),
    ("zero3_offload", 2, 1),
    ("pipeline", 2, 2),
    ("pipeline", 3, 3),
    ("pipeline_dp", 4, 2),
)
# Below the gradient norm of nearly every step of the variants here, so that clipping is active.
CLIP = {"cnn": 0.2, "cnn_article": 0.2, "bert": 0.5, "minilm": 0.5}


@dataclass(frozen=True)
class Bounds:
    """How far a setup may be from one process of the same precision."""

    loss: float  # relative, at every step
    weights: float  # ||w_a - w_b|| / ||w_a - w_0|| of the whole model
    parameter: float  # the same of each parameter
    fp32: float = 0.0  # of the loss from fp32's, relative, at every step


# In 16 bit rounding decides: a product rounded the other way moves a loss by up to half of its last digit.
BOUNDS = {
    "no": Bounds(1e-5, 2e-4, 1e-3),
    "bf16": Bounds(5e-3, 5e-2, 1e-1, 2e-2),
    "fp16": Bounds(4e-3, 2e-2, 4e-2, 4e-3),
}
# Softmax does not see a key's bias (it adds the same to every score of a query), so its exact gradient is 0 and what
# Adam turns into steps is rounding noise: held to 2 x steps x learning rate, absolute.
ZERO_GRADIENT = ("attention.self.key.bias",)
# DeepSpeedCPUAdam rounds the decay p - p x lr x decay otherwise than torch; at 3e-7 of p that is 8 % of the decay, in
# each of the two, and all that moves an embedding no text has used. Without decay 1.3e-5.
OFFLOADED_ADAM = Bounds(1e-5, 3e-3, 5e-3)


@dataclass(frozen=True)
class Variant:
    """What is trained, the same in every setup."""

    model: str
    optimizer: str = "adamw"
    gradient_accumulation_steps: int = 1
    max_grad_norm: float = 0.0
    lr_scheduler_type: str = "linear"
    num_warmup_steps: int = 2
    seed: int = 0
    steps: int = 22
    dropout: float = 0.0
    mixed_precision: str = "no"
    section: bool = False  # 16-bit weights by DeepSpeed's bf16 section, where it is not autocast
    gradient_checkpointing: bool = False
    norm: str = "none"

    @property
    def learning_rate(self) -> float:
        return 0.05 if self.optimizer == "sgd" else 1e-3 if self.model.startswith("cnn") else 3e-5

    @property
    def train_batch_size(self) -> int:
        return 64 if self.model.startswith("cnn") else 32

    @property
    def name(self) -> str:
        clip = f"clip {self.max_grad_norm:g}" if self.max_grad_norm else "no clip"
        name = f"{self.optimizer}, x{self.gradient_accumulation_steps}, {clip}, {self.lr_scheduler_type}"
        if self.mixed_precision != "no":
            name += f", {self.mixed_precision}" + " weights" * self.section
        return name + ", recomputed" * self.gradient_checkpointing


@dataclass(frozen=True)
class Case:
    """One training: a variant under a setup."""

    variant: Variant
    setup: str
    ranks: int
    stages: int = 1
    stop_after_steps: int | None = None
    resumes: str = ""  # folder of the case whose checkpoint it goes on from

    @property
    def folder(self) -> str:
        v = self.variant
        part = f"-stop{self.stop_after_steps}" if self.stop_after_steps else f"-of-{self.resumes}" * bool(self.resumes)
        kind = f"-{v.mixed_precision}{'-weights' * v.section}{'-recompute' * v.gradient_checkpointing}-{v.norm}"
        return f"{v.model}-{v.optimizer}-{v.gradient_accumulation_steps}-{v.max_grad_norm:g}-{v.lr_scheduler_type}" \
               f"-{v.seed}-{v.dropout:g}{kind}-{self.setup}-{self.ranks}{part}"  # fmt: skip


@dataclass
class Result:
    """How far a case is from the same variant in one process."""

    case: Case
    obtained: dict[str, Any]
    loss: float  # largest relative deviation over the steps
    learning_rates_equal: bool
    weights: float  # of the whole model
    parameter: float  # of the worst parameter
    parameter_name: str
    zero_gradient: float  # largest absolute difference of the parameters in ZERO_GRADIENT
    grad_norms: list[float] = field(default_factory=list)
    fp32: float = 0.0  # largest relative deviation of the loss from fp32's, for 16 bit

    @property
    def same(self) -> bool:
        v = self.case.variant
        bounds = BOUNDS[v.mixed_precision]
        if self.case.setup.endswith("_offload") and v.optimizer != "sgd" and v.mixed_precision == "no":
            bounds = OFFLOADED_ADAM
        return (
            self.loss <= bounds.loss
            and self.weights <= bounds.weights
            and self.parameter <= bounds.parameter
            and self.fp32 <= bounds.fp32
            and self.learning_rates_equal
            and self.zero_gradient <= 2 * v.steps * v.learning_rate
        )


def variants(model: str, full: bool = False, mixed_precision: str = "no") -> list[Variant]:
    """Accumulation 1 and 4, clipping off and active, SGD and AdamW: all eight, or the four that hold every pair; in
    16 bit AdamW with clipping, under autocast and, but under one process and DDP, with 16-bit weights too."""
    clip = CLIP[model]
    schedules = ("linear", "cosine", "constant")
    grid = [(o, a, c) for o in ("adamw", "sgd") for a in (1, 4) for c in (0.0, clip)]
    if not full:
        grid = [("adamw", 1, 0.0), ("adamw", 4, clip), ("sgd", 1, clip), ("sgd", 4, 0.0)]
    if mixed_precision != "no":
        sections = (True,) if mixed_precision == "fp16" else (False, True)
        kinds = [(a, section) for a in ((1, 4) if full else (1,)) for section in sections]
        kind: dict[str, Any] = {"max_grad_norm": clip, "mixed_precision": mixed_precision}
        return [Variant(model, gradient_accumulation_steps=a, section=section, **kind) for a, section in kinds]
    return [Variant(model, o, a, c, schedules[i % 3]) for i, (o, a, c) in enumerate(grid)]


def run(variants: Sequence[Variant], folder: Path, setups: Iterable[tuple[str, int, int]] = SETUPS) -> list[Result]:
    """Train every variant under every setup and compare with one process.

    Args:
        folder: receives one run's folder per case.
        setups: (name, ranks, stages); `single` is always trained, with accumulation 1, as the reference.

    Raises:
        RuntimeError: a process group failed; the message ends with its output.
    """
    alone = {v: replace(v, gradient_accumulation_steps=1, section=False) for v in variants}
    references = {v: Case(one, "single", 1) for v, one in alone.items()}
    exact = {v: Case(replace(one, mixed_precision="no"), "single", 1) for v, one in alone.items()}
    compared = list(dict.fromkeys([*references.values(), *(Case(v, *setup) for v in variants for setup in setups)]))
    launch(dict.fromkeys([*exact.values(), *compared]), folder)
    results = [measure(case, references[case.variant], folder) for case in compared if case.variant in references]
    for result in results:
        if result.case.variant.mixed_precision != "no":
            result.fp32 = measure(result.case, exact[result.case.variant], folder).loss
    return results


def launch(cases: Iterable[Case], folder: Path) -> None:
    """Train the cases, all of one number of ranks and one model in one process group.

    Raises:
        RuntimeError: a process group failed; the message ends with its output.
    """
    cases = list(cases)
    for ranks, model in sorted({(case.ranks, case.variant.model) for case in cases}):
        chosen = [case for case in cases if (case.ranks, case.variant.model) == (ranks, model)]
        chosen.sort(key=lambda case: case.setup == "single")  # it takes the launcher's variables out of the environment
        say(f"{model}: {len(chosen)} trainings on {ranks} rank{'s' * (ranks > 1)}")
        _launch(chosen, ranks, folder / f"group-{model}-{ranks}", folder)


def measure(case: Case, reference: Case, folder: Path) -> Result:
    """Compare two finished cases; of one that was resumed, the steps after that."""
    from safetensors.torch import load_file

    mine, theirs = _rows(folder / case.folder), _rows(folder / reference.folder)
    theirs = theirs[-len(mine) :]
    a, b = (_weights(folder / c.folder) for c in (case, reference))
    start = load_file(folder / reference.folder / "initial.safetensors")
    apart = {name: (a[name].double() - b[name].double()).norm().item() for name in b}
    moved = {name: (a[name].double() - start[name].double()).norm().item() for name in b}
    exempt = {name for name in b if name.endswith(ZERO_GRADIENT)}
    ratios = {name: apart[name] / moved[name] if moved[name] else apart[name] for name in b if name not in exempt}
    worst = max(ratios, key=ratios.__getitem__)
    return Result(
        case=case,
        obtained=json.loads((folder / case.folder / "summary.json").read_text(encoding="utf-8"))["obtained"],
        loss=max(abs(x["loss"] - y["loss"]) / abs(y["loss"]) for x, y in zip(mine, theirs, strict=True)),
        learning_rates_equal=[x["learning_rate"] for x in mine] == [y["learning_rate"] for y in theirs],
        weights=_norm(apart[n] for n in ratios) / _norm(moved[n] for n in ratios),
        parameter=ratios[worst],
        parameter_name=worst,
        zero_gradient=max([(a[name] - b[name]).abs().max().item() for name in exempt], default=0.0),
        grad_norms=[row["grad_norm"] for row in mine],
    )


def _launch(cases: list[Case], ranks: int, work: Path, folder: Path) -> None:
    work.mkdir(parents=True, exist_ok=True)
    plan = work / "plan.json"
    plan.write_text(json.dumps({"folder": str(folder), "cases": [asdict(case) for case in cases]}), encoding="utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    log = work / "output.txt"
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run(
            [*command, "-m", "toolkit.trial", str(plan)],
            env={"OMP_NUM_THREADS": "1", **os.environ},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        raise RuntimeError(f"{ranks} ranks ended with {done.returncode}:\n{log.read_text(encoding='utf-8')[-6000:]}")


def _weights(folder: Path) -> dict[str, Any]:
    from toolkit.checkpoint import newest_whole

    checkpoint = newest_whole(folder)
    return {name: checkpoint.value(name) for name in checkpoint.names}


def _rows(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [row for row in map(json.loads, lines) if "loss" in row]


def _norm(values: Iterable[float]) -> float:
    return sum(value**2 for value in values) ** 0.5
