"""`check` and a run's own validation agree on every file: setup, lines, notes."""

import json
import os
from pathlib import Path

import pytest
from accelerates import handed
from launched import DEEPSPEED, ROOT

from toolkit.arguments import read_arguments
from toolkit.check import check
from toolkit.setup.run import resolve
from toolkit.setup.script import read_script

WILD = Path(__file__).parent / "wild"
SCRIPT, ARGV = "scripts/train_cnn.py", ["--max_train_steps", "2"]
# Accelerate's launcher fails on these itself: a run does not get as far as our lines.
REFUSED_BEFORE = {
    "config_fp8.yaml": "RuntimeError",
    "config_mpirun.yaml": "OSError",
    "config_multi_cpu.yaml": "ValueError",
    "config_no_unquoted.yaml": "AttributeError",
    "config_sagemaker.yaml": "AttributeError",
    "config_tpu.yaml": "ModuleNotFoundError",
    "misspelt.yaml": "ValueError",
    "strings.yaml": "TypeError",
}


@pytest.fixture(autouse=True)
def _as_a_user(monkeypatch):
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("HF_HOME", "/nonexistent")
    for variable in [each for each in os.environ if each.startswith("ACCELERATE_")]:
        monkeypatch.delenv(variable)


def compared(report, argv, environ, parent):
    """The run's own verdict is the one of `report`."""
    arguments, faults = read_arguments(argv, script=SCRIPT, **read_script(SCRIPT).arguments)
    run = resolve(arguments, environ, parent)
    assert (list(report.errors), list(report.warnings)) == ([*faults, *run.faults], list(run.notes))
    if not run.faults:
        expected = json.loads(json.dumps(run.setup.as_dict()))
        if run.setup.launcher != "accelerate":
            expected["world_size"]["origin"] = "--num_processes"
        assert report.setup == expected


@pytest.mark.parametrize("path", sorted(WILD.glob("*.json")), ids=lambda path: path.name)
def test_a_json_under_deepspeed(monkeypatch, path):
    argv = [*ARGV, "--deepspeed_config", str(path)]
    report = check(os.environ, num_processes=2, script=SCRIPT, script_arguments=argv)
    compared(report, argv, {**os.environ, **DEEPSPEED}, [])


@pytest.mark.parametrize("path", sorted(WILD.glob("*.yaml")), ids=lambda path: path.name)
def test_a_yaml_under_accelerate_launch(monkeypatch, path):
    report = check(os.environ, config_file=str(path), script=SCRIPT, script_arguments=ARGV)
    try:
        environ, _ = handed(monkeypatch, path, "--main_process_port", "0")
    except Exception as error:
        assert report.errors
        assert type(error).__name__ == REFUSED_BEFORE[path.name], error
        return
    assert path.name not in REFUSED_BEFORE
    parent = ["accelerate", "launch", "--config_file", str(path), SCRIPT]
    compared(report, ARGV, environ, parent)
