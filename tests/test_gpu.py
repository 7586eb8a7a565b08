"""On a machine with GPUs: `pytest -m gpu`. Not part of the default run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

SCRIPT = str(Path(__file__).parents[1] / "scripts" / "train_cnn.py")
SHORT = ["--max_train_steps", "5", "--max_train_samples", "300", "--max_eval_samples", "100"]


def train(folder: Path, launcher: list[str], *more: str, **environment: str) -> tuple[dict[str, Any], list[float]]:
    """(summary, loss of each step) of a short run."""
    command = [*launcher, SCRIPT, *SHORT, "--output_dir", str(folder), *more]
    subprocess.run(command, check=True, env=os.environ | environment)
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return json.loads((folder / "summary.json").read_text()), [row["loss"] for row in rows if "loss" in row]


@pytest.mark.gpu
def test_one_gpu_trains_what_the_cpu_trains(tmp_path: Path) -> None:
    gpu, gpu_losses = train(tmp_path / "gpu", [sys.executable])
    cpu, cpu_losses = train(tmp_path / "cpu", [sys.executable], ACCELERATE_USE_CPU="true")
    assert (gpu["obtained"]["device"], cpu["obtained"]["device"]) == ("cuda", "cpu")
    assert gpu_losses == pytest.approx(cpu_losses, rel=1e-4)
    assert gpu["peak_memory_bytes"][0] > 0


@pytest.mark.gpu
@pytest.mark.parametrize("stem", ["", "zero2", "zero3", "zero2_offload", "zero3_offload"])
@pytest.mark.parametrize("precision", ["no", "bf16", "fp16"])
def test_one_gpu_in_each_precision(stem: str, precision: str, tmp_path: Path) -> None:
    _, cpu = train(tmp_path / "cpu", [sys.executable], ACCELERATE_USE_CPU="true")
    rank = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "1"]
    config = ["--deepspeed_config", f"ds_configs/{stem}.json"] if stem else []
    summary, losses = train(tmp_path / "gpu", rank, "--mixed_precision", precision, *config)
    weights = "float16" if stem and precision == "fp16" else "float32"
    assert (summary["obtained"]["device"], summary["obtained"]["parameter_dtype"]) == ("cuda", weights)
    assert losses == pytest.approx(cpu, rel=1e-4 if precision == "no" else 2e-2)


@pytest.mark.gpu
def test_sync_batch_norm(tmp_path: Path) -> None:
    """Needs two GPUs: two ranks normalise as one process with all samples does."""
    norm = ["--norm", "batch"]
    _, single = train(tmp_path / "single", [sys.executable], *norm)
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    _, losses = train(tmp_path / "sync", ranks, *norm, "--sync_batch_norm")
    assert losses == pytest.approx(single, rel=1e-4)


@pytest.mark.gpu
@pytest.mark.parametrize("stem", ["ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "pipeline"])
def test_one_gpu_a_rank(stem: str, tmp_path: Path) -> None:
    """Needs two GPUs, and NCCL between them."""
    _, single = train(tmp_path / "single", [sys.executable])
    ranks = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    summary, losses = train(tmp_path / stem, ranks, "--deepspeed_config", f"ds_configs/{stem}.json")
    assert summary["obtained"]["device"] == "cuda"
    assert losses == pytest.approx(single, rel=1e-4)
