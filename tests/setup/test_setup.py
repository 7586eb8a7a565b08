"""From launcher, files and arguments to one frozen Setup: what is obtained, and what is refused."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from toolkit.arguments import parse_arguments
from toolkit.errors import UserError
from toolkit.setup import Setup

ROOT = Path(__file__).parents[2]
# What each launcher puts into the environment of rank 0 of 2, as printed by a probe.
TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
DEEPSPEED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
SIMPLE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "False", "ACCELERATE_DYNAMO_BACKEND": "NO"}
MULTI = TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
ZERO = MULTI | {"ACCELERATE_USE_DEEPSPEED": "true"}


def of_yaml(path, environ, *flags):
    """(environ, parent's command line) of `accelerate launch --config_file path`."""
    return environ, ["python", "/bin/accelerate", "launch", "--config_file", str(path), *flags, "train.py"]


def setup(environ, *argv, parent=(), defaults=None):
    defaults = {"train_batch_size": 64, "learning_rate": 2e-5, **(defaults or {})}
    arguments = parse_arguments(argv, description="test", defaults=defaults)
    arguments.script = "train.py"
    return Setup.from_run(arguments, {"HF_HOME": "/nonexistent", **environ}, list(parent))


def refused(*args, **kwargs):
    with pytest.raises(UserError) as caught:
        setup(*args, **kwargs)
    return caught.value.lines


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def write_file(name, content):
        Path(name).write_text(content if isinstance(content, str) else json.dumps(content))
        return name

    return write_file


def zero(stage, **more):
    return {"zero_optimization": {"stage": stage}, **more}


# --- who launches what ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "config", "expected"),
    [
        ({}, None, ("single", "python", 1)),
        (TORCHRUN, None, ("ddp", "torchrun", 2)),
        (TORCHRUN | {"WORLD_SIZE": "1"}, None, ("single", "torchrun", 1)),
        (TORCHRUN, zero(1), ("zero1", "torchrun", 2)),
        (TORCHRUN, zero(0), ("ddp", "torchrun", 2)),
        (TORCHRUN, {}, ("ddp", "torchrun", 2)),
        (TORCHRUN | {"WORLD_SIZE": "1"}, zero(0), ("single", "torchrun", 1)),
        (DEEPSPEED, None, ("zero1", "deepspeed", 2)),
        (DEEPSPEED | {"WORLD_SIZE": "1"}, None, ("zero1", "deepspeed", 1)),
        (DEEPSPEED, zero(3), ("zero3", "deepspeed", 2)),
        (DEEPSPEED, {"pipeline": {"stages": 2}}, ("pipeline", "deepspeed", 2)),
        (DEEPSPEED | {"WORLD_SIZE": "4"}, {"pipeline": {"stages": 2}}, ("pipeline_dp", "deepspeed", 4)),
        (DEEPSPEED, zero(1, pipeline={}), ("pipeline", "deepspeed", 2)),
        (DEEPSPEED, zero(1, pipeline={"stages": 1}), ("zero1", "deepspeed", 2)),
        (SIMPLE, None, ("single", "accelerate", 1)),
        (MULTI, None, ("ddp", "accelerate", 2)),
        (MULTI, zero(0), ("ddp", "accelerate", 2)),
        (ZERO, zero(2), ("zero2", "accelerate", 2)),
        (TORCHRUN | {"ACCELERATE_USE_DEEPSPEED": "true"}, zero(2), ("zero2", "torchrun", 2)),
        (ZERO, None, ("zero2", "accelerate", 2)),
        (ZERO | {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"}, None, ("zero3", "accelerate", 2)),
    ],
)
def test_each_launcher_with_each_setup_it_may_launch(write, environ, config, expected):
    if "ACCELERATE_USE_DEEPSPEED" in environ and "TORCHELASTIC_RUN_ID" in environ and expected[1] == "torchrun":
        environ = {key: value for key, value in environ.items() if key != "ACCELERATE_MIXED_PRECISION"}
    argv = () if config is None else ("--deepspeed_config", write("a.json", config))
    got = setup(environ, *argv)
    assert (got.strategy, got.launcher, got.world_size) == expected


@pytest.mark.parametrize("config", [zero(0), zero(2), {"pipeline": {"stages": 3}}])
def test_python_with_a_json_is_refused_with_both_commands(write, config):
    (line, *_) = refused({}, "--deepspeed_config", write("a.json", config))
    ranks = 3 if "pipeline" in config else 2
    assert f"deepspeed --num_gpus {ranks} train.py --deepspeed_config a.json" in line
    assert f"accelerate launch --use_deepspeed --num_processes {ranks} --deepspeed_config_file a.json train.py" in line


def test_accelerates_plain_launch_does_not_run_zero(write):
    yaml = write("ddp.yaml", "distributed_type: MULTI_GPU\nnum_processes: 2\n")
    environ, parent = of_yaml(yaml, MULTI)
    (line,) = refused(environ, "--deepspeed_config", write("a.json", zero(2)), parent=parent)
    assert "it asks for zero2, but ddp.yaml: distributed_type MULTI_GPU starts no DeepSpeed" in line


def test_a_bare_deepspeed_flag_needs_a_json():
    (line,) = refused(TORCHRUN, "--deepspeed")
    assert line.startswith("--deepspeed: True: torchrun needs a JSON with it")


# --- Accelerate's YAML ---------------------------------------------------------------------------------------------


def test_the_yamls_json_is_used_and_both_files_are_kept(write):
    write("z2.json", zero(2, gradient_clipping=0.5))
    yaml = write(
        "z.yaml", "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: z2.json\n"
    )
    environ, parent = of_yaml(yaml, ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "z2.json"})
    got = setup(environ, parent=parent)
    assert (got.strategy, got.max_grad_norm, got.config_files) == ("zero2", 0.5, ("z.yaml", "z2.json"))
    assert got.origins["max_grad_norm"] == "z2.json: gradient_clipping"
    assert got.origins["world_size"] == "z.yaml: num_processes"


def test_the_yamls_json_is_found_beside_the_yamls_folder(write, tmp_path, monkeypatch):
    for folder in ("repo/yamls", "repo/ds", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    write("repo/ds/z.json", zero(3))
    write("repo/yamls/z.yaml", "distributed_type: DEEPSPEED\nnum_processes: 2\n")
    monkeypatch.chdir(tmp_path / "elsewhere")
    environ, parent = of_yaml("../repo/yamls/z.yaml", ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "ds/z.json"})
    assert setup(environ, parent=parent).config_files == ("../repo/yamls/z.yaml", "../repo/ds/z.json")


def test_a_typed_json_beside_the_yamls_is_refused_naming_both(write):
    environ = ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": write("a.json", zero(1))}
    assert setup(environ, "--deepspeed_config", "./a.json").strategy == "zero1"
    (line,) = refused(environ, "--deepspeed_config", write("b.json", zero(1)))
    assert "'b.json'" in line and "names a.json" in line


INLINE = {
    "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,gradient_clipping,gradient_accumulation_steps,offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
}
INLINE_YAML = """distributed_type: DEEPSPEED
num_processes: 2
deepspeed_config:
  zero_stage: 3
  gradient_clipping: 0.5
  gradient_accumulation_steps: 4
  offload_optimizer_device: none
"""


def test_fields_in_the_yaml_become_the_same_configuration(write):
    environ, parent = of_yaml(write("i.yaml", INLINE_YAML), ZERO | INLINE)
    got = setup(environ, parent=parent)
    assert (got.strategy, got.max_grad_norm, got.gradient_accumulation_steps) == ("zero3", 0.5, 4)
    assert got.origins["max_grad_norm"] == "i.yaml: deepspeed_config.gradient_clipping"
    same = setup(
        DEEPSPEED, "--deepspeed_config", write("a.json", zero(3, gradient_clipping=0.5, gradient_accumulation_steps=4))
    )
    assert got.deepspeed_config == same.deepspeed_config


def test_fields_in_the_yaml_bind_like_a_file(write):
    environ, parent = of_yaml(write("i.yaml", INLINE_YAML), ZERO | INLINE)
    (line,) = refused(environ, "--gradient_accumulation_steps", "2", parent=parent)
    assert line.startswith(
        "i.yaml: deepspeed_config.gradient_accumulation_steps: 4: --gradient_accumulation_steps says 2"
    )
    (line,) = refused(environ, "--deepspeed_config", write("a.json", zero(3)), parent=parent)
    assert "i.yaml: deepspeed_config.zero_stage configures DeepSpeed already" in line


def test_fields_beside_a_file_are_refused_not_ignored(write):
    write("a.json", zero(1))
    fields = "{deepspeed_config_file: a.json, gradient_clipping: 0.5}"
    text = f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {fields}\n"
    environ = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "a.json", "ACCELERATE_GRADIENT_CLIPPING": "0.5"}
    environ, parent = of_yaml(write("b.yaml", text), ZERO | environ)
    (line,) = refused(environ, parent=parent)
    assert line.startswith("b.yaml: deepspeed_config.gradient_clipping: 0.5: Accelerate ignores it beside")


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        (
            "deepspeed_config: {zero_stagee: 3, zero_stage: 2}",
            {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "ACCELERATE_CONFIG_DS_FIELDS": "zero_stagee,zero_stage"},
            "a.yaml: deepspeed_config.zero_stagee: 3: unknown key, Accelerate ignores it; did you mean zero_stage?",
        ),
        (
            "deepspeed_config: {zero_stage: 3}",
            {"ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu", "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3"},
            "offload is not part of this version",
        ),
        (
            "mixed_precision: bf16",
            {"ACCELERATE_MIXED_PRECISION": "bf16"},
            "a.yaml: mixed_precision: 'bf16': this version",
        ),
        ("dynamo_config: {dynamo_backend: INDUCTOR}", {"ACCELERATE_DYNAMO_BACKEND": "INDUCTOR"}, "torch.compile"),
    ],
)
def test_what_a_yaml_asks_for_and_would_not_get(write, text, environ, words):
    yaml = write("a.yaml", f"distributed_type: DEEPSPEED\nnum_processes: 2\n{text}\n")
    environ, parent = of_yaml(yaml, ZERO | environ)
    (line,) = refused(environ, parent=parent)
    assert words in line


# What the launcher really starts for these YAMLs on a machine without GPUs.
@pytest.mark.parametrize(
    ("text", "environ", "flags", "asked"),
    [
        (
            "distributed_type: MULTI_CPU\nnum_processes: 2",
            SIMPLE,
            (),
            "asked for 2 processes (a.yaml: distributed_type MULTI_CPU), got 1",
        ),
        (
            "distributed_type: 'NO'\nnum_processes: 2",
            SIMPLE,
            (),
            "asked for 2 processes (a.yaml: distributed_type NO), got 1",
        ),
        ("distributed_type: MULTI_GPU\nnum_processes: 2", SIMPLE, ("--cpu",), "asked for 2 processes"),
        (
            "distributed_type: DEEPSPEED\nnum_processes: 1",
            SIMPLE,
            ("--cpu",),
            "asked for DeepSpeed, got a launch without it",
        ),
        ("distributed_type: FSDP\nnum_processes: 2", MULTI, (), "not a setup of oneloop"),
        ("distributed_type: MULTI_CPU\nnum_processes: 2", SIMPLE, ("--num_processes", "4"), "asked for 4 processes"),
    ],
)
def test_fewer_processes_or_another_type_than_asked_is_refused(write, text, environ, flags, asked):
    environ, parent = of_yaml(write("a.yaml", text), environ, *flags)
    (line,) = refused(environ, parent=parent)
    assert asked in line


def test_the_refusal_gives_the_working_command(write):
    environ, parent = of_yaml(write("a.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2"), SIMPLE)
    (line,) = refused(environ, parent=parent)
    assert "torchrun --nproc_per_node 2 train.py" in line and "distributed_type: MULTI_GPU" in line


def test_a_users_default_file_counts_as_given(write, tmp_path):
    (tmp_path / "accelerate").mkdir()
    write("accelerate/default_config.yaml", "distributed_type: MULTI_CPU\nnum_processes: 2\n")
    parent = ["python", "/bin/accelerate", "launch", "train.py"]
    (line,) = refused(SIMPLE | {"HF_HOME": str(tmp_path)}, parent=parent)
    assert "default_config.yaml: num_processes: 2: asked for 2 processes" in line
    parent.insert(3, "--cpu")
    assert setup(SIMPLE | {"HF_HOME": str(tmp_path)}, parent=parent).strategy == "single"


# --- one owner per number ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "argv", "expected"),
    [
        ({"gradient_accumulation_steps": "auto"}, ("--gradient_accumulation_steps", "4"), (8, 1, 4)),
        ({}, ("--gradient_accumulation_steps", "4"), (8, 1, 4)),
        ({"gradient_accumulation_steps": 4}, ("--gradient_accumulation_steps", "4"), (8, 1, 4)),
        ({"gradient_accumulation_steps": 2}, (), (4, 1, 2)),
        ({"gradient_accumulation_steps": 2.0}, (), (4, 1, 2)),
    ],
)
def test_accumulation_has_one_owner(write, config, argv, expected):
    config = zero(1, train_micro_batch_size_per_gpu=1, **config)
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", config), *argv)
    assert (got.train_batch_size, got.train_micro_batch_size_per_gpu, got.gradient_accumulation_steps) == expected
    assert got.deepspeed_config["train_batch_size"] == expected[0]


CONFLICTS = [
    (
        {"gradient_accumulation_steps": 2},
        ("--gradient_accumulation_steps", "4"),
        "gradient_accumulation_steps: 2",
        "says 4",
    ),
    (
        {"train_micro_batch_size_per_gpu": 8},
        ("--per_device_train_batch_size", "2"),
        "train_micro_batch_size_per_gpu: 8",
        "says 2",
    ),
    ({"train_batch_size": 16}, ("--train_batch_size", "32"), "train_batch_size: 16", "says 32"),
    ({"gradient_clipping": 1.0}, ("--max_grad_norm", "0"), "gradient_clipping: 1.0", "says 0.0"),
    (
        {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}},
        ("--learning_rate", "2e-5"),
        "optimizer.params.lr: 0.001",
        "says 2e-05",
    ),
    ({"optimizer": {"type": "SGD"}}, ("--optimizer", "adamw"), "optimizer.type: 'sgd'", "says 'adamw'"),
    (
        {"optimizer": {"params": {"weight_decay": 0.1}}},
        ("--weight_decay", "0"),
        "optimizer.params.weight_decay: 0.1",
        "says 0.0",
    ),
]


@pytest.mark.parametrize(("config", "argv", "came", "says"), CONFLICTS)
def test_typed_against_file_is_refused_naming_both(write, config, argv, came, says):
    (line,) = refused(DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, **config)), *argv)
    assert line.startswith(f"a.json: {came}: {argv[0]} {says}")


@pytest.mark.parametrize("environ", [DEEPSPEED, TORCHRUN])
@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_files_optimizer_and_clipping_win_over_the_scripts_defaults(write, environ, stage):
    optimizer = {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.999], "eps": 1e-8}}
    config = zero(stage, optimizer=optimizer, gradient_clipping=0.25)
    got = setup(environ, "--deepspeed_config", write("a.json", config), defaults={"optimizer": "sgd"})
    assert (got.optimizer, got.learning_rate, got.weight_decay, got.max_grad_norm) == ("adamw", 1e-3, 0.1, 0.25)
    assert got.origins["learning_rate"] == "a.json: optimizer.params.lr"
    if stage:
        assert "optimizer" not in got.deepspeed_config


def test_equal_typed_and_file_values_are_fine(write):
    config = zero(1, optimizer={"type": "AdamW", "params": {"lr": 1e-3}})
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", config), "--learning_rate", "1e-3")
    assert (got.learning_rate, got.origins["learning_rate"]) == (1e-3, "--learning_rate")
    got = setup(
        DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, gradient_clipping=1)), "--max_grad_norm", "1.0"
    )
    assert repr(got.max_grad_norm) == "1.0"


@pytest.mark.parametrize(
    ("optimizer", "expected"),
    [
        ({"type": "Adam"}, "adamw"),
        ({"type": "Adam", "params": {"adam_w_mode": False}}, "adam"),
        ({"type": "SGD", "params": {"momentum": 0.5}}, "sgd"),
        ({"type": "auto", "params": {"lr": "auto", "betas": "auto"}}, "adamw"),
    ],
)
def test_a_files_optimizer_is_what_deepspeed_would_build(write, optimizer, expected):
    assert setup(DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, optimizer=optimizer))).optimizer == expected


@pytest.mark.parametrize(
    ("optimizer", "words"),
    [
        ({"type": "OneBitAdam"}, "optimizer.type: 'OneBitAdam': not an optimizer of oneloop; one of sgd, adam, adamw"),
        (
            {"type": "AdamW", "params": {"betas": [0.9, 0.95]}},
            "optimizer.params.betas: [0.9, 0.95]: the optimizers here use",
        ),
    ],
)
def test_an_optimizer_that_would_become_another_is_refused(write, optimizer, words):
    (line,) = refused(DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, optimizer=optimizer)))
    assert words in line


@pytest.mark.parametrize(
    ("environ", "argv", "expected"),
    [
        (DEEPSPEED, (), 1.0),
        (DEEPSPEED, ("--max_grad_norm", "0"), 0.0),
        (ZERO, ("--max_grad_norm", "0.5"), 0.5),
        (TORCHRUN | {"ACCELERATE_USE_DEEPSPEED": "true"}, (), 1.0),
    ],
)
def test_clipping_is_always_written(environ, argv, expected):
    got = setup(environ, *argv)
    assert (got.max_grad_norm, got.deepspeed_config["gradient_clipping"]) == (expected, expected)


# --- precision and pipeline ----------------------------------------------------------------------------------------


def on(name):
    return {name: {"enabled": True}}


@pytest.mark.parametrize(
    ("config", "environ", "argv", "words"),
    [
        (on("fp16") | on("bf16"), {}, (), ("a.json: fp16.enabled True and a.json: bf16.enabled True",)),
        (on("fp16"), {}, ("--mixed_precision", "bf16"), ("--mixed_precision bf16 and a.json: fp16.enabled True",)),
        (on("fp16"), {"ACCELERATE_MIXED_PRECISION": "bf16"}, (), ("ACCELERATE_MIXED_PRECISION bf16 and a.json: fp16",)),
        (on("bf16"), {}, (), ("a.json: bf16.enabled: True: this version trains in fp32",)),
        ({}, {}, ("--mixed_precision", "fp16"), ("--mixed_precision: 'fp16': this version trains in fp32",)),
    ],
)
def test_precisions_that_contradict_or_are_not_here_yet(write, config, environ, argv, words):
    (line,) = refused(ZERO | environ, "--deepspeed_config", write("a.json", zero(1, **config)), *argv)
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("config", "world", "words"),
    [
        (zero(2, pipeline={"stages": 2}), 2, ("a.json: pipeline.stages", "a.json: zero_optimization.stage is 2")),
        (zero(3, pipeline={"stages": 2}), 2, ("a.json: pipeline.stages", "a.json: zero_optimization.stage is 3")),
        (
            {"pipeline": {"stages": 2}},
            3,
            ("a.json: pipeline.stages: 2: 3 ranks do not divide into 2 stages (3 % 2 = 1)",),
        ),
        ({"pipeline": {"stages": 2}}, 1, ("2: more stages than the 1 rank; start 2 processes",)),
        ({"pipeline": {"stages": 4}}, 2, ("4: more stages than the 2 ranks; start 4 processes, or write stages: 2",)),
        ({"pipeline": {"stages": 2, "partition": "profile"}}, 2, ("a.json: pipeline.partition: 'profile'",)),
        ({"pipeline": {"stages": 2, "partition": "type:["}}, 2, ("not a regular expression",)),
        (zero(4), 2, ("a.json: zero_optimization.stage: 4: ZeRO has stages 0 to 3",)),
    ],
)
def test_pipelines_and_stages_that_cannot_run(write, config, world, words):
    (line,) = refused(DEEPSPEED | {"WORLD_SIZE": str(world)}, "--deepspeed_config", write("a.json", config))
    assert [word for word in words if word not in line] == []


@pytest.mark.parametrize(
    ("config", "note"),
    [
        (zero(0, pipeline={"stages": 2}), "a.json: zero_optimization.stage 0 runs as ZeRO-1"),
        ({"pipeline": {"stages": 2, "partition": "best"}}, "a.json: pipeline.partition best is taken as parameters"),
        ({"pipeline": {"stages": "auto"}}, "a.json: pipeline.stages: one stage a rank, 2"),
        (
            zero(0, wall_clock_breakdown=True),
            "runs as ddp, with batch, precision, clipping and optimizer from the file; not used: wall_",
        ),
        (zero(1, optimizer={"type": "Adam"}), "a.json: optimizer.type Adam is AdamW"),
    ],
)
def test_what_is_taken_otherwise_than_written_is_said(write, config, note):
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", config))
    assert [each for each in got.notes if note in each]


def test_a_pipeline_runs_as_zero1_and_auto_accumulation_fills_its_stages(write):
    config = {"gradient_accumulation_steps": "auto", "pipeline": {"stages": 2, "partition": "type:Linear"}}
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", config))
    assert (got.stages, got.partition, got.data_parallel_size) == (2, "type:Linear", 1)
    assert (got.train_micro_batch_size_per_gpu, got.gradient_accumulation_steps) == (16, 4)
    assert 'a.json: gradient_accumulation_steps "auto"' in got.banner()
    assert got.deepspeed_config["zero_optimization"] == {"stage": 1}
    assert "pipeline" not in got.deepspeed_config


# --- the result ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", ["zero1", "zero2", "zero3", "pipeline"])
def test_every_launcher_gets_the_same_configuration_from_a_preset(stem, monkeypatch):
    monkeypatch.chdir(ROOT)
    path = f"ds_configs/{stem}.json"
    environ, parent = of_yaml(f"accelerate_configs/{stem}.yaml", ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": path})
    first = setup(environ, parent=parent)
    others = [setup(environ, "--deepspeed_config", path) for environ in (DEEPSPEED, TORCHRUN)]
    assert {first.strategy, *(other.strategy for other in others)} == {stem}
    assert [other.deepspeed_config for other in others] == [first.deepspeed_config] * 2
    assert "auto" not in json.dumps(first.deepspeed_config)


@pytest.mark.parametrize(("stem", "environ", "strategy"), [("single", SIMPLE, "single"), ("ddp", MULTI, "ddp")])
def test_the_plain_presets(stem, environ, strategy, monkeypatch):
    monkeypatch.chdir(ROOT)
    environ, parent = of_yaml(f"accelerate_configs/{stem}.yaml", environ)
    got = setup(environ, parent=parent)
    assert (got.strategy, got.deepspeed_config) == (strategy, None)


@pytest.mark.parametrize("stem", ["ddp", "zero1", "zero2", "zero3", "pipeline"])
def test_build_gives_the_configuration_of_the_preset(stem, monkeypatch):
    monkeypatch.chdir(ROOT)
    run = setup(DEEPSPEED, "--deepspeed_config", f"ds_configs/{stem}.json")
    built = Setup.build(
        strategy=stem, world_size=2, train_batch_size=64, gradient_accumulation_steps=run.gradient_accumulation_steps
    )
    assert built.deepspeed_config == run.deepspeed_config


def test_padding_rows_count_in_deepspeeds_batch_and_not_in_ours():
    got = Setup.build(strategy="zero1", world_size=3, default_train_batch_size=64)
    assert (got.train_batch_size, got.padding_rows, got.deepspeed_config["train_batch_size"]) == (64, 2, 66)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"strategy": "zero4"}, "one of single, ddp"),
        ({"strategy": "single", "world_size": 2}, "but there are 2 ranks"),
        ({"strategy": "ddp", "world_size": 2, "train_batch_size": 7}, "7 is not a multiple of 1 x 2"),
        ({"strategy": "pipeline", "world_size": 3, "stages": 2}, "3 ranks do not divide into 2 stages"),
        ({"strategy": "ddp", "lr": 1}, "lr: 1: unknown"),
        ({"strategy": "ddp"}, "strategy: 'ddp': there is one rank; use single"),
        ({"strategy": "single", "world_size": 0}, "world_size: 0: must be 1 or more"),
        ({"strategy": "single", "world_size": 1.0}, "world_size: 1.0: expected an integer"),
        ({"strategy": "zero1", "world_size": 2, "rank": 2}, "rank: 2: not one of 2 ranks; give 0 to 1"),
        ({"strategy": "zero1", "rank": -1}, "rank: -1: not one of 1 ranks"),
        ({"strategy": "pipeline", "world_size": 2, "partition": "best"}, "partition: 'best': unknown"),
        ({"strategy": "pipeline", "world_size": 2, "partition": "type:("}, "not a regular expression"),
        ({"strategy": "pipeline", "world_size": 2, "partition": 2}, "partition: 2: unknown"),
        ({"strategy": "single", "max_grad_norm": -1}, "max_grad_norm: -1: must be at least 0"),
        ({"strategy": "single", "learning_rate": "1e-3"}, "learning_rate: '1e-3': expected a value, not its text"),
        ({"strategy": "single", "learning_rate": None}, "learning_rate: None: expected a number"),
        ({"strategy": "single", "momentum": 1}, "momentum: 1: must be at least 0 and below 1"),
        ({"strategy": "single", "optimizer": "lion"}, "optimizer: 'lion': expected one of sgd, adam, adamw"),
        ({"strategy": "single", "lr_scheduler_type": "step"}, "expected one of constant, linear, cosine"),
        ({"strategy": "single", "seed": 2**63}, "seed: 9223372036854775808: must be 9223372036854775807 or less"),
        ({"strategy": "single", "train_batch_size": 8.0}, "train_batch_size: 8.0: expected an integer"),
        ({"strategy": "single", "deepspeed": {"steps_per_print": 5}}, "5: single runs without DeepSpeed"),
        ({"strategy": "zero1", "deepspeed": {"train_batch_size": 8}}, "8: Setup.build writes this key; give train_ba"),
        ({"strategy": "zero1", "deepspeed": {"gradient_clipping": 1}}, "give max_grad_norm="),
        ({"strategy": "zero1", "deepspeed": {"optimizer": {"type": "SGD"}}}, "give optimizer= and learning_rate="),
        ({"strategy": "zero1", "deepspeed": {"pipeline": {"stages": 1}}}, "give stages= and partition="),
        ({"strategy": "zero1", "deepspeed": {"zero_optimization": {"stage": 2}}}, "2: zero1 is stage 1"),
        ({"strategy": "zero1", "deepspeed": {"bf16": {"enabled": True}}}, "bf16.enabled: True: this version trains"),
    ],
)
def test_build_refuses_alike(arguments, words):
    with pytest.raises(UserError, match=words):
        Setup.build(**arguments)


def test_build_takes_further_keys_of_deepspeed():
    keys = {"train_batch_size": "auto", "zero_optimization": {"stage": 2, "reduce_bucket_size": 1000}}
    got = Setup.build(strategy="zero2", world_size=2, train_batch_size=8, deepspeed=keys)
    assert got.deepspeed_config["zero_optimization"] == {"stage": 2, "reduce_bucket_size": 1000}
    assert got.deepspeed_config["train_batch_size"] == 8


@pytest.mark.parametrize(
    ("optimizer", "argv", "words"),
    [
        ({"type": "AdamW", "params": {"momentum": 0.9}}, (), "momentum: 0.9: adamw has none, only sgd; remove it"),
        ({"type": "SGD", "params": {"betas": [0.9, 0.999]}}, (), "betas: [0.9, 0.999]: sgd has none, only adam and"),
        ({"type": "SGD", "params": {"eps": 1e-8}}, (), "eps: 1e-08: sgd has none"),
        ({"type": "SGD", "params": {"adam_w_mode": False}}, (), "adam_w_mode: False: sgd has none"),
        ({"params": {"torch_adam": True}}, ("--optimizer", "sgd"), "torch_adam: True: sgd has none"),
        ({"type": "SGD", "params": {"momentum": 1}}, (), "momentum: 1: must be at least 0 and below 1"),
        ({"type": "AdamW", "params": {"adam_w_mode": False}}, (), "adam_w_mode: False: the optimizer is adamw"),
    ],
)
def test_an_optimizers_numbers_are_its_own(write, optimizer, argv, words):
    (line,) = refused(TORCHRUN, "--deepspeed_config", write("a.json", zero(1, optimizer=optimizer)), *argv)
    assert line.startswith("a.json: optimizer.params.") and words in line


@pytest.mark.parametrize(
    ("optimizer", "right"),
    [
        ({"type": "SGD", "params": {"momentum": 0.5, "betas": "auto"}}, ("sgd", 0.5)),
        ({"type": "Adam", "params": {"adam_w_mode": False, "eps": 1e-8}}, ("adam", 0.9)),
        ({"type": "Adam", "params": {"adam_w_mode": True, "torch_adam": True}}, ("adamw", 0.9)),
    ],
)
def test_an_optimizers_own_numbers_pass(write, optimizer, right):
    got = setup(TORCHRUN, "--deepspeed_config", write("a.json", zero(1, optimizer=optimizer)))
    assert (got.optimizer, got.momentum) == right


@pytest.mark.parametrize("stages", [1, 2])
def test_a_partition_is_checked_at_any_number_of_stages(write, stages):
    path = write("a.json", {"pipeline": {"stages": stages, "partition": "unifrom"}})
    (line,) = refused(DEEPSPEED, "--deepspeed_config", path)
    assert line.startswith("a.json: pipeline.partition: 'unifrom': unknown")


def test_the_banner_is_one_line_with_the_product_and_its_origins():
    got = setup(TORCHRUN, "--gradient_accumulation_steps", "4")
    assert "64 = 2 ranks x 8 samples x 4 micro-batches" in got.banner()
    assert got.banner().startswith("ddp (torchrun), 2 ranks (torchrun), fp32, ")
    assert "script's default" in got.banner() and "--gradient_accumulation_steps" in got.banner()
    assert "\n" not in got.banner()


def test_a_setup_is_frozen_and_its_values_are_json_with_origins():
    got = setup(DEEPSPEED, "--seed", "7")
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.seed = 1
    values = json.loads(json.dumps(got.as_dict()))
    assert values["seed"] == {"value": 7, "origin": "--seed"}
    assert values["train_batch_size"] == {"value": 64, "origin": "script's default"}
    assert set(values) == {each.name for each in dataclasses.fields(Setup)} - {"origins", "notes"}


def test_nothing_heavy_is_imported():
    heavy = {"torch", "accelerate", "deepspeed", "transformers"}
    code = f"import sys, toolkit.setup.run, toolkit.arguments; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT).stdout == "[]\n"


# --- what Accelerate would drop ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "num_processes: 2\nnum_processes: 2\n",
            "a.yaml: num_processes: 'num_processes': stands twice, at lines 1 and 2",
        ),
        ("dynamo_config:\n  a: 1\n  a: 2\n", "a.yaml: a: 'a': stands twice, at lines 2 and 3"),
        ("fsdp_config: {fsdp_version: 2}\n", "a.yaml: fsdp_config: {'fsdp_version': 2}: not part of this version"),
        ("fp8_config: {backend: TE}\n", "a.yaml: fp8_config: "),
        ("megatron_lm_config: {a: 1}\n", "a.yaml: megatron_lm_config: "),
        ("parallelism_config: {a: 1}\n", "a.yaml: parallelism_config: "),
        ("ipex_config: {ipex: true}\n", "a.yaml: ipex_config: "),
        ("deepspeed_config: {zero_stage: 2}\n", "a.yaml: deepspeed_config.zero_stage: 2: a launch without DeepSpeed"),
        ("deepspeed_config: 3\n", "a.yaml: deepspeed_config: 3: expected a mapping of keys"),
        ("a: " + "[" * 100_000, "a.yaml: 'unreadable': nested too deep"),
    ],
)
def test_the_yamls_keys_without_an_effect_are_refused(write, text, words):
    environ, parent = of_yaml(write("a.yaml", text), MULTI)
    (line,) = refused(environ, parent=parent)
    assert line.startswith(words)


def test_empty_sections_of_the_yaml_pass(write):
    environ, parent = of_yaml(write("a.yaml", "fsdp_config: {}\nfp8_config:\ndeepspeed_config: {}\n"), MULTI)
    assert setup(environ, parent=parent).strategy == "ddp"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--gradient_accumulation_steps", "4"), "'4': a launch without DeepSpeed drops it; put it after the script's"),
        (
            ("--gradient_clipping=1",),
            "'1': a launch without DeepSpeed drops it; put --max_grad_norm after the script's",
        ),
        (("--zero_stage", "2"), "'2': a launch without DeepSpeed drops it; add --use_deepspeed, or leave it out"),
        (("--fsdp_version", "2"), "'2': not part of this version; leave it out"),
    ],
)
def test_accelerates_options_without_an_effect_are_refused(write, flags, words):
    environ, parent = of_yaml(write("a.yaml", "num_processes: 2\n"), MULTI, *flags)
    (line,) = refused(environ, parent=parent)
    assert line.startswith(f"accelerate launch {flags[0].partition('=')[0]}: {words}")


def test_the_scripts_own_arguments_are_not_accelerates(write):
    yaml = write("a.yaml", "num_processes: 2\n")
    for script in (("train.py",), ("-m", "toolkit.train")):
        own = ("--gradient_accumulation_steps", "4")
        parent = ["accelerate-launch", "--config_file", yaml, *script, *own]
        assert setup(MULTI, *own, parent=parent).gradient_accumulation_steps == 4


def test_an_offload_field_is_shown_as_it_was_written(write):
    text = INLINE_YAML.replace("device: none", "device: cpu")
    environ, parent = of_yaml(
        write("i.yaml", text), ZERO | INLINE | {"ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu"}
    )
    assert refused(environ, parent=parent) == (
        "i.yaml: deepspeed_config.offload_optimizer_device: 'cpu': offload is not part of this version; remove it",
    )


# --- a script's own defaults ---------------------------------------------------------------------------------------


def test_a_scripts_default_accumulation_counts_and_yields_to_the_file(write):
    default = {"gradient_accumulation_steps": 4}
    alone = setup(TORCHRUN, defaults=default)
    assert (alone.train_micro_batch_size_per_gpu, alone.gradient_accumulation_steps) == (8, 4)
    assert alone.origins["gradient_accumulation_steps"] == "script's default"
    path = write("zero1.json", zero(1, gradient_accumulation_steps=2))
    assert setup(TORCHRUN, "--deepspeed_config", path, defaults=default).gradient_accumulation_steps == 2
    assert setup(TORCHRUN, "--gradient_accumulation_steps", "1", defaults=default).gradient_accumulation_steps == 1


def test_a_micro_batch_is_no_default():
    with pytest.raises(ValueError, match="train_batch_size"):
        parse_arguments([], description="test", defaults={"per_device_train_batch_size": 8})
