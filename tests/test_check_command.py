"""The command line of `oneloop check`: what is printed, and its exit code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ENVIRON = {"HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}


def run(*argv, **more):
    command = [sys.executable, "-m", "toolkit.cli", "check", *argv]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=os.environ | ENVIRON | more)


def test_the_command_prints_a_table_or_every_error_and_needs_no_torch(write):
    done = run("--config_file", "accelerate_configs/pipeline_dp.yaml", "scripts/train_bert.py", "--seed", "7")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[:2] == [
        "strategy                        pipeline_dp  ds_configs/pipeline_dp.json: pipeline.stages",
        "world_size                      4            accelerate_configs/pipeline_dp.yaml: num_processes",
    ]
    path = write("a.json", {"gradient_cliping": 1.0, "train_batch_size": 2.5})
    refused = run("--deepspeed_config", path, "scripts/train_cnn.py", "--seed", "-1")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.splitlines() == [
        "oneloop: error: --seed: '-1': must be 0 or more; correct the value",
        f"oneloop: error: {path}: gradient_cliping: 1.0: unknown key, it would be ignored; "
        "did you mean gradient_clipping?",
        f"oneloop: error: {path}: train_batch_size: 2.5: expected integer of 1 or more, got number 2.5; "
        "correct the value",
    ]
    told = run("--json", f"--deepspeed_config={path}")
    assert (told.returncode, len(json.loads(told.stdout)["errors"])) == (2, 2)
    code = "import sys; sys.argv = ['oneloop', 'check', 'scripts/train_cnn.py']\nfrom toolkit import cli\n"
    code += (
        "try:\n cli.main()\nfinally:\n print({'torch', 'accelerate', 'deepspeed', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "set()"


def test_arguments_of_the_script_are_not_taken_for_ours(write):
    done = run("--json", "scripts/train_cnn.py", "--deepspeed_config", "ds_configs/zero1.json", "--seed", "3")
    assert json.loads(done.stdout)["setup"]["seed"] == {
        "value": 3,
        "origin": "--seed",
        "overrode": "script's default 42",
    }
    assert json.loads(done.stdout)["setup"]["strategy"]["value"] == "zero1"


@pytest.mark.parametrize(
    ("argv", "key"),
    [
        (["--bogus"], "oneloop"),
        (["--num_processes", "2.0"], "--num_processes"),
        (["--explain", "zero_stage"], "--explain"),
        (["--explain=zero_stage", "--hostfile", "h"], "--explain"),
    ],
)
def test_our_own_options_are_refused_in_json_too(argv, key):
    done = run("--json", *argv)
    assert (done.returncode, done.stderr) == (2, "")
    told = json.loads(done.stdout)
    assert (told["ok"], [error["key"] for error in told["errors"]]) == (False, [key])


def test_help_of_the_script_names_the_script():
    done = run("scripts/train_cnn.py", "--help")
    assert (done.returncode, done.stdout[:21]) == (0, "usage: train_cnn.py [")
