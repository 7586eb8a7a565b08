"""`oneloop compare` as it is typed: real launchers, real runs, and what is left of them."""

import csv
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit import cli
from toolkit.compare import command

ROOT = Path(__file__).parents[2]
FEW = ("--max_train_samples", "320", "--max_eval_samples", "64", "--activation", "gelu", "--pooling", "avg")


def oneloop(*argv, **more):
    command = [sys.executable, "-m", "toolkit.cli", "compare", *map(str, argv)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, **more)


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """single, DDP, a JSON that clips otherwise, one that check refuses, and one that fails as it starts."""
    folder = tmp_path_factory.mktemp("compare")
    stage = {"zero_optimization": {"stage": 2}}
    (folder / "clips.json").write_text(json.dumps({**stage, "gradient_clipping": 0.05}))
    (folder / "bad.json").write_text(json.dumps({**stage, "gradient_cliping": 1}))
    (folder / "cut.json").write_text(json.dumps({"pipeline": {"stages": 2, "partition": "type:nothing"}}))
    files = [folder / f"{name}.json" for name in ("clips", "bad", "cut")]
    output = folder / "out"
    setups = ["single", "ddp", *files]
    done = oneloop("scripts/train_cnn.py", "--setups", *setups, "--steps", 6, "--output_dir", output, "--", *FEW)
    return done, output


def test_each_setup_has_its_verdict(compared):
    done, output = compared
    told = json.loads((output / "compare.json").read_text())
    rows = {row["label"]: row for row in told["setups"]}
    assert done.returncode == 1, done.stderr
    assert (told["script"], told["reference"]) == ("scripts/train_cnn.py", "single")
    assert {label: row["verdict"] for label, row in rows.items()} == {
        "single": "reference",
        "ddp": "same",
        "clips.json": "differs",
        "bad.json": "failed",
        "cut.json": "failed",
    }
    ddp, clips = rows["ddp"], rows["clips.json"]
    assert ddp["loss"] <= 1e-6 and ddp["weights"] <= 1e-4  # 2e-7 and 3e-6 measured
    assert (ddp["strategy"], ddp["ranks"], len(ddp["peak_memory_bytes"])) == ("ddp", 2, 2)
    assert ddp["samples_per_second"] > 0 and ddp["checkpoint_bytes"] > 1e6
    assert clips["step"] == 2
    assert (
        clips["cause"].startswith("clipping: max_grad_norm 0.05 (") and "not 1.0 (script's default)" in clips["cause"]
    )
    assert "did you mean gradient_clipping?" in rows["bad.json"]["cause"]
    assert "no layer's class matches" in rows["cut.json"]["cause"]


def test_what_is_printed_and_written(compared):
    done, output = compared
    assert "oneloop: single (1/5): 1 rank, output in" in done.stderr
    assert "oneloop: bad.json (4/5): not started: " in done.stderr
    assert f"oneloop: report: {output}/report.html" in done.stderr
    assert "clips.json differs from step 2: clipping: max_grad_norm 0.05" in done.stdout
    with (output / "compare.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["label"], row["verdict"]) for row in rows][:2] == [("single", "reference"), ("ddp", "same")]
    assert "clips.json" in (output / "report.html").read_text()
    assert (output / "runs" / "ddp" / "curves.png").stat().st_size > 10_000


def test_finished_runs_are_drawn(compared, tmp_path):
    _, output = compared
    runs = output / "runs"
    done = oneloop("--runs", runs / "single", runs / "ddp", runs / "ddp", "--output_dir", tmp_path / "out")
    told = json.loads((tmp_path / "out" / "compare.json").read_text())
    assert (done.returncode, told["script"]) == (0, "")
    assert [(row["label"], row["verdict"]) for row in told["setups"]] == [
        ("single", "reference"),
        ("ddp", "same"),
        ("ddp (2)", "same"),
    ]


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ((), "SCRIPT: None: missing; oneloop compare SCRIPT --setups ddp zero2"),
        (("scripts/train_cnn.py",), "--setups: None: missing; oneloop compare SCRIPT --setups ddp zero2"),
        (
            ("--runs", "nowhere"),
            "--runs: 'nowhere': no run of oneloop stands there (metrics.jsonl: No such file or directory)",
        ),
        (("--runs", "a", "--steps", "3"), "--steps: 3: goes with runs that are started; leave it out beside --runs"),
        (("none.py", "--setups", "ddp"), f"script: 'none.py': no such file, searched from {ROOT}; give its path"),
        (("scripts/train_cnn.py", "--setups", "ddp", "--output_dir", "tests"), "--output_dir: 'tests': is not empty;"),
    ],
)
def test_what_is_refused(monkeypatch, capsys, argv, line):
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["oneloop", "compare", *argv])
    before = sorted(ROOT.glob("runs/compare-*"))
    with pytest.raises(SystemExit) as ended:
        cli.main()
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (2, "")
    assert told.err.startswith(f"oneloop: error: {line}")
    assert sorted(ROOT.glob("runs/compare-*")) == before


def test_a_command_that_is_refused_is_refused_at_once():
    code = "import sys; sys.argv = ['oneloop', 'compare', 'none.py', '--setups', 'ddp']\nfrom toolkit import cli\n"
    code += "try:\n cli.main()\nfinally:\n print({'torch', 'matplotlib', 'accelerate'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_a_signal_while_it_measures_loses_nothing(tmp_path):
    argv = ["scripts/train_cnn.py", "--setups", "single", "--steps", "2", "--output_dir", tmp_path / "out", "--", *FEW]
    command = [sys.executable, "-m", "toolkit.cli", "compare", *map(str, argv)]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    for line in process.stderr:
        if line.startswith("oneloop: single (1/1): done"):
            process.send_signal(signal.SIGTERM)
            break
    out, told = process.communicate(timeout=60)
    assert (process.returncode, "single" in out) == (143, True), told
    rows = json.loads((tmp_path / "out" / "compare.json").read_text())["setups"]
    assert [(row["label"], row["verdict"]) for row in rows] == [("single", "reference")]
    assert (tmp_path / "out" / "report.html").stat().st_size > 10_000


def test_numbers_of_ranks_may_be_named_one_by_one(monkeypatch):
    taken = []
    monkeypatch.setattr(command, "compare_setups", lambda *given: taken.append(given[2]) or 0)
    argv = ["x.py", "--setups", "ddp", "--num_processes", "1", "--num_processes", "2", "4"]
    monkeypatch.setattr(sys, "argv", ["oneloop", "compare", *argv])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert (ended.value.code, taken) == (0, [[1, 2, 4]])
