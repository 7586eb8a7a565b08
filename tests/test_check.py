"""`oneloop check`: one answer for a command's files and arguments, and nothing is started."""

import json
from pathlib import Path

import pytest

from toolkit.check import check

ROOT = Path(__file__).parents[1]
ENVIRON = {"HF_HOME": "/nonexistent", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(autouse=True)
def _at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


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


@pytest.mark.parametrize(
    ("yaml", "keys"),
    [
        ("distributed_type: MULTY_GPU\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n", ["distributed_type"]),
        ("num_processes: 2\ndeepspeed_config: {zero_stage: 2}\n", ["distributed_type"]),
        ("num_processes: 2\n", ["distributed_type"]),
        ("num_processes: two\ndistributed_type: 3\n", ["num_processes", "distributed_type"]),
        (
            "num_processes: 2\ndistributed_type: MULTI_GPU\nmpirun_config: {mpirun_hostfile: h}\n",
            ["mpirun_config.mpirun_hostfile"],
        ),
        (
            "num_processes: 2\ndistributed_type: DEEPSPEED\n"
            "deepspeed_config: {zero_stage: 3, offload_optimizer_device: nvme}\n",
            ["deepspeed_config.offload_optimizer_device", "deepspeed_config.offload_optimizer_nvme_path"],
        ),
    ],
)
def test_a_yaml_gets_no_line_for_what_follows_from_a_mistake(write, yaml, keys):
    report = asked(config_file=write("a.yaml", yaml), script="scripts/train_cnn.py")
    assert [error.where.key for error in report.errors] == keys, report.errors


def test_the_json_of_an_unknown_type_is_checked_too(write):
    path = write("a.json", {"gradient_cliping": 1})
    yaml = f"distributed_type: DEEPSPED\nnum_processes: 2\ndeepspeed_config: {{deepspeed_config_file: {path}}}\n"
    report = asked(config_file=write("a.yaml", yaml))
    assert [error.where.key for error in report.errors] == ["distributed_type", "gradient_cliping"]


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("a.json", '{"gradient_clipping": 1e400}', "inf"),
        ("a.yaml", "distributed_type: 'NO'\nnum_machines: .nan\n", "nan"),
        ("a.yaml", "distributed_type: 'NO'\nnum_machines: 2020-01-02\n", "2020-01-02"),
        ("a.yaml", "distributed_type: 'NO'\nfsdp_config: {2020-01-02: 1}\n", {"2020-01-02": 1}),
        ("a.yaml", "distributed_type: 'NO'\nnum_machines: !!binary YQ==\n", "b'a'"),
        ("a.yaml", "distributed_type: 'NO'\nnum_machines: !!set {a, b}\n", ["a", "b"]),
    ],
)
def test_what_json_does_not_have_is_told_as_text(write, name, text, value):
    option = "deepspeed_config" if name.endswith("json") else "config_file"
    report = asked(**{option: write(name, text)})
    (error,) = json.loads(report.as_json(), parse_constant=lambda name: pytest.fail(name))["errors"]
    assert (sorted(error["value"]) if isinstance(value, list) else error["value"]) == value


def test_a_hostfile_means_the_deepspeed_launcher(write):
    report = asked(hostfile=write("hosts", "a slots=2\nb slots=2\n"), script="scripts/train_cnn.py")
    assert row(report, "strategy")[0] == "zero1"
    assert row(report, "world_size") == (4, f"{write('hosts', '')}: slots", None)


def test_what_the_shell_exports_counts_as_in_a_run(write):
    exported = ENVIRON | {"ACCELERATE_MIXED_PRECISION": "bf16"}
    report = check(exported, script="scripts/train_cnn.py")
    assert row(report, "mixed_precision") == (
        "bf16",
        "accelerate's environment: ACCELERATE_MIXED_PRECISION",
        "script's default no",
    )
    bad = check(ENVIRON | {"WORLD_SIZE": "two", "RANK": "", "LOCAL_RANK": "-1"}, script="scripts/train_cnn.py")
    assert bad.errors == [
        "environment: LOCAL_RANK: '-1': expected an integer of 0 or more; unset it, launchers set it",
        "environment: WORLD_SIZE: 'two': expected an integer of 1 or more; unset it, launchers set it",
    ]


@pytest.mark.parametrize(
    ("scheduler", "argv", "note"),
    [
        (None, ["--num_warmup_steps", "4"], "num_warmup_steps 4 takes all 4 steps: the peak is not reached"),
        (
            {"type": "WarmupDecayLR", "params": {"total_num_steps": 9, "warmup_num_steps": 2}},
            [],
            "the schedule's total_num_steps is 9, this run has 4 steps",
        ),
        (None, ["--num_warmup_steps", "3"], None),
    ],
)
def test_a_schedule_that_does_not_fit_the_typed_steps(write, scheduler, argv, note):
    config = {"zero_optimization": {"stage": 1}} | ({} if scheduler is None else {"scheduler": scheduler})
    report = asked(
        deepspeed_config=write("a.json", config),
        num_processes=2,
        script="scripts/train_cnn.py",
        script_arguments=["--max_train_steps", "4", *argv],
    )
    assert (report.errors, report.warnings) == ((), [] if note is None else [note])


def test_each_file_is_listed_once(write):
    yaml = write("a.yaml", "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {zero_stage: 2}\n")
    assert row(asked(config_file=yaml), "config_files")[0] == [yaml]


@pytest.mark.parametrize("option", ["--deepspeed_config", "--deepspeed"])
def test_the_json_of_a_script_that_decides_by_itself_counts(write, option):
    path = write("a.json", {"zero_optimization": {"stage": 3}, "train_batch_size": 128})
    script = write(
        "u.py", "import toolkit\nd = dict(seed=4)\ntoolkit.parse_arguments(description='', defaults=dict(d))\n"
    )
    report = asked(num_processes=2, script=script, script_arguments=[option, path, "--own", "3", "--seed", "x"])
    assert report.errors == ()
    assert row(report, "strategy") == ("zero3", f"{path}: zero_optimization.stage", None)
    assert row(report, "train_batch_size")[0] == 128
    assert row(report, "gradient_accumulation_steps") == (None, "decided by the script", None)


def test_an_exported_precision_leaves_the_launcher_as_it_is(write):
    exported = ENVIRON | {"ACCELERATE_MIXED_PRECISION": "bf16"}
    path = write("a.json", {"zero_optimization": {"stage": 2}})
    report = check(exported, deepspeed_config=path, num_processes=2, script="scripts/train_cnn.py")
    assert (report.errors, row(report, "strategy")[0], row(report, "mixed_precision")[0]) == ((), "zero2", "bf16")


def test_a_folder_in_a_jsons_place_is_one_line(write):
    yaml = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: .}\n"
    (line,) = asked(config_file=write("a.yaml", yaml)).errors
    assert line.reason.startswith("no such file")
