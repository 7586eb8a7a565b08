"""One owner for each number: typed, the file, the script; and pipelines."""

import pytest
from launched import DEEPSPEED, TORCHRUN, ZERO, refused, setup, zero

from toolkit.arguments import parse_arguments

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
    ({"optimizer": {"type": "SGD"}}, ("--optimizer", "adamw"), "optimizer.type: 'SGD'", "says 'adamw'"),
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


# --- pipeline ----------------------------------------------------------------------------------------


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
            "runs as ddp, with batch, precision, clipping, optimizer and schedule from the file; not used: wall_",
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
