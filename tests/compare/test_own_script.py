"""A script of one's own under real launchers: several numbers of ranks, counted communication, real signals."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
SOURCE = re.compile(r"<!-- file: own_model.py -->\n```python\n(.*?)```", re.S)
COUNTS = {"zero_optimization": {"stage": 1}, "comms_logger": {"enabled": True, "prof_all": True}}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """README's script beside a JSON that has DeepSpeed count what it sends."""
    folder = tmp_path_factory.mktemp("own")
    (source,) = SOURCE.findall((ROOT / "README.md").read_text(encoding="utf-8"))
    (folder / "own_model.py").write_text(source)
    (folder / "counts.json").write_text(json.dumps(COUNTS))
    return folder


def command(*argv):
    return [sys.executable, "-m", "toolkit.cli", "compare", "own_model.py", "--setups", *argv]


@pytest.fixture(scope="module")
def compared(folder):
    argv = command("ddp", "counts.json", "--num_processes", "1", "2", "--steps", "20", "--output_dir", "out")
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads((folder / "out" / "compare.json").read_text())


def test_a_script_of_ones_own_trains_alike(compared):
    rows = {row["label"]: row for row in compared["setups"]}
    assert {label: (row["verdict"], row["ranks"], row["strategy"]) for label, row in rows.items()} == {
        "single": ("reference", 1, "single"),
        "counts.json x1": ("same", 1, "zero1"),
        "ddp x2": ("same", 2, "ddp"),
        "counts.json x2": ("same", 2, "zero1"),
    }
    assert max(row["loss"] or 0 for row in rows.values()) <= 1e-6  # 2.2e-7 measured
    assert [row["metrics"]["loss"] for row in rows.values()] == pytest.approx([0.4273335] * 4, rel=1e-6)


def test_scaling_is_that_of_the_rates(compared):
    rows = {row["label"]: row for row in compared["setups"]}
    for name in ("ddp", "counts.json"):
        one, two = rows["single" if name == "ddp" else f"{name} x1"], rows[f"{name} x2"]
        assert one["efficiency"] is None
        assert two["efficiency"] == pytest.approx(two["samples_per_second"] / one["samples_per_second"] / 2)


def test_communication_is_told_where_it_is_counted(folder, compared):
    told = {row["label"]: row["communication_bytes"] for row in compared["setups"]}
    assert told["single"] is told["ddp x2"] is None
    counted = json.loads((folder / "out" / "runs" / "counts.json-x2" / "summary.json").read_text())["communication"]
    sent = {name: each["bytes"] for name, each in counted.items()}
    assert told["counts.json x2"] == sum(sent.values())
    whole, steps = 4 * (8 * 64 + 64 + 64 + 1), 20  # bytes of the weights
    assert sent["broadcast"] == whole  # once, before the first step
    assert sent["all_gather_into_tensor"] == steps * 1288  # each rank's half, in whole units of alignment
    assert steps * whole <= sent["all_reduce"] <= steps * (whole + 16)  # gradients, and a norm and a flag


def lives(process):
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("number", "code", "setup"), [(signal.SIGINT, 130, "ddp"), (signal.SIGTERM, 143, "counts.json")]
)
def test_a_signal_in_mid_training_leaves_no_process(folder, tmp_path, number, code, setup):
    """accelerate launch and deepspeed as they are, with two ranks."""
    out = tmp_path / "out"
    argv = command(setup, "--steps", "100000", "--output_dir", str(out), "--", "--logging_steps", "5")
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(argv, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    rows, end = out / "runs" / setup / "metrics.jsonl", time.monotonic() + 120
    while not (rows.exists() and rows.read_text().count("\n") > 5):
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.1)
    started = psutil.Process(process.pid).children(recursive=True)
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert (process.returncode, len(started) >= 3) == (code, True)
    assert [(each.pid, each.name()) for each in started if lives(each)] == []
    assert f"{setup} failed: interrupted" in told
    assert json.loads((out / "compare.json").read_text())["setups"][0]["verdict"] == "failed"
