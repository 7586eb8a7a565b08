"""The frozen Setup, as it is built, shown and handed to the libraries."""

import dataclasses
import json
import subprocess
import sys

import pytest
from launched import DEEPSPEED, MULTI, ROOT, SIMPLE, TORCHRUN, ZERO, of_yaml, refused, setup, zero

from toolkit.errors import UserError
from toolkit.setup import Setup

RANKS = dict.fromkeys(("zero1", "zero2", "zero3", "zero2_offload", "zero3_offload", "pipeline"), 2) | {"pipeline_dp": 4}

# --- the result ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stem", RANKS)
def test_every_launcher_gets_the_same_configuration_from_a_preset(stem, monkeypatch):
    monkeypatch.chdir(ROOT)
    path, world = f"ds_configs/{stem}.json", {"WORLD_SIZE": str(RANKS[stem])}
    environ, parent = of_yaml(f"accelerate_configs/{stem}.yaml", ZERO | {"ACCELERATE_DEEPSPEED_CONFIG_FILE": path})
    first = setup(environ | world, parent=parent)
    others = [setup(environ | world, "--deepspeed_config", path) for environ in (DEEPSPEED, TORCHRUN)]
    assert {first.strategy, *(other.strategy for other in others)} == {stem}
    assert [other.deepspeed_config for other in others] == [first.deepspeed_config] * 2
    assert "auto" not in json.dumps(first.deepspeed_config)


@pytest.mark.parametrize(("stem", "environ", "strategy"), [("single", SIMPLE, "single"), ("ddp", MULTI, "ddp")])
def test_the_plain_presets(stem, environ, strategy, monkeypatch):
    monkeypatch.chdir(ROOT)
    environ, parent = of_yaml(f"accelerate_configs/{stem}.yaml", environ)
    got = setup(environ, parent=parent)
    assert (got.strategy, got.deepspeed_config) == (strategy, None)


def test_every_preset_has_a_row_here():
    assert {path.stem for path in (ROOT / "accelerate_configs").glob("*.yaml")} == {*RANKS, "ddp", "single"}


@pytest.mark.parametrize("stem", ["ddp", *RANKS])
def test_build_gives_the_configuration_of_the_preset(stem, monkeypatch):
    monkeypatch.chdir(ROOT)
    world = RANKS.get(stem, 2)
    run = setup(DEEPSPEED | {"WORLD_SIZE": str(world)}, "--deepspeed_config", f"ds_configs/{stem}.json")
    built = Setup.build(
        strategy=stem,
        world_size=world,
        stages=run.stages,
        train_batch_size=64,
        gradient_accumulation_steps=run.gradient_accumulation_steps,
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
        ({"strategy": "single", "deepspeed": {"torch_autocast": {"enabled": True}}}, "single runs without DeepSpeed"),
        ({"strategy": "single", "mixed_precision": "fp8"}, "mixed_precision: 'fp8': expected one of no, bf16, fp16"),
        ({"strategy": "single", "sync_batch_norm": 2}, "sync_batch_norm: 2: expected true or false"),
        (
            {"strategy": "zero1", "mixed_precision": "fp16", "deepspeed": {"bf16": {"enabled": True}}},
            "Setup.build: mixed_precision: 'fp16': Setup.build: bf16.enabled says bf16; keep one precision",
        ),
        (
            {"strategy": "zero2", "deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "cpu"}}}},
            "offload_optimizer.device: 'cpu': that is zero2_offload; leave it out, or change the strategy",
        ),
        (
            {
                "strategy": "zero1_offload",
                "deepspeed": {"zero_optimization": {"offload_optimizer": {"device": "none"}}},
            },
            "offload_optimizer.device: 'none': that is zero1; leave it out",
        ),
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


def test_build_moves_old_names_as_a_file_does():
    got = Setup.build(strategy="zero2", world_size=2, deepspeed={"allgather_size": 5000})
    assert got.deepspeed_config["zero_optimization"] == {"stage": 2, "allgather_bucket_size": 5000}
    (note,) = got.notes
    assert note.startswith("Setup.build: allgather_size: an older name, taken as ")
    both = {"bf16": {"enabled": True}, "bfloat16": {"enabled": True}}
    with pytest.raises(UserError, match="Setup.build: bfloat16"):
        Setup.build(strategy="zero2", world_size=2, deepspeed=both)


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
    got = setup(DEEPSPEED, "--seed", "7", "--sync_batch_norm")
    with pytest.raises(dataclasses.FrozenInstanceError):
        got.seed = 1
    values = json.loads(json.dumps(got.as_dict()))
    assert values["seed"] == {"value": 7, "origin": "--seed", "overrode": "script's default 42"}
    assert values["sync_batch_norm"] == {
        "value": True,
        "origin": "--sync_batch_norm",
        "overrode": "script's default False",
    }
    assert values["loss_scale"] == {"value": {}, "origin": "default", "overrode": None}
    assert values["train_batch_size"] == {"value": 64, "origin": "script's default", "overrode": None}
    assert set(values) == {each.name for each in dataclasses.fields(Setup)} - {"origins", "overrode", "notes"} | {
        "offload"
    }


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
            "a.yaml: num_processes: '2': stands twice, at lines 1 and 2; keep one",
        ),
        ("dynamo_config:\n  a: 1\n  a: 2\n", "a.yaml: dynamo_config.a: '2': stands twice, at lines 2 and 3; keep one"),
        ("fsdp_config: {fsdp_version: 2}\n", "a.yaml: fsdp_config: {'fsdp_version': 2}: not supported yet"),
        ("fp8_config: {backend: TE}\n", "a.yaml: fp8_config: "),
        ("megatron_lm_config: {a: 1}\n", "a.yaml: megatron_lm_config: "),
        ("parallelism_config: {a: 1}\n", "a.yaml: parallelism_config: "),
        (
            "ipex_config: {ipex: true}\n",
            "a.yaml: ipex_config: {'ipex': True}: unknown key, Accelerate refuses the file; remove it, A",
        ),
        ("deepspeed_config: {zero_stage: 2}\n", "a.yaml: deepspeed_config.zero_stage: 2: a launch without DeepSpeed"),
        ("deepspeed_config: 3\n", "a.yaml: deepspeed_config: 3: expected mapping of keys, got integer 3; write"),
        ("a: " + "[" * 50_000 + "]" * 50_000, "a.yaml: 'unreadable': nested too deep"),
    ],
)
def test_the_yamls_keys_without_an_effect_are_refused(write, text, words):
    kind = "" if text.startswith("a:") else "distributed_type: MULTI_GPU\n"
    environ, parent = of_yaml(write("a.yaml", text + kind), MULTI)
    (line,) = refused(environ, parent=parent)
    assert line.startswith(words)


def test_empty_sections_of_the_yaml_pass(write):
    text = "distributed_type: MULTI_GPU\nfsdp_config: {}\nfp8_config:\ndeepspeed_config: {}\n"
    environ, parent = of_yaml(write("a.yaml", text), MULTI)
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
    environ, parent = of_yaml(write("a.yaml", "distributed_type: MULTI_GPU\n"), MULTI, *flags)
    (line,) = refused(environ, parent=parent)
    assert line.startswith(f"accelerate launch {flags[0].partition('=')[0]}: {words}")


def test_the_scripts_own_arguments_are_not_accelerates(write):
    yaml = write("a.yaml", "distributed_type: MULTI_GPU\n")
    for script in (("train.py",), ("-m", "toolkit.train")):
        own = ("--gradient_accumulation_steps", "4")
        parent = ["accelerate-launch", "--config_file", yaml, *script, *own]
        assert setup(MULTI, *own, parent=parent).gradient_accumulation_steps == 4
