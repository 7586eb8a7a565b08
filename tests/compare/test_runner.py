"""Setups are started one after another; one that fails stops nothing, and nothing outlives the command."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from toolkit.compare import runner
from toolkit.compare.runner import run_all
from toolkit.compare.runs import read_run
from toolkit.compare.setups import Start
from toolkit.errors import UserError

# A launcher that writes a run, and then does as it is told.
LAUNCHER = """
import json, os, signal, subprocess, sys, time
folder, then = sys.argv[1:]
os.makedirs(folder)
setup = {"world_size": {"value": 2, "origin": "test", "overrode": None}}
open(folder + "/summary.json", "w").write(json.dumps({"setup": setup, "error": None}))
row = {"step": 1, "samples": 8, "learning_rate": 0.1, "loss": 2.5}
open(folder + "/metrics.jsonl", "w").write(json.dumps(row) + '\\n{"step": 1}\\n')
if then == "refuse":
    print("some library's line")
    print("oneloop: error: --learning_rate: -1.0: must be 0 or more; correct the value")
    sys.exit(2)
if then == "idle":  # a script that reads what nobody types, and trains nothing
    os.remove(folder + "/summary.json")
    sys.exit(len(sys.stdin.read()))
if then == "crash":
    raise RuntimeError("boom")
if then == "orphan":  # a rank in a session of its own, which SIGTERM does not end
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); "
    code += "time.sleep(300)"
    child = subprocess.Popen([sys.executable, "-c", code], start_new_session=True, stdout=subprocess.PIPE)
    child.stdout.readline()
    open(folder + "/pid", "w").write(str(child.pid))
    time.sleep(300)
"""


def start(tmp_path, then, label=None, **more):
    folder = tmp_path / "runs" / (label or then)
    command = (sys.executable, "-c", LAUNCHER, str(folder), then)
    return Start(label or then, folder, command, 2, environ=dict(os.environ), **more)


def test_one_that_fails_does_not_stop_the_others(tmp_path, capfd):
    refused = ("a.json: gradient_cliping: unknown key",)
    starts = [start(tmp_path, "refuse"), start(tmp_path, "crash"), start(tmp_path, "-", "bad", errors=refused)]
    runs = list(run_all([*starts, start(tmp_path, "well")], steps=1))
    assert [run.label for run in runs] == ["refuse", "crash", "bad", "well"]
    assert runs[0].errors == ("--learning_rate: -1.0: must be 0 or more; correct the value",)
    assert (runs[1].errors[0], runs[1].errors[-1]) == ("ended with 1", "RuntimeError: boom")
    assert runs[2].errors == refused
    assert not (tmp_path / "runs" / "bad").exists()
    assert (runs[3].errors, runs[3].ranks, [row["loss"] for row in runs[3].rows]) == ((), 2, [2.5])
    told = capfd.readouterr().err
    assert f"oneloop: refuse (1/4): 2 ranks, output in {tmp_path}/runs/refuse.log" in told
    assert "oneloop: bad (3/4): not started: a.json: gradient_cliping: unknown key" in told
    assert "oneloop: well (4/4): done, " in told


def test_a_script_that_trains_nothing_and_asks_is_a_failure(tmp_path):
    runs = list(run_all([start(tmp_path, "idle"), start(tmp_path, "well")], steps=1))
    (line,) = runs[0].errors
    why = "(summary.json: No such file or directory)"
    assert line == f"ended well, but in {tmp_path}/runs/idle no run of oneloop stands there {why}"
    assert runs[1].errors == ()


def test_a_terminal_shows_which_setup_runs_and_how_far_it_is(tmp_path):
    code = (
        "import sys, pathlib; sys.path.insert(0, sys.argv[1]); import test_runner; folder = pathlib.Path(sys.argv[2]); "
    )
    code += "print(*test_runner.run_all([test_runner.start(folder, 'well', '[red]a')], 1))"
    master, slave = pty.openpty()
    command = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    done = subprocess.run(command, stderr=slave, stdout=subprocess.PIPE, env=os.environ | {"COLUMNS": "80"}, timeout=60)
    os.close(slave)
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", os.read(master, 1 << 20).decode())
    os.close(master)
    assert done.returncode == 0 and b"Run(label='[red]a'" in done.stdout
    lines = re.split("[\r\n]+", told)
    assert any(re.fullmatch(r"\[red\]a \(1/1\) ━+ step 1/1 0:00:0\d", line) for line in lines), lines
    assert any(re.fullmatch(r"oneloop: \[red\]a \(1/1\): done, \d s *", line) for line in lines), lines


def lives(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_launcher_that_is_not_there_and_a_log_without_a_place_are_failures(tmp_path):
    (tmp_path / "runs" / "blocked.log").mkdir(parents=True)
    absent = Start("absent", tmp_path / "runs" / "absent", (str(tmp_path / "none"),), 2, environ=dict(os.environ))
    runs = list(run_all([absent, start(tmp_path, "well", "blocked"), start(tmp_path, "well")], steps=1))
    assert runs[0].errors == (f"cannot be started: [Errno 2] No such file or directory: '{tmp_path}/none'",)
    assert runs[1].errors == (f"cannot be started: [Errno 21] Is a directory: '{tmp_path}/runs/blocked.log'",)
    assert runs[2].errors == ()


COMPARE = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
import test_runner
from toolkit.compare import runner
from toolkit.compare.runner import Interrupted, run_all
runner.GRACE_SECONDS = 1.0
folder = Path(sys.argv[2])
starts = [test_runner.start(folder, *then) for then in (("well",), ("orphan",), ("-", "last"))]
done = []
try:
    for run in run_all(starts, 1):
        done.append(run.label)
except Interrupted as end:
    print(done)
    sys.exit(end.code)
"""


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_every_process_and_keeps_what_is_done(tmp_path, number, code):
    command = [sys.executable, "-c", COMPARE, str(Path(__file__).parent), str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    pid, end = tmp_path / "runs" / "orphan" / "pid", time.monotonic() + 60
    while not (pid.exists() and pid.read_text()):
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.05)
    time.sleep(2 * runner._POLL_SECONDS)  # until it has been seen
    orphan = psutil.Process(int(pid.read_text()))
    launcher = orphan.ppid()
    process.send_signal(number)
    out, told = process.communicate(timeout=60)
    assert (process.returncode, out) == (code, "['well']\n")
    assert "oneloop: ending the running setup; what is done is kept" in told
    assert [each for each in (orphan.pid, launcher) if lives(each)] == []
    assert not (tmp_path / "runs" / "last").exists()


ROW = {"step": 1, "samples": 8, "learning_rate": 0.1, "loss": 1.0}
COUNT = {"value": 2, "origin": "test"}
STAGED = {"gradient_accumulation_steps": COUNT}


def test_a_run_that_is_no_run_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"stands there \(metrics.jsonl: No such file or directory\)"):
        read_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text(json.dumps(ROW) + "\n")
    with pytest.raises(UserError, match=r"stands there \(summary.json: No such file or directory\)"):
        read_run(tmp_path)
    (tmp_path / "summary.json").write_text(json.dumps({"error": {"rank": 1, "step": 7, "message": "gone"}}))
    assert read_run(tmp_path).errors == ("rank 1, step 7: gone",)


@pytest.mark.parametrize(
    ("rows", "summary", "reason"),
    [
        ("[1]", {}, "metrics.jsonl: line 1: 'unreadable': expected an object, got list"),
        ('{"step": 1', {}, "metrics.jsonl: line 1: 'unreadable': Expecting ',' delimiter"),
        ('{"loss": NaN}', {}, "metrics.jsonl: line 1: 'unreadable': NaN is no JSON"),
        ({**ROW, "step": "one"}, {}, "step: expected a number, got 'one'"),
        ({**ROW, "loss": "<b>"}, {}, "loss: expected a number, got '<b>'"),
        ({**ROW, "samples": None}, {}, "samples: expected a number, got None"),
        ({"step": 1, "eval_loss": "low"}, {}, "eval_loss: expected a number, got 'low'"),
        ({"step": 1, "eval_loss": [1.0]}, {}, r"eval_loss: expected a number, got \[1.0\]"),
        ({**ROW, "grad_norm": [1.0]}, {}, r"grad_norm: expected a number, got \[1.0\]"),
        ({"eval_loss": 1.0}, {}, "step: expected a number, got None"),
        ({"step": 1, "loss": 1.0}, {}, "samples: expected a number, got None"),
        (ROW, {"setup": 5}, "summary.json: 'unreadable': setup: expected an object, got 5"),
        (ROW, {"setup": {"seed": 3}}, "setup.seed: expected a value with its origin, got 3"),
        (ROW, {"setup": {"world_size": {**COUNT, "value": [1]}}}, r"setup.world_size: expected an integer, got \[1\]"),
        (ROW, {"metrics": [1]}, r"metrics: expected an object, got \[1\]"),
        (ROW, {}, "setup: expected the values of a run, got None"),
        (ROW, {"setup": {"max_grad_norm": {**COUNT, "value": "big"}}}, "setup.max_grad_norm: expected a number"),
        (ROW, {"metrics": {"loss": "low"}}, "metrics.loss: expected a number, got 'low'"),
        (ROW, {"seconds_to_first_step": "soon"}, "seconds_to_first_step: expected a number, got 'soon'"),
        ('{"step": 1, "samples": 8, "learning_rate": 0.1, "loss": 1e999}', {}, "loss: expected a number, got inf"),
        (ROW, {"error": "gone"}, "error: expected an object, got 'gone'"),
        (ROW, {"peak_memory_bytes": ["much"]}, "peak_memory_bytes: expected a list of numbers, got "),
        (ROW, {"checkpoint": {"bytes": "much"}}, "checkpoint.bytes: expected a number, got 'much'"),
        (ROW, {"communication": {"all_reduce": 5}}, 'communication.all_reduce: expected an object with "bytes", got 5'),
        (
            ROW,
            {"setup": STAGED, "pipeline": {"working_seconds": [1.0]}},
            "pipeline: expected the seconds of its stages and steps, got ",
        ),
        (ROW, {"setup": STAGED, "pipeline": {"working_seconds": [], "step_seconds": 1}}, "pipeline: expected the sec"),
        (
            ROW,
            {"setup": {"seed": COUNT}, "pipeline": {"a": 1}},
            "setup.gradient_accumulation_steps: expected the micro",
        ),
    ],
)
def test_what_no_run_has_written_is_a_line(tmp_path, rows, summary, reason):
    (tmp_path / "metrics.jsonl").write_text((rows if isinstance(rows, str) else json.dumps(rows)) + "\n")
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    with pytest.raises(UserError, match=reason):
        read_run(tmp_path)
    assert read_run(tmp_path, errors=("failed",)).errors == ("failed",)
