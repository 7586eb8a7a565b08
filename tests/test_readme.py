"""README keeps its word: its commands are run as they stand, its files are written, its output is compared.

A bash block with `<!-- not run: install -->` before it is run without its installing lines, one with hub, gpu or hosts
not at all. `<!-- file: PATH -->` writes the block that follows, `<!-- exits: N -->` asks for that exit code, and
`<!-- output -->` for that text on stderr.
"""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

import toolkit
from toolkit import cli, parity, parity_table

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
INSTALLS = ("python3 -m venv ", ". .venv", "pip install ")
NOT_RUN = ("hub", "gpu", "hosts")
ELSEWHERE = {
    "python -m pytest": "is the run that this test is part of",
    "oneloop parity --model cnn bert": "its trainings are those of test_parity.py; what it asks for is tested below",
}
# Every other command, and what must come of it: the setup that was settled, the engine that was obtained.
SINGLE_CNN, DDP = ("single", "CNN"), ("ddp", "DistributedDataParallel")
OBTAINED = {
    "accelerate launch --config_file accelerate_configs/ddp.yaml scripts/train_cnn.py": DDP,
    "python scripts/train_bert.py": ("single", "BertForSequenceClassification"),
    "python scripts/train_cnn.py --max_train_steps 3": SINGLE_CNN,
    "torchrun --nproc_per_node 2 scripts/train_cnn.py --gradient_accumulation_steps 4 --max_train_steps 3": DDP,
    "deepspeed --num_gpus 2 scripts/train_cnn.py --deepspeed_config ds_configs/pipeline.json --max_train_steps 3": (
        "pipeline",
        "PipelineEngine",
    ),
    "accelerate launch --config_file accelerate_configs/zero2.yaml scripts/train_cnn.py --max_train_steps 3": (
        "zero2",
        "DeepSpeedEngine",
    ),
    "python scripts/train_cnn.py --image_size 64 --train_batch_size 128 --optimizer adam --max_train_steps 3 "
    "--max_train_samples 600": SINGLE_CNN,
    "accelerate launch scripts/train_bert.py --max_train_steps 3 --max_train_samples 300 --max_eval_samples 100": (
        "single",
        "BertForSequenceClassification",
    ),
    "python scripts/train_cnn.py --width 0.5 --depthwise --max_train_steps 3": SINGLE_CNN,
    "python scripts/train_cnn.py --augment light --max_train_steps 3": SINGLE_CNN,
    "python scripts/train_cnn.py --eval_steps 2 --metric_for_best_model accuracy --max_train_steps 3": SINGLE_CNN,
    "python scripts/train_cnn.py --mixed_precision bf16 --max_train_steps 3": SINGLE_CNN,
    "python scripts/train_cnn.py --optimizer sgd --learning_rate 0.05 --lr_scheduler_type cosine "
    "--num_warmup_steps 2 --max_train_steps 3": SINGLE_CNN,
    "python scripts/train_bert.py --help": None,
    "deepspeed scripts/train_cnn.py --max_train_steps 3": ("zero1", "DeepSpeedEngine"),
    "python own_model.py": ("single", "Regressor"),
    "torchrun --nproc_per_node 2 own_model.py": DDP,
    "torchrun --nproc_per_node 2 own_model.py --deepspeed_config ds_configs/pipeline.json": (
        "pipeline",
        "PipelineEngine",
    ),
    "accelerate launch --config_file accelerate_configs/pipeline3.yaml scripts/train_cnn.py --max_train_steps 3": (
        "pipeline",
        "PipelineEngine",
    ),
    "python scripts/train_cnn.py --learning_rate -1 --train_batchsize 64": None,
}
# The main job at its defaults ends with at least this, from its own last evaluation.
ACCURACY = {
    "accelerate launch --config_file accelerate_configs/ddp.yaml scripts/train_cnn.py": 0.85,
    "python scripts/train_bert.py": 0.82,
}
# One after another: stop under ZeRO-2, go on as a pipeline, verify, export, predict.
GOES_ON = [
    "torchrun --nproc_per_node 2 scripts/train_bert.py --deepspeed_config ds_configs/zero2.json "
    "--max_train_samples 320 --max_eval_samples 64 --output_dir runs/reviews --stop_after_steps 5",
    "torchrun --nproc_per_node 2 scripts/train_bert.py --deepspeed_config ds_configs/pipeline.json "
    "--max_train_samples 320 --max_eval_samples 64 --output_dir runs/reviews --resume_from_checkpoint auto",
    "oneloop verify runs/reviews",
    "oneloop export runs/reviews exported",
    "oneloop predict exported reviews.csv --output labels.csv",
]
CHECKED = [
    "oneloop check --config_file accelerate_configs/zero2.yaml scripts/train_bert.py --max_train_steps 50",
    "oneloop check --deepspeed_config ds_configs/pipeline.json --num_processes 2 --json scripts/train_cnn.py",
    "oneloop check --explain gradient_clipping",
    "oneloop init zero3 --output_dir my_configs",
]
TRIED = "python scripts/train_cnn.py --find_learning_rate --width 0.25"
COMPARED = (
    "oneloop compare scripts/train_cnn.py --setups single ddp ds_configs/pipeline.json --steps 10 "
    "--output_dir compared -- --max_train_samples 640 --max_eval_samples 256"
)
OWN_MODEL = [command for command in OBTAINED if "own_model.py" in command]


class Block(NamedTuple):
    language: str
    text: str
    markers: dict[str, str]  # of the comments right before it


def blocks() -> list[Block]:
    found = re.finditer(r"((?:^<!-- [^\n]* -->\n)*)^```(\w+)\n(.*?)^```$", README, re.M | re.S)
    return [
        Block(m[2], m[3], dict((k, v.strip()) for k, v in re.findall(r"<!-- ([\w ]+):?(.*?) -->", m[1]))) for m in found
    ]


def commands() -> dict[str, int]:
    """{command: exit code} of all bash blocks that are run and of the code spans in the tables."""
    found = {}
    for block in blocks():
        reason = block.markers.get("not run")
        if block.language != "bash" or reason in NOT_RUN:
            continue
        for line in block.text.splitlines():
            if not (reason == "install" and line.startswith(INSTALLS)):
                found[line] = int(block.markers.get("exits", 0))
    spans = r"`((?:python|torchrun|deepspeed|accelerate launch) [^`]*\.py[^`]*|oneloop [^`]+)`"
    for line in README.splitlines():
        if line.startswith("|"):
            found |= {command: 0 for command in re.findall(spans, line)}
    return found


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the scripts, the config files, and the files that README has one write."""
    folder = tmp_path_factory.mktemp("readme")
    for name in ("scripts", "accelerate_configs", "ds_configs"):
        shutil.copytree(ROOT / name, folder / name)
    for block in blocks():
        if "file" in block.markers:
            (folder / block.markers["file"]).write_text(block.text, encoding="utf-8")
    return folder


def run(command: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict[str, Any] | None, list[float]]:
    """The process, and summary and losses of the run that it left, if it left one."""
    before = set(folder.glob("runs/*"))
    environ = os.environ | {
        "PATH": sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"],
        # A developer's own `accelerate config` would count as given.
        "HF_HOME": str(folder / "home"),
        "HF_HUB_OFFLINE": "1",
    }
    done = subprocess.run(command, shell=True, cwd=folder, env=environ, capture_output=True, text=True, timeout=900)
    left = set(folder.glob("runs/*")) - before
    assert len(left) <= 1
    if not left:
        return done, None, []
    (output_dir,) = left
    if not (output_dir / "metrics.jsonl").exists():  # rates were tried, nothing was trained
        return done, json.loads((output_dir / "learning_rate.json").read_text(encoding="utf-8")), []
    rows = [json.loads(line) for line in (output_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    summary = json.loads((output_dir / "summary.json").read_text(encoding="utf-8"))
    return done, summary, [row["loss"] for row in rows if "loss" in row]


def test_every_command_is_known_here() -> None:
    assert set(commands()) == {*OBTAINED, *ELSEWHERE, *GOES_ON, *CHECKED, TRIED, COMPARED}


def test_markers_are_the_known_ones() -> None:
    reasons = [block.markers["not run"] for block in blocks() if "not run" in block.markers]
    assert set(reasons) == {"install", *NOT_RUN}
    assert [block.markers.get("not run") for block in blocks() if block.language == "bash"][:2] == ["install"] * 2


@pytest.mark.parametrize("command", [command for command in OBTAINED if command not in OWN_MODEL], ids=str)
def test_a_command_does_what_it_says(command: str, newcomer: Path) -> None:
    done, summary, losses = run(command, newcomer)
    assert done.returncode == commands()[command], done.stderr[-4000:]
    if OBTAINED[command] is None:
        assert summary is None
        return
    assert summary is not None
    assert (summary["setup"]["strategy"]["value"], summary["obtained"]["engine"]) == OBTAINED[command]
    assert summary["error"] is None
    assert len(losses) == summary["steps"] == summary["updates"]
    assert "--max_train_steps" not in command or len(losses) == 3
    assert (summary["obtained"]["autocast_dtype"] == "bfloat16") == ("bf16" in command)
    assert summary["metrics"]["accuracy"] >= ACCURACY.get(command, 0.0)
    assert "oneloop: done: " in done.stderr


def test_your_own_model_trains_alike_in_three_setups(newcomer: Path) -> None:
    runs = [run(command, newcomer) for command in OWN_MODEL]
    assert [done.returncode for done, _, _ in runs] == [0, 0, 0], [done.stderr[-2000:] for done, _, _ in runs]
    obtained = [(s["setup"]["strategy"]["value"], s["obtained"]["engine"]) for _, s, _ in runs if s]
    assert obtained == [OBTAINED[command] for command in OWN_MODEL]
    for _, _, losses in runs[1:]:
        assert losses == pytest.approx(runs[0][2], rel=1e-5)
    assert len(runs[0][2]) == 87
    assert runs[0][2][-1] < 0.7 * runs[0][2][0]


def test_a_run_goes_on_in_another_setup_and_labels_a_file(newcomer: Path) -> None:
    ended = [run(command, newcomer)[0] for command in GOES_ON]
    assert [done.returncode for done in ended] == [0] * 5, [done.stderr[-2000:] for done in ended]
    assert "resumed from runs/reviews/checkpoints/step-000005: step 5, written by zero2" in ended[1].stderr
    rows = [json.loads(line) for line in (newcomer / "runs/reviews/metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, 11))
    verified = ended[2].stdout.splitlines()
    assert [line.split(": ")[0] for line in verified] == [
        "runs/reviews/checkpoints/step-000005",
        "runs/reviews/checkpoints/step-000010",
    ]
    assert [line.split(": ")[1].split(" (")[0] for line in verified] == ["whole", "whole"]
    with (newcomer / "labels.csv").open(encoding="utf-8", newline="") as file:
        labels = list(csv.DictReader(file))
    assert list(labels[0]) == ["label", "probability", "probability_negative", "probability_positive"]
    assert len(labels) == 2
    for row in labels:
        assert float(row["probability_negative"]) + float(row["probability_positive"]) == pytest.approx(1, abs=1e-4)
        assert float(row["probability"]) == float(row[f"probability_{row['label']}"]) >= 0.5


def test_a_command_is_checked_before_it_runs(newcomer: Path) -> None:
    table, told, explained, written = [run(command, newcomer)[0] for command in CHECKED]
    assert [done.returncode for done in (table, told, explained, written)] == [0, 0, 0, 0]
    assert table.stdout.split()[:3] == ["strategy", "zero2", "ds_configs/zero2.json:"]
    assert json.loads(told.stdout)["setup"]["stages"]["value"] == 2
    assert "--max_grad_norm" in explained.stdout
    assert written.stdout.splitlines() == ["my_configs/zero3.yaml", "my_configs/zero3.json"]
    done = run("oneloop check --config_file my_configs/zero3.yaml scripts/train_cnn.py", newcomer)[0]
    assert (done.returncode, done.stdout.split()[1]) == (0, "zero3")
    done = run("oneloop check --json --config_file my_configs/zero3.yaml own_model.py --learning_rate 0.1", newcomer)[0]
    assert json.loads(done.stdout)["setup"]["learning_rate"]["overrode"] == "script's default 0.01"


def test_learning_rates_are_tried(newcomer: Path) -> None:
    done, tried, _ = run(TRIED, newcomer)
    assert done.returncode == 0, done.stderr[-4000:]
    assert tried is not None
    assert f"suggestion: --learning_rate {tried['suggestion']:.2g}: " in done.stderr
    assert tried["points"][0]["learning_rate"] == pytest.approx(1e-7)
    assert len(tried["points"]) > 100


def test_setups_are_compared(newcomer: Path) -> None:
    done, *_ = run(COMPARED, newcomer)
    assert done.returncode == 0, done.stderr[-4000:]
    told = json.loads((newcomer / "compared" / "compare.json").read_text(encoding="utf-8"))
    assert [(row["label"], row["ranks"]) for row in told["setups"]] == [("single", 1), ("ddp", 2), ("pipeline.json", 2)]
    assert {row["verdict"] for row in told["setups"][1:]} <= {"same", "same within tolerance"}  # ReLU and max pooling
    assert (newcomer / "compared" / "report.html").is_file()


def test_the_error_lines_are_those_printed(newcomer: Path) -> None:
    (command,) = [block.text.strip() for block in blocks() if "exits" in block.markers]
    (output,) = [block.text for block in blocks() if "output" in block.markers]
    assert run(command, newcomer)[0].stderr == output


def test_what_a_run_leaves_is_what_the_table_says(newcomer: Path) -> None:
    done, summary, _ = run("python own_model.py --max_train_steps 2 --output_dir runs/left", newcomer)
    assert done.returncode == 0, done.stderr
    told = README[README.index("| file | what is in it |") :].split("\n\n")[0].splitlines()[2:]
    cells = {re.findall("`([^`]+)`", row)[0]: set(re.findall("`([^`]+)`", row)[1:]) for row in told}
    folder = newcomer / "runs" / "left"
    # This one's loss stays finite.
    assert {path.name for path in folder.iterdir()} == {name.split("/")[0] for name in cells} - {"not_finite.json"}
    assert [path.name for path in folder.glob("checkpoints/*")] == ["step-000002"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    assert set().union(*rows) == cells["metrics.jsonl"] - {"eval_accuracy", "eval_f1"}  # this one has no metric
    assert summary is not None
    assert set(summary) == cells["summary.json"]


def test_the_parity_command_is_what_test_parity_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    (command,) = [command for command in ELSEWHERE if command.startswith("oneloop ")]
    monkeypatch.setattr("sys.argv", command.split())
    run = patch.object(parity, "run", return_value=[])
    with run as asked, patch.object(parity_table, "show"), pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert asked.call_args.args[0] == [*parity.variants("cnn"), *parity.variants("bert")]


def test_the_names_of_the_package_exist() -> None:
    names = set(re.findall(r"\btoolkit\.([A-Za-z]\w*)\b(?!/)", README)) - {"py"}
    assert names
    assert [name for name in names if not hasattr(toolkit, name)] == []


def test_links_lead_somewhere() -> None:
    titles = re.findall("^#+ (.*)", README, re.M)
    headings = {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}
    targets = re.findall(r"\]\(([^)]+)\)", README)
    assert targets
    for target in targets:
        assert target[1:] in headings if target.startswith("#") else (ROOT / target).is_file(), target
