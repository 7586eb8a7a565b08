"""A user's mistake through the real launchers: one line for each, from rank 0 alone, and the launcher's exit code."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
from starting import ROOT, launch_matrix, side_by_side

CNN = "scripts/train_cnn.py"
FAILING = str(Path(__file__).with_name("failing.py").relative_to(ROOT))
SAMPLE = "toolkit/samples/fashion_mnist_small/train.parquet"
EXIT = {"python": 2, "torchrun": 1, "accelerate": 1, "deepspeed": 2}
STAGE1, MICRO = {"zero_optimization": {"stage": 1}}, "--per_device_train_batch_size"
BOTH = {**STAGE1, "fp16": {"enabled": True}, "bf16": {"enabled": True}}
PIPELINE2 = {"zero_optimization": {"stage": 2}, "pipeline": {"stages": 2}}
STAGES3 = {**STAGE1, "pipeline": {"stages": 3}}
TRIPLE = {**STAGE1, "train_batch_size": 30, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}
# name -> (launcher, JSON's content or a preset's name, script and arguments, beginnings of the lines)
CASES = {
    "wrong argument, python": ("python", "", [CNN, "--learning_rat", "1"], ["--learning_rat: "]),
    "wrong argument, torchrun": ("torchrun", "", [CNN, "--learning_rat", "1"], ["--learning_rat: "]),
    "wrong argument, accelerate": ("accelerate", "ddp", [CNN, "--learning_rat", "1"], ["--learning_rat: "]),
    "wrong argument, deepspeed": ("deepspeed", "zero2", [CNN, "--learning_rat", "1"], ["--learning_rat: "]),
    "two mistakes": (
        "torchrun",
        "",
        [CNN, "--learning_rate", "-1", "--seed", "x"],
        ["--learning_rate: '-1': must be at least 0", "--seed: 'x': expected an integer"],
    ),
    "no such file": ("torchrun", "", [CNN, "--train_file", "nosuch.parquet"], ["--train_file: 'nosuch.parquet'"]),
    "no such file, deepspeed": ("deepspeed", "zero1", [CNN, "--train_file", "nosuch.csv"], ["--train_file: "]),
    "no such column": (
        "accelerate",
        "ddp",
        [CNN, "--train_file", SAMPLE, "--image_column_name", "nosuch"],
        ["--image_column_name: 'nosuch'"],
    ),
    "no such json": ("deepspeed", "nosuch", [CNN], ["ds_configs/nosuch.json: 'no such file'"]),
    "fp16 and bf16": ("deepspeed", BOTH, [CNN], ["{json}: fp16.enabled: True"]),
    "fp16 and bf16, torchrun": ("torchrun", BOTH, [CNN], ["{json}: fp16.enabled: True"]),
    "pipeline and ZeRO-2": (
        "deepspeed",
        PIPELINE2,
        [CNN],
        ["{json}: pipeline.stages: 2: {json}: zero_optimization.st"],
    ),
    "more stages than ranks": (
        "torchrun",
        STAGES3,
        [CNN],
        ["{json}: pipeline.stages: 3: more stages than the 2 ranks"],
    ),
    "more stages than layers": (
        "torchrun",
        "pipeline",
        [FAILING],
        ["ds_configs/pipeline.json: pipeline.stages: 2: Ch"],
    ),
    "numbers that do not multiply": ("deepspeed", TRIPLE, [CNN], ["{json}: train_batch_size: 30: "]),
    "typed numbers that do not multiply": (
        "torchrun",
        "",
        [CNN, "--train_batch_size", "10", MICRO, "4"],
        ["--train_batch_size: 10: 10 is not a multiple of 4 x 2"],
    ),
    "a folder that holds a run": ("torchrun", "", [CNN, "--max_train_samples", "64"], ["--output_dir: "]),
    "a folder that holds a run, python": ("python", "", [CNN, "--max_train_samples", "64"], ["--output_dir: "]),
    "a loss that is a scalar": ("torchrun", "pipeline", [FAILING], ["loss_fn: (): must return one loss per sample"]),
    "MULTI_CPU": ("accelerate", "MULTI_CPU", [CNN], ["{yaml}: num_processes: 2: asked for 2 processes"]),
}
FAIL = {"more stages than layers": "layers 0 -", "a loss that is a scalar": "scalar 0 -"}
MULTI_CPU = "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_machines: 1\nnum_processes: 2\n"


def run(folder, name):
    launcher, setup, script, _ = CASES[name]
    folder.mkdir()
    if name.startswith("a folder"):
        (folder / "run").mkdir()
        (folder / "run" / "metrics.jsonl").write_text('{"step": 1, "loss": 7.0}\n')
        (folder / "run" / "summary.json").write_text('{"precious": true}\n')
    (folder / "set.json").write_text(json.dumps(setup))
    (folder / "cpu2.yaml").write_text(MULTI_CPU)
    if isinstance(setup, dict):
        script, setup = [*script, "--deepspeed_config", str(folder / "set.json")], ""
    line = launch_matrix.command(launcher, setup, script)
    line = [str(folder / "cpu2.yaml") if part == "accelerate_configs/MULTI_CPU.yaml" else part for part in line]
    launched = launch_matrix.launch(line, folder / "run", ONELOOP_FAIL=FAIL.get(name, "none 0 -"))
    launched.folder = folder
    return launched


@pytest.fixture(scope="module")
def refused(tmp_path_factory):
    folder = tmp_path_factory.mktemp("refusals")
    return side_by_side({name: partial(run, folder / str(number), name) for number, name in enumerate(CASES)})


each = pytest.mark.parametrize("case", CASES)


@each
def test_the_launchers_own_exit_code(refused, case):
    assert refused[case].returncode == EXIT[CASES[case][0]]


@each
def test_one_line_for_each_mistake_and_no_traceback_of_ours(refused, case):
    folder = refused[case].folder
    wanted = [
        "oneloop: error: " + line.format(json=folder / "set.json", yaml=folder / "cpu2.yaml") for line in CASES[case][3]
    ]
    lines = [line for line in refused[case].output.splitlines() if line.startswith("oneloop: error:")]
    assert len(lines) == len(wanted)
    assert [line[: len(start)] for line, start in zip(lines, wanted, strict=True)] == wanted
    ours = [f'File "{ROOT}/{folder}/' for folder in ("toolkit", "scripts", "tests")]  # not a .venv beside them
    assert not any(frame in refused[case].output for frame in ours)


@pytest.mark.parametrize("case", [name for name in CASES if name.startswith("a folder")])
def test_a_run_that_is_there_is_left_alone(refused, case):
    folder = refused[case].folder / "run"
    assert {path.name: path.read_text() for path in folder.iterdir()} == {
        "metrics.jsonl": '{"step": 1, "loss": 7.0}\n',
        "summary.json": '{"precious": true}\n',
    }


def test_asked_and_got_with_the_working_command(refused):
    (line,) = [line for line in refused["MULTI_CPU"].output.splitlines() if line.startswith("oneloop: error:")]
    assert "got 1" in line
    assert "torchrun --nproc_per_node 2 scripts/train_cnn.py" in line
