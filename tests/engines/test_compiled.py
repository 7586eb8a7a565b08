"""--torch_compile: where it is refused, and what it says where torch does not compile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from toolkit.engines.compiled import compile_forward
from toolkit.errors import UserError
from toolkit.setup import Setup

SCRIPT = Path(__file__).parents[2] / "scripts" / "train_cnn.py"


@pytest.mark.parametrize("strategy", ["zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "pipeline"])
def test_it_is_refused_in_deepspeeds_engine(strategy: str) -> None:
    with pytest.raises(UserError) as caught:
        Setup.build(strategy=strategy, world_size=2, torch_compile=True)
    assert caught.value.lines == (
        f"Setup.build: torch_compile: True: {strategy} (Setup.build) runs the model in DeepSpeed's engine, where it is "
        "not supported yet; leave it out, or take single or ddp",
    )


def test_it_is_taken_in_one_process_and_ddp() -> None:
    assert Setup.build(strategy="single", torch_compile=True).torch_compile
    assert Setup.build(strategy="ddp", world_size=2, torch_compile=True).torch_compile


def test_a_missing_compiler_is_one_line(tmp_path: Path) -> None:
    few = "--max_train_steps 1 --max_train_samples 64 --max_eval_samples 64 --output_dir".split()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--torch_compile", *few, str(tmp_path / "run")],
        env={**os.environ, "CXX": "/nonexistent", "TORCHINDUCTOR_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    lines = [line for line in done.stderr.splitlines() if "error" in line.lower()]
    assert (done.returncode, len(lines)) == (2, 1), done.stderr
    assert lines[0].startswith("oneloop: error: --torch_compile: True: torch cannot compile CNN: InvalidCxxCompiler: ")
    assert lines[0].endswith("leave it out; on a CPU it needs a C++ compiler (CXX names it)")
    assert "Traceback" not in done.stderr


class Untraced(nn.Linear):
    @torch.compiler.disable
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x)


def test_a_model_that_torch_runs_as_it_is_is_refused() -> None:
    model = Untraced(2, 2)
    compile_forward(model)
    with pytest.raises(UserError, match="--torch_compile: True: torch compiled no part of Untraced; leave it out, or "):
        model(torch.ones(1, 2))
