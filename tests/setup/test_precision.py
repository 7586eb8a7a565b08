"""Which precision is settled from which words, and what it means in each setup."""

import pytest
from launched import DEEPSPEED, MULTI, SIMPLE, TORCHRUN, ZERO, of_yaml, refused, setup, zero

from toolkit.errors import UserError
from toolkit.setup import Setup
from toolkit.setup.precision import LOSS_SCALE

AUTOCAST = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
DEFAULTS = {
    "loss_scale": 0,
    "initial_scale_power": 16,
    "loss_scale_window": 1000,
    "hysteresis": 2,
    "consecutive_hysteresis": False,
    "min_loss_scale": 1,
}


def on(*names, value=True, **more):
    return {name: {"enabled": value, **more} for name in names}


def cast(**more):
    return {"torch_autocast": {"enabled": True, **more}}


def obtained(got):
    return got.mixed_precision, got.weight_dtype, got.autocast_dtype


FP32 = ("no", "float32", None)
BF16_CAST, FP16_CAST = ("bf16", "float32", "bfloat16"), ("fp16", "float32", "float16")
BF16_HELD, FP16_HELD = ("bf16", "bfloat16", None), ("fp16", "float16", None)
ZEROS = ("zero1", "zero2", "zero3", "zero1_offload", "zero2_offload", "zero3_offload", "pipeline", "pipeline_dp")


# --- what it means in each setup -----------------------------------------------------------------------------------


def built(strategy, **values):
    world = {"single": 1, "pipeline_dp": 4}.get(strategy, 2)
    stages = 2 if strategy == "pipeline_dp" else None
    return Setup.build(strategy=strategy, world_size=world, stages=stages, train_batch_size=8, **values)


@pytest.mark.parametrize("strategy", ["single", "ddp"])
@pytest.mark.parametrize(
    ("asked", "section", "right"),
    [
        ("no", None, FP32),
        ("bf16", None, BF16_CAST),
        ("fp16", None, FP16_CAST),
        ("no", on("bf16"), BF16_CAST),
        ("bf16", on("bf16", value="auto"), BF16_CAST),
        ("fp16", on("fp16", value="auto"), FP16_CAST),
        ("no", on("bf16", "fp16", value="auto"), FP32),
    ],
)
def test_one_process_and_ddp_cast_fp32_weights(strategy, asked, section, right):
    got = built(strategy, mixed_precision=asked, deepspeed=section)
    assert (obtained(got), got.deepspeed_config) == (right, None)
    assert got.loss_scale == (DEFAULTS if got.mixed_precision == "fp16" else {})
    words = f"{strategy} keeps weights in fp32 and casts in the forward pass"
    told = [note for note in got.notes if words in note]
    assert len(told) == (section is not None and right != FP32)


@pytest.mark.parametrize("strategy", ZEROS)
@pytest.mark.parametrize(
    ("asked", "section", "right", "written"),
    [
        ("no", None, FP32, {}),
        ("bf16", None, BF16_CAST, {"torch_autocast": AUTOCAST}),
        ("no", cast(dtype="torch.bfloat16"), BF16_CAST, {"torch_autocast": AUTOCAST}),
        ("bf16", on("bf16", value="auto"), BF16_HELD, {"bf16": {"enabled": True, "check_grad_overflow": False}}),
        ("no", on("bf16"), BF16_HELD, {"bf16": {"enabled": True, "check_grad_overflow": False}}),
        ("fp16", None, FP16_HELD, {"fp16": {"enabled": True, **DEFAULTS}}),
        ("no", on("fp16", auto_cast=True), FP16_HELD, {"fp16": {"enabled": True, **DEFAULTS, "auto_cast": True}}),
        ("fp16", on("fp16", "bf16", value="auto"), FP16_HELD, {"fp16": {"enabled": True, **DEFAULTS}}),
    ],
)
def test_deepspeed_casts_or_holds_by_its_sections(strategy, asked, section, right, written):
    got = built(strategy, mixed_precision=asked, deepspeed=section)
    assert obtained(got) == right
    sections = {name: got.deepspeed_config.get(name) for name in ("fp16", "bf16", "torch_autocast")}
    assert sections == {"fp16": {"enabled": False}, "bf16": {"enabled": False}, "torch_autocast": None} | written
    assert got.loss_scale == (DEFAULTS if got.mixed_precision == "fp16" else {})


# --- where it is asked for -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "argv", "right", "origin"),
    [
        (zero(2), (), FP32, "script's default"),
        (zero(2), ("--mixed_precision", "bf16"), BF16_CAST, "--mixed_precision"),
        (zero(2, **on("bf16")), (), BF16_HELD, "a.json: bf16.enabled"),
        (zero(2, **on("bf16", value="auto")), (), FP32, "script's default"),
        (zero(2, **on("bf16", value="auto")), ("--mixed_precision", "bf16"), BF16_HELD, "--mixed_precision"),
        (zero(2, **on("fp16", "bf16", value="auto")), ("--mixed_precision", "bf16"), BF16_HELD, "--mixed_precision"),
        (zero(2, **on("bf16")), ("--mixed_precision", "bf16"), BF16_HELD, "a.json: bf16.enabled"),
        (zero(2, **on("fp16")), (), FP16_HELD, "a.json: fp16.enabled"),
        (zero(2, **on("fp16", value=False)), (), FP32, "script's default"),
        (zero(2, **on("fp16", value=False)), ("--mixed_precision", "bf16"), BF16_CAST, "--mixed_precision"),
        (zero(2, **cast()), (), BF16_CAST, "a.json: torch_autocast.enabled"),
        (zero(0, **cast(dtype="half")), (), FP16_CAST, "a.json: torch_autocast.enabled"),
        (zero(0, **on("fp16")), (), FP16_CAST, "a.json: fp16.enabled"),
        (zero(2, **on("torch_autocast", value=False)), ("--mixed_precision", "fp16"), FP16_HELD, "--mixed_precision"),
    ],
)
@pytest.mark.parametrize("environ", [DEEPSPEED, TORCHRUN, ZERO])
def test_arguments_and_the_json_decide(write, environ, content, argv, right, origin):
    got = setup(environ, "--deepspeed_config", write("a.json", content), *argv)
    assert (obtained(got), got.origins["mixed_precision"]) == (right, origin)
    assert not [note for note in got.notes if "not used: torch_autocast" in note]


@pytest.mark.parametrize("name", ["bfloat16", "bf16", "torch.bfloat16"])
def test_each_of_deepspeeds_names_for_a_format_is_taken(write, name):
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", zero(3, **cast(dtype=name))))
    assert got.deepspeed_config["torch_autocast"] == AUTOCAST


@pytest.mark.parametrize(
    ("environ", "text", "flags", "right", "origin"),
    [
        (MULTI, "mixed_precision: bf16\ndistributed_type: MULTI_GPU", (), BF16_CAST, "a.yaml: mixed_precision"),
        (
            SIMPLE,
            "distributed_type: 'NO'",
            ("--mixed_precision", "fp16"),
            FP16_CAST,
            "accelerate launch --mixed_precision",
        ),
        (
            ZERO,
            "distributed_type: DEEPSPEED",
            ("--mixed_precision=bf16",),
            BF16_CAST,
            "accelerate launch --mixed_precision",
        ),
        (ZERO, "mixed_precision: FP16\ndistributed_type: DEEPSPEED", (), FP16_HELD, "a.yaml: mixed_precision"),
    ],
)
def test_accelerate_launch_decides(write, environ, text, flags, right, origin):
    environ = environ | {"ACCELERATE_MIXED_PRECISION": right[0]}
    environ, parent = of_yaml(write("a.yaml", f"debug: false\n{text}\n"), environ, *flags)
    got = setup(environ, parent=parent)
    assert (obtained(got), got.origins["mixed_precision"]) == (right, origin)


def test_accelerates_no_is_what_it_sets_when_nobody_says_anything(write):
    environ, parent = of_yaml(write("a.yaml", "mixed_precision: 'no'\ndistributed_type: MULTI_GPU\n"), MULTI)
    assert obtained(setup(environ, "--mixed_precision", "bf16", parent=parent)) == BF16_CAST


def test_a_script_may_have_a_default_that_yields_to_the_file(write):
    default = {"mixed_precision": "bf16"}
    assert obtained(setup(TORCHRUN, defaults=default)) == BF16_CAST
    for content, right in ((on("fp16"), FP16_HELD), (on("bf16", value=False), FP32), (on("bf16"), BF16_HELD)):
        got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, **content)), defaults=default)
        assert (obtained(got), got.origins["mixed_precision"][:7]) == (right, "a.json:")


# --- what contradicts ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "environ", "argv", "line"),
    [
        (
            on("fp16", "bf16"),
            {},
            (),
            "a.json: fp16.enabled: True: a.json: bf16.enabled is true, and both cannot hold; keep one of the sections",
        ),
        (on("bf16") | cast(), {}, (), "a.json: bf16.enabled: True: a.json: torch_autocast.enabled is true, and both"),
        (on("bf16", value="auto") | cast(), {}, (), "a.json: bf16.enabled: 'auto': a.json: torch_autocast.enabled is"),
        (on("fp16"), {}, ("--mixed_precision", "bf16"), "--mixed_precision: 'bf16': a.json: fp16.enabled says fp16"),
        (on("bf16"), {}, ("--mixed_precision", "no"), "--mixed_precision: 'no': a.json: bf16.enabled says bf16; keep"),
        (cast(), {}, ("--mixed_precision", "fp16"), "--mixed_precision: 'fp16': a.json: torch_autocast.enabled says"),
        (
            on("fp16"),
            {"ACCELERATE_MIXED_PRECISION": "bf16"},
            (),
            "accelerate's environment: ACCELERATE_MIXED_PRECISION: 'bf16': a.json: fp16.enabled says fp16; keep one "
            "precision",
        ),
        (
            {},
            {"ACCELERATE_MIXED_PRECISION": "bf16"},
            ("--mixed_precision", "no"),
            "--mixed_precision: 'no': accelerate's environment: ACCELERATE_MIXED_PRECISION says bf16; keep one "
            "precision",
        ),
        (
            on("bf16", value=False),
            {},
            ("--mixed_precision", "bf16"),
            'a.json: bf16.enabled: False: --mixed_precision says bf16; write true or "auto", or keep fp32',
        ),
        (on("fp16", value=False), {}, ("--mixed_precision", "fp16"), "a.json: fp16.enabled: False: --mixed_precision"),
        (
            on("torch_autocast", value=False),
            {},
            ("--mixed_precision", "bf16"),
            "a.json: torch_autocast.enabled: False: --mixed_precision says bf16",
        ),
        (
            {},
            {"ACCELERATE_MIXED_PRECISION": "yes"},
            (),
            "accelerate's environment: ACCELERATE_MIXED_PRECISION: 'yes': not a prec",
        ),
        (
            cast(dtype="float16"),
            {},
            (),
            "a.json: torch_autocast.dtype: 'float16': DeepSpeed clips scaled gradients there and trains wrong; write "
            '"fp16": {"enabled": true} instead',
        ),
        (cast(dtype="fp32"), {}, (), "a.json: torch_autocast.dtype: 'fp32': not a format of autocast here; write \"bf"),
        (cast(dtype="int8"), {}, (), "a.json: torch_autocast.dtype: 'int8': not a format"),
        (cast(dtype="torch.bf16"), {}, (), "a.json: torch_autocast.dtype: 'torch.bf16': not a format"),
        (
            on("fp16", initial_scale_power=33),
            {},
            (),
            "a.json: fp16.initial_scale_power: 33: losses scaled by more than 2 ** 32 overflow; write 32 or less",
        ),
        (on("fp16", loss_scale=1e300), {}, (), "a.json: fp16.loss_scale: 1e+300: losses scaled by more than 2 ** 32"),
    ],
)
def test_contradictions_are_refused_naming_both(write, content, environ, argv, line):
    (got,) = refused(ZERO | environ, "--deepspeed_config", write("a.json", zero(1, **content)), *argv)
    assert got.startswith(line)


@pytest.mark.parametrize("dtype", ["fp32", "int8"])
def test_a_format_that_is_none_is_refused_without_zero_too(write, dtype):
    (line,) = refused(TORCHRUN, "--deepspeed_config", write("a.json", zero(0, **cast(dtype=dtype))))
    assert line.startswith(f"a.json: torch_autocast.dtype: '{dtype}': not a format")


# --- the loss scale ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stage", [0, 1, 3])
@pytest.mark.parametrize(
    ("numbers", "right"),
    [
        ({}, {}),
        ({"loss_scale": "auto", "initial_scale_power": "auto"}, {}),
        ({"loss_scale": 128}, {"loss_scale": 128}),
        ({"loss_scale": 0.5}, {"loss_scale": 0.5}),
        ({"initial_scale_power": 32, "hysteresis": 1}, {"initial_scale_power": 32, "hysteresis": 1}),
        ({"loss_scale_window": 20.0, "min_loss_scale": 2}, {"loss_scale_window": 20, "min_loss_scale": 2}),
        ({"consecutive_hysteresis": True}, {"consecutive_hysteresis": True}),
    ],
)
def test_the_loss_scales_numbers_are_deepspeeds_and_the_same_in_every_setup(write, stage, numbers, right):
    path = write("a.json", zero(stage, fp16={"enabled": "auto", **numbers}))
    got = setup(DEEPSPEED, "--deepspeed_config", path, "--mixed_precision", "fp16")
    assert got.loss_scale == DEFAULTS | right
    assert [type(got.loss_scale[name]) for name in right] == [type(value) for value in right.values()]
    auto = set(numbers.values()) <= {"auto"}
    assert got.origins["loss_scale"] == ("default" if auto else "a.json: fp16")
    if stage:
        assert got.deepspeed_config["fp16"] == {"enabled": True, **DEFAULTS, **right}


def test_the_defaults_are_deepspeeds_own():
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config

    theirs = DeepSpeedFP16Config(enabled=True)
    assert {name: getattr(theirs, name) for name in LOSS_SCALE} == LOSS_SCALE == DEFAULTS


def test_build_takes_the_numbers_of_one_process_and_refuses_the_same():
    got = Setup.build(strategy="single", mixed_precision="fp16", deepspeed={"fp16": {"initial_scale_power": 3}})
    assert got.loss_scale == DEFAULTS | {"initial_scale_power": 3}
    with pytest.raises(UserError, match="Setup.build: fp16.initial_scale_power: 64: losses scaled by more than"):
        Setup.build(strategy="single", mixed_precision="fp16", deepspeed={"fp16": {"initial_scale_power": 64}})


# --- the banner ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "argv", "words"),
    [
        (zero(1), (), ", fp32, 64 = "),
        (zero(1), ("--mixed_precision", "bf16"), ", bf16 autocast of fp32 weights (--mixed_precision), 64 = "),
        (zero(1, **on("bf16")), (), ", bf16 weights (a.json: bf16.enabled), 64 = "),
        (zero(1), ("--mixed_precision", "fp16"), ", fp16 weights (--mixed_precision), 64 = "),
        (zero(0), ("--mixed_precision", "fp16"), ", fp16 autocast of fp32 weights (--mixed_precision), 64 = "),
        (
            zero(1) | {"zero_optimization": {"stage": 1, "offload_optimizer": {"device": "cpu"}}, **on("bf16")},
            (),
            ", bf16 weights (a.json: bf16.enabled), adamw is DeepSpeedCPUAdam, 64 = ",
        ),
    ],
)
def test_the_banner_says_precision_weights_and_origin(write, content, argv, words):
    assert words in setup(DEEPSPEED, "--deepspeed_config", write("a.json", content), *argv).banner()
