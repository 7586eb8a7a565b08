"""Files of the wild, really launched: a run has the setup, or the lines, that `oneloop check` told before."""

from __future__ import annotations

import json
import os
import re
from functools import partial

import pytest
from starting import ROOT, launch_matrix, side_by_side

from toolkit.check import check

WILD = "tests/setup/wild"
FEW = ["--max_train_steps", "2", "--max_train_samples", "128", "--max_eval_samples", "32"]
CNN = ["scripts/train_cnn.py", *FEW]
BERT = ["scripts/train_bert.py", *FEW, "--max_length", "32"]
# file -> (script, the strategy it gets)
LAUNCHED = {
    "alexnet_pipeline.json": (CNN, "pipeline"),
    "axolotl_zero1.json": (CNN, "zero1"),
    "config_type_unquoted.yaml": (CNN, "single"),
    "factory_z0.json": (CNN, "ddp"),
    "hf_zero2.json": (BERT, "zero2"),
    "hf_zero2_offload.json": (CNN, "zero2_offload"),
    "hjson_comments.json": (CNN, "zero2"),
    "trl_multi_gpu.yaml": (CNN, "ddp"),
    "trl_zero2.yaml": (BERT, "zero2"),
    "with_json.yaml": (CNN, "zero3"),
    "with_json_and_equal_fields.yaml": (CNN, "zero2"),
    "y2021_zero3.json": (CNN, "zero3_offload"),
}
# The run tells the lines of `check`.
REFUSED = ("misspelt.json", "both_spellings.json", "with_json_and_fields.yaml")
# Accelerate's launcher refuses these itself: the script never starts.
REFUSED_BEFORE = ("misspelt.yaml", "config_sagemaker.yaml", "config_no_unquoted.yaml")


def command(name):
    port = ["--main_process_port", str(launch_matrix.free_port())]
    script = list(LAUNCHED.get(name, (CNN, ""))[0])
    if name.endswith(".yaml"):
        ranks = [] if name == "config_type_unquoted.yaml" else ["--num_processes", "2"]
        accelerate = [str(launch_matrix.BIN / "accelerate"), "launch"]
        return [*accelerate, "--config_file", f"{WILD}/{name}", *ranks, *port, *script]
    deepspeed = [str(launch_matrix.BIN / "deepspeed"), "--num_gpus", "2", "--master_port", port[1]]
    return [*deepspeed, *script, "--deepspeed_config", f"{WILD}/{name}"]


def told(name, output_dir):
    """The report on the same command."""
    script, *argv = LAUNCHED.get(name, (CNN, ""))[0]
    argv = [*argv, "--output_dir", str(output_dir)]
    ranks = None if name == "config_type_unquoted.yaml" else 2
    if name.endswith(".yaml"):
        files = {"config_file": f"{WILD}/{name}"}
    else:
        files = {"deepspeed_config": f"{WILD}/{name}"}
    return check(os.environ, num_processes=ranks, script=script, script_arguments=argv, **files)


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wild")
    names = [*LAUNCHED, *REFUSED, *REFUSED_BEFORE]
    jobs = {name: partial(launch_matrix.launch, command(name), folder / name) for name in names}
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.chdir(ROOT)
        reports = {name: told(name, folder / name) for name in names}
    return reports, side_by_side(jobs), folder


def test_the_files_that_are_marked_are_launched():
    verdicts = (ROOT / "tests" / "setup" / "verdicts.txt").read_text(encoding="utf-8")
    assert re.findall(r"^(\S+) launched$", verdicts, re.M) == list(LAUNCHED)


@pytest.mark.parametrize("name", LAUNCHED)
def test_a_run_has_the_setup_that_check_told(launched, name):
    reports, runs, _ = launched
    assert reports[name].errors == ()
    assert runs[name].returncode == 0, runs[name].output[-2000:]
    assert len(runs[name].losses) == 2
    expected = json.loads(reports[name].as_json())
    assert expected["setup"]["strategy"]["value"] == LAUNCHED[name][1]
    setup = runs[name].summary["setup"]
    if name.endswith(".json"):
        setup["world_size"]["origin"] = "--num_processes"
    assert setup == expected["setup"]
    for note in expected["warnings"]:
        assert note in runs[name].output


@pytest.mark.parametrize("name", REFUSED)
def test_a_run_is_refused_with_the_lines_of_check(launched, name):
    reports, runs, folder = launched
    lines = [line for line in runs[name].output.splitlines() if line.startswith("oneloop: error:")]
    assert lines == [f"oneloop: error: {line}" for line in reports[name].errors]
    assert len(lines) > 0
    assert runs[name].returncode == (1 if name.endswith("yaml") else 2)
    assert "/toolkit/" not in runs[name].output  # Accelerate has a traceback of its own for any exit code
    assert not (folder / name).exists()


@pytest.mark.parametrize("name", REFUSED_BEFORE)
def test_where_accelerate_refuses_first_the_script_does_not_start(launched, name):
    reports, runs, folder = launched
    assert runs[name].returncode != 0
    assert "oneloop" not in runs[name].output.replace(str(ROOT), "")
    assert not (folder / name).exists()
    assert len(reports[name].errors) > 0
