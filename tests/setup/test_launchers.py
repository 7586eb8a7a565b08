"""Which launcher with which files gives which setup, and what of an Accelerate YAML is refused."""

import json

import pytest
from launched import DEEPSPEED, INLINE, INLINE_YAML, MULTI, SIMPLE, TORCHRUN, ZERO, of_yaml, refused, setup, zero

from toolkit.check import check

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


def test_fields_in_the_yaml_become_the_same_configuration(write):
    environ, parent = of_yaml(write("i.yaml", INLINE_YAML), ZERO | INLINE)
    got = setup(environ, parent=parent)
    assert (got.strategy, got.max_grad_norm, got.gradient_accumulation_steps) == ("zero3", 0.5, 4)
    assert got.origins["max_grad_norm"] == "i.yaml: deepspeed_config.gradient_clipping"
    same = setup(
        DEEPSPEED, "--deepspeed_config", write("a.json", zero(3, gradient_clipping=0.5, gradient_accumulation_steps=4))
    )
    assert got.deepspeed_config == same.deepspeed_config


def test_where_the_launchers_command_line_is_not_seen_its_environment_is_named():
    got = setup(ZERO | INLINE, parent=["bash", "start.sh"])
    assert got.origins["max_grad_norm"] == "accelerate's environment: ACCELERATE_GRADIENT_CLIPPING"
    assert got.origins["strategy"] == "accelerate's environment: ACCELERATE_DEEPSPEED_ZERO_STAGE"
    (line,) = refused(ZERO | INLINE, "--max_grad_norm", "1", parent=["bash", "start.sh"])
    assert line.startswith("accelerate's environment: ACCELERATE_GRADIENT_CLIPPING: 0.5: --max_grad_norm says 1.0;")
    (line,) = refused(ZERO | INLINE | {"ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,zero_stagee"}, parent=["bash"])
    assert line.startswith("accelerate's environment: deepspeed_config.zero_stagee: None: unknown key")


def test_fields_in_the_yaml_bind_like_a_file(write):
    environ, parent = of_yaml(write("i.yaml", INLINE_YAML), ZERO | INLINE)
    (line,) = refused(environ, "--gradient_accumulation_steps", "2", parent=parent)
    assert line.startswith(
        "i.yaml: deepspeed_config.gradient_accumulation_steps: 4: --gradient_accumulation_steps says 2"
    )
    (line,) = refused(environ, "--deepspeed_config", write("a.json", zero(3)), parent=parent)
    assert "i.yaml: deepspeed_config.zero_stage configures DeepSpeed already" in line


def with_auto_json(write, text, environ):
    """Accelerate's own form: "auto" in the JSON is the YAML's field."""
    names = ("stage", "stage3_gather_16bit_weights_on_model_save")
    config = {
        "zero_optimization": dict.fromkeys(names, "auto") | {"offload_param": {"device": "auto"}},
        "gradient_clipping": "auto",
        "gradient_accumulation_steps": "auto",
    }
    write("a.json", config)
    environ = ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "a.json", **environ}
    path = write("b.yaml", f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n{text}")
    return of_yaml(path, environ)


def test_auto_in_the_json_is_the_field_of_the_yaml(write):
    text = "  deepspeed_config_file: a.json\n  zero_stage: 3\n  gradient_clipping: 0.5\n  offload_param_device: cpu\n"
    given = {"ZERO_STAGE": "3", "OFFLOAD_PARAM_DEVICE": "cpu"}
    given = {f"ACCELERATE_DEEPSPEED_{name}": value for name, value in given.items()}
    environ, parent = with_auto_json(write, text, given | {"ACCELERATE_GRADIENT_CLIPPING": "0.5"})
    got = setup(environ, parent=parent)
    assert (got.strategy, got.max_grad_norm, got.gradient_accumulation_steps) == ("zero3_offload", 0.5, 1)
    assert got.origins["strategy"] == "b.yaml: deepspeed_config.zero_stage"
    assert got.origins["max_grad_norm"] == "b.yaml: deepspeed_config.gradient_clipping"
    (line,) = refused(environ, "--max_grad_norm", "1", parent=parent)
    assert line.startswith("b.yaml: deepspeed_config.gradient_clipping: 0.5: --max_grad_norm says 1.0;")
    assert line.as_dict()["line"] == 6


def test_an_auto_stage_that_no_field_gives_is_accelerates_default(write):
    environ, parent = with_auto_json(write, "  deepspeed_config_file: a.json\n", {})
    got = setup(environ, "--gradient_accumulation_steps", "4", parent=parent)
    assert (got.strategy, got.gradient_accumulation_steps) == ("zero2", 4)
    assert got.origins["strategy"] == 'a.json: zero_optimization.stage "auto" (Accelerate\'s default)'
    (line,) = refused(DEEPSPEED, "--deepspeed_config", "a.json")
    assert line.startswith("a.json: zero_optimization.stage: 'auto': there is no rule for \"auto\" here;")


def test_fields_beside_a_file_are_refused_not_ignored(write):
    write("a.json", zero(1))
    fields = "{deepspeed_config_file: a.json, gradient_clipping: 0.5}"
    text = f"distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {fields}\n"
    environ = {"ACCELERATE_DEEPSPEED_CONFIG_FILE": "a.json", "ACCELERATE_GRADIENT_CLIPPING": "0.5"}
    environ, parent = of_yaml(write("b.yaml", text), ZERO | environ)
    (line,) = refused(environ, parent=parent)
    assert line == (
        "b.yaml: deepspeed_config.gradient_clipping: 0.5: a.json has no gradient_clipping, and Accelerate ignores this "
        "beside b.yaml: deepspeed_config.deepspeed_config_file; write gradient_clipping 0.5 there, or remove it here"
    )


@pytest.mark.parametrize(
    ("name", "value", "right"),
    [
        ("zero3_save_16bit_model", False, None),
        ("zero3_save_16bit_model", True, "zero_optimization.stage3_gather_16bit_weights_on_model_save true"),
        ("zero_stage", 1, None),
        ("offload_param_device", "none", None),
        ("offload_optimizer_device", "cpu", 'zero_optimization.offload_optimizer.device "cpu"'),
        ("gradient_accumulation_steps", 1, "gradient_accumulation_steps 1"),
    ],
)
def test_a_field_beside_a_file_without_the_key(write, name, value, right):
    write("a.json", zero(1))
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config:\n  deepspeed_config_file: a.json\n"
    path = write("b.yaml", text + f"  {name}: {json.dumps(value)}\n")
    faults = check({"CUDA_VISIBLE_DEVICES": ""}, config_file=path).errors
    assert [line.rpartition("; ")[2] for line in faults] == (
        [] if right is None else [f"write {right} there, or remove it here"]
    )


@pytest.mark.parametrize(
    ("text", "environ", "words"),
    [
        (
            "deepspeed_config: {zero_stagee: 3, zero_stage: 2}",
            {"ACCELERATE_DEEPSPEED_ZERO_STAGE": "2", "ACCELERATE_CONFIG_DS_FIELDS": "zero_stagee,zero_stage"},
            "a.yaml: deepspeed_config.zero_stagee: 3: unknown key, Accelerate ignores it; did you mean zero_stage?",
        ),
        (
            "mixed_precision: fp8",
            {"ACCELERATE_MIXED_PRECISION": "fp8"},
            "a.yaml: mixed_precision: 'fp8': not a precision here; one of no, bf16, fp16",
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
        (
            "distributed_type: FSDP\nnum_processes: 2",
            MULTI,
            (),
            "a.yaml: distributed_type: 'FSDP': not supported yet; ",
        ),
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


def test_two_jsons_of_one_name_that_differ_are_refused(write, tmp_path):
    (tmp_path / "configs").mkdir()
    text = "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: a.json}\n"
    (tmp_path / "configs" / "a.yaml").write_text(text)
    (tmp_path / "configs" / "a.json").write_text('{"zero_optimization": {"stage": 2}}')
    asked = {"environ": {"CUDA_VISIBLE_DEVICES": ""}, "config_file": "configs/a.yaml"}
    assert check(**asked).setup["strategy"]["value"] == "zero2"
    write("a.json", zero(3))
    (line,) = check(**asked).errors
    assert line == (
        f"configs/a.yaml: deepspeed_config.deepspeed_config_file: 'a.json': one stands in {tmp_path}, another one "
        "beside configs/a.yaml, and they differ; name the one that is meant with its folder"
    )
    write("a.json", zero(2))
    assert check(**asked).errors == ()


def test_a_name_that_no_file_has_is_a_line(write):
    text = 'distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {deepspeed_config_file: "a\\0b"}\n'
    (line,) = check({"CUDA_VISIBLE_DEVICES": ""}, config_file=write("a.yaml", text)).errors
    assert line.startswith("a.yaml: deepspeed_config.deepspeed_config_file: 'a\\x00b': no such file, searched from")
