"""`oneloop check`: one answer for a command's files and arguments, and nothing is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.check import check

ROOT = Path(__file__).parents[1]
ENVIRON = {"HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return str(path)

    return write


def asked(**more):
    return check(ENVIRON, **more)


def row(report, name):
    return tuple(report.setup[name][key] for key in ("value", "origin", "overrode"))


def test_each_value_has_its_origin_and_what_it_overrode(write):
    config = {"train_micro_batch_size_per_gpu": 8, "gradient_clipping": 0.5, "zero_optimization": {"stage": 2}}
    path = write("a.json", config)
    yaml = write(
        "a.yaml",
        f"distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
        f"deepspeed_config: {{deepspeed_config_file: {path}}}\n",
    )
    report = asked(
        config_file=yaml,
        num_processes=4,
        script="scripts/train_cnn.py",
        script_arguments=["--learning_rate", "0.01", "--mixed_precision", "bf16"],
    )
    assert report.errors == ()
    assert row(report, "strategy") == ("zero2", f"{path}: zero_optimization.stage", None)
    assert row(report, "world_size") == (4, "accelerate launch --num_processes", f"{yaml}: num_processes 2")
    assert row(report, "train_batch_size") == (32, "derived", "script's default 64")
    assert row(report, "train_micro_batch_size_per_gpu") == (8, f"{path}: train_micro_batch_size_per_gpu", None)
    assert row(report, "max_grad_norm") == (0.5, f"{path}: gradient_clipping", "script's default 1.0")
    assert row(report, "learning_rate") == (0.01, "--learning_rate", "script's default 0.001")
    assert row(report, "mixed_precision") == ("bf16", f"{yaml}: mixed_precision", "script's default no")
    assert report.warnings == [
        f"train_batch_size is 32, from {path}: train_micro_batch_size_per_gpu, instead of 64, script's default"
    ]
    assert "max_grad_norm                   0.5    " in report.table()
    assert f"{path}: gradient_clipping, not script's default 1.0" in report.table()


def test_without_a_script_its_values_are_decided_by_it(write):
    report = asked(deepspeed_config=write("a.json", {"gradient_clipping": 0.5}), num_processes=3)
    assert row(report, "train_batch_size") == (None, "decided by the script", None)
    assert row(report, "train_micro_batch_size_per_gpu") == (None, "decided by the script", None)
    assert row(report, "learning_rate") == (None, "decided by the script", None)
    assert row(report, "max_grad_norm")[0] == 0.5
    assert row(report, "world_size") == (3, "--num_processes", None)
    assert not [note for note in report.warnings if "script's default" in note]


def test_everything_wrong_is_told_at_once_with_file_line_and_key(write):
    path = write("a.json", '{\n  "train_batch_size": "8",\n  "zero_optimisation": {"stage": 2}\n}')
    yaml = write(
        "a.yaml",
        f"distributed_type: DEEPSPEED\nnum_processes: two\ndeepspeed_config: {{deepspeed_config_file: {path}}}\n",
    )
    report = asked(
        config_file=yaml,
        hostfile=write("hosts", "worker-0 slots=two\n"),
        script="scripts/train_cnn.py",
        script_arguments=["--learning_rate", "fast", "--gradient_acumulation_steps", "2"],
    )
    told = json.loads(report.as_json())
    assert (told["ok"], told["setup"]) == (False, {})
    assert [(each["file"], each["line"], each["key"]) for each in told["errors"]] == [
        (str(Path(yaml).parent / "hosts"), 1, "line 1"),
        (None, None, "--learning_rate"),
        (None, None, "--gradient_acumulation_steps"),
        (yaml, 2, "num_processes"),
        (path, 2, "train_batch_size"),
        (path, 3, "zero_optimisation"),
    ]
    assert told["errors"][4] == {
        "file": path,
        "line": 2,
        "key": "train_batch_size",
        "value": "8",
        "reason": 'expected integer of 1 or more, got string "8"',
        "remedy": "write 8, without quotes",
    }


@pytest.mark.parametrize(
    ("content", "count"),
    [
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": "3"}, 1),
        ({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 3, "gradient_acumulation_steps": 2}, 1),
        ({"zero_optimization": {"stage": "2"}, "bf16": {"enabled": "true"}}, 2),
        ({"pipeline": {"stages": 3}, "gradient_cliping": 1}, 2),
    ],
)
def test_what_follows_from_a_mistake_is_no_mistake_of_its_own(write, content, count):
    path = write("a.json", content)
    report = asked(deepspeed_config=path, num_processes=2, script="scripts/train_cnn.py")
    assert len(report.errors) == count, report.errors


@pytest.mark.parametrize(
    ("script", "argv", "stages", "line"),
    [
        ("train_cnn.py", [], 5, "5: the script's model has 4 layers, fewer than stages; use fewer stages"),
        ("train_bert.py", ["--model_name_or_path", "FOLDER"], 5, "5: FOLDER has 4 layers, fewer than stages;"),
        ("train_cnn.py", [], 4, None),
        ("train_bert.py", ["--model_name_or_path", "FOLDER"], 4, None),
        ("train_bert.py", ["--model_name_or_path", "bert-base-uncased"], 40, None),
    ],
)
def test_stages_against_the_layers_of_a_model_that_is_known(write, tmp_path, script, argv, stages, line):
    write("config.json", {"model_type": "bert", "num_hidden_layers": 2})
    path = write("a.json", {"pipeline": {"stages": stages}})
    argv = [word.replace("FOLDER", str(tmp_path)) for word in argv]
    report = asked(deepspeed_config=path, num_processes=stages, script=f"scripts/{script}", script_arguments=argv)
    expected = f"{path}: pipeline.stages: " + line.replace("FOLDER", str(tmp_path)) if line is not None else None
    assert [error.startswith(expected) for error in report.errors] == ([] if line is None else [True])


def test_the_scripts_literal_is_its_models_depth():
    from toolkit.models.cnn import CNN

    assert asked(script="scripts/train_cnn.py").errors == ()
    assert len(CNN(1, 28, 10).pipeline_layers()) == 4


def test_two_deepspeed_files_are_refused(write):
    one, other = write("a.json", {}), write("b.json", {})
    report = asked(deepspeed_config=one, script="scripts/train_cnn.py", script_arguments=["--deepspeed_config", other])
    assert report.errors == [f"--deepspeed_config: '{one}': scripts/train_cnn.py is given {other}; name one file"]


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
