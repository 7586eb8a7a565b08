"""torchrun starts the ranks again: the run goes on from its newest checkpoint, in the folder that it had."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from launch_matrix import BIN

SCRIPT = Path(__file__).with_name("failing.py")


def test_ranks_that_are_started_again_go_on(tmp_path: Path) -> None:
    command = [str(BIN / "torchrun"), "--standalone", "--nproc_per_node", "2", "--max_restarts", "1", str(SCRIPT)]
    done = subprocess.run(
        [*command, "--checkpointing_steps", "1", "--logging_steps", "1"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1", "ONELOOP_FAIL": f"kill 1 {tmp_path / 'killed'}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert "rank 1 failed at step 3: ended without a word" in done.stdout
    (folder,) = (tmp_path / "runs").iterdir()
    assert f"resumed from runs/{folder.name}/checkpoints/step-000002: step 2" in done.stdout
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5, 6]
    assert json.loads((folder / "summary.json").read_text())["resumed_at_step"] == 2
