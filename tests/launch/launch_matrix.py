"""Every launcher with every setup it may launch, both scripts, 3 steps each: what was obtained, and are losses equal?

    python tests/launch/launch_matrix.py [--model cnn bert] [--launcher torchrun ...]

Losses are compared with `python SCRIPT`. Exits 1 where one differs or a launch fails. Takes 15 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
LOSS_BOUND, LOSS_BOUND_16_BIT = 1e-5, 0.02  # relative to fp32 in one process
FEW = ["--max_train_steps", "3", "--max_train_samples", "300", "--max_eval_samples", "100", "--dropout", "0"]
MODELS = {
    "cnn": ["scripts/train_cnn.py", *FEW],
    "bert": ["scripts/train_bert.py", *FEW, "--train_batch_size", "8", "--max_length", "32"],
}
JSON_SETUPS = ("ddp", "zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "pipeline", "pipeline_dp")
# launcher -> the setups it may launch; "" is the launcher with no file.
MATRIX = {
    "python": ("",),
    "torchrun": ("", *JSON_SETUPS),
    "accelerate": ("", "single", *JSON_SETUPS),
    "deepspeed": ("", *JSON_SETUPS),
}
# (strategy, engine, data-parallel ranks); the CNN's own class where nothing wraps it.
OBTAINED = {
    "single": ("single", None, 1),
    "ddp": ("ddp", "DistributedDataParallel", 2),
    "zero1": ("zero1", "DeepSpeedEngine", 2),
    "zero2": ("zero2", "DeepSpeedEngine", 2),
    "zero3": ("zero3", "DeepSpeedEngine", 2),
    "zero2_offload": ("zero2_offload", "DeepSpeedEngine", 2),
    "zero3_offload": ("zero3_offload", "DeepSpeedEngine", 2),
    "pipeline": ("pipeline", "PipelineEngine", 1),
    "pipeline_dp": ("pipeline_dp", "PipelineEngine", 2),
}
RANKS = {"pipeline_dp": 4}  # of the others 2
WITHOUT_FILE = {
    "python": OBTAINED["single"],
    "torchrun": OBTAINED["ddp"],
    "accelerate": OBTAINED["single"],
    "deepspeed": ("zero1", "DeepSpeedEngine", 2),
}


@dataclass
class Launched:
    """A finished launch and what its run left."""

    returncode: int
    output: str
    seconds: float
    summary: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    loss_scales: list[float | None] = field(default_factory=list)  # None but in fp16

    @property
    def obtained(self) -> tuple[str, str, int]:
        got = self.summary["obtained"]
        return self.summary["setup"]["strategy"]["value"], got["engine"], got["data_parallel_ranks"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def command(launcher: str, setup: str, script: list[str], ranks: int = 2) -> list[str]:
    """The command line that starts `script` (its path and arguments) under a setup of this repository."""
    port, config = str(free_port()), ["--deepspeed_config", f"ds_configs/{setup}.json"] if setup else []
    if launcher == "python":
        return [sys.executable, *script, *config]
    if launcher == "torchrun":
        return [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", str(ranks), *script, *config]
    if launcher == "deepspeed":
        return [str(BIN / "deepspeed"), "--num_gpus", str(ranks), "--master_port", port, *script, *config]
    yaml = ["--config_file", f"accelerate_configs/{setup}.yaml"] if setup else []
    return [str(BIN / "accelerate"), "launch", *yaml, "--main_process_port", port, *script]


def launch(line: list[str], output_dir: Path, timeout: float = 300, **environment: str) -> Launched:
    """Run a command line with this --output_dir, and read what it left."""
    began = time.monotonic()
    done = subprocess.run(
        [*line, "--output_dir", str(output_dir)],
        cwd=ROOT,
        # The tools on the PATH are those of this interpreter, also where no environment is active.
        env={**os.environ, "OMP_NUM_THREADS": "1", "PATH": f"{BIN}:{os.environ['PATH']}", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    launched = Launched(done.returncode, done.stdout, time.monotonic() - began)
    if (output_dir / "summary.json").exists():
        launched.summary = json.loads((output_dir / "summary.json").read_text(encoding="utf-8"))
        rows = map(json.loads, (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
        steps = [row for row in rows if "loss" in row]
        launched.losses = [row["loss"] for row in steps]
        launched.loss_scales = [row.get("loss_scale") for row in steps]
    return launched


def faults(
    launched: Launched,
    asked: tuple[str, str | None, int],
    losses: list[float],
    weights: str = "float32",
    autocast: str | None = None,
) -> list[str]:
    """What is wrong with a launch: exit code, strategy, engine, ranks, formats, losses."""
    if launched.returncode != 0:
        return [f"exit code {launched.returncode}: {' '.join(launched.output.split())[-300:]}"]
    found = []
    got = launched.obtained
    if (got[0], got[2]) != (asked[0], asked[2]) or asked[1] not in (None, got[1]):
        found.append(f"asked for {asked}, got {got}")
    formats = {"parameter_dtype": weights, "gradient_dtype": weights, "autocast_dtype": autocast}
    for name, dtype in formats.items():
        if (obtained := launched.summary["obtained"][name]) != dtype:
            found.append(f"{name} is {obtained}, not {dtype}")
    bound = LOSS_BOUND if (weights, autocast) == ("float32", None) else LOSS_BOUND_16_BIT
    if len(launched.losses) != len(losses):
        found.append(f"{len(launched.losses)} steps, not {len(losses)}")
    elif any(abs(a - b) > bound * abs(b) for a, b in zip(launched.losses, losses, strict=True)):
        found.append(f"losses {launched.losses}, not {losses}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--launcher", nargs="+", choices=MATRIX, default=list(MATRIX))
    chosen = parser.parse_args()
    bad = 0
    with tempfile.TemporaryDirectory() as temporary:
        for model in chosen.model:
            script = MODELS[model]
            reference = launch(command("python", "", script), Path(temporary, model))
            for launcher in chosen.launcher:
                for setup in MATRIX[launcher]:
                    asked = OBTAINED[setup] if setup else WITHOUT_FILE[launcher]
                    line = command(launcher, setup, script, RANKS.get(setup, 2))
                    launched = launch(line, Path(temporary, f"{model}-{launcher}-{setup}"))
                    wrong = faults(launched, asked, reference.losses)
                    bad += bool(wrong)
                    verdict = "; ".join(wrong) or "same losses"
                    name = setup or "(no file)"
                    print(f"{model:5} {launcher:11} {name:13} {launched.seconds:5.1f} s  {verdict}", flush=True)
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
