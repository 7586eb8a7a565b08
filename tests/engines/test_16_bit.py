"""Precision, loss scaling and offload mean the same under every strategy. The numbers come from checks_precision.py."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from deepspeed.runtime.fp16 import loss_scaler as deepspeeds

from toolkit.engines.scaler import LossScaler, kept
from toolkit.setup.precision import LOSS_SCALE

Got = Callable[[str, str], list[Any]]
ALL = ("single x1", "ddp x2", "zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2", "pipeline x2")
ZERO = ("zero1 x2", "zero2 x2", "zero3 x2", "zero2_offload x2", "zero3_offload x2")
PLAIN = ("single x1", "ddp x2")
every_setup = pytest.mark.parametrize("setup", ALL)
BF16, FP16, FP32 = "bfloat16", "float16", "float32"


def dtypes(parameter: str, autocast: str | None) -> dict[str, str | None]:
    return {
        "parameter_dtype": parameter,
        "gradient_dtype": parameter,
        "buffer_dtype": FP32,
        "autocast_dtype": autocast,
    }


@every_setup
def test_the_formats_are_those_asked_for(got: Got, setup: str) -> None:
    weights = (FP32, BF16) if setup in PLAIN else (BF16, None)
    scaled = (FP32, FP16) if setup in PLAIN else (FP16, None)
    right = {"fp32": (FP32, None), "bf16": (FP32, BF16), "bf16 weights": weights, "fp16": scaled}
    for rank in got("formats", setup):
        for kind, (parameter, autocast) in right.items():
            found = {name: value for name, value in rank[kind].items() if name.endswith("dtype")}
            expected = dtypes(parameter, autocast)
            if setup.startswith("pipeline") and found["buffer_dtype"] is None:  # the last stage has no BatchNorm
                expected["buffer_dtype"] = None
            assert found == expected, kind


@every_setup
def test_16_bit_trains_batch_norm_like_fp32(got: Got, setup: str) -> None:
    """C51: DeepSpeed casts weights and no buffers, and torch refuses the two beside each other."""
    for rank in got("formats", setup):
        for kind in ("bf16", "bf16 weights", "fp16"):
            # Measured 6e-4 (bf16), 8e-5 (fp16).
            assert rank[kind]["losses"] == pytest.approx(rank["fp32"]["losses"], rel=2e-4 if kind == "fp16" else 1e-3)
            for name, (dtype, finite, values) in rank[kind]["buffers"].items():
                assert dtype == "torch.float32" and finite, name
                # Variances near 1, means near 0. Measured 5e-4.
                assert values == pytest.approx(rank["fp32"]["buffers"][name][2], abs=1e-3), name


@every_setup
@pytest.mark.parametrize("kind", ["no", "bf16"])
def test_a_recomputed_micro_batch_enters_the_statistics_once(got: Got, setup: str, kind: str) -> None:
    for rank in got("recomputed", setup):
        assert rank[f"{kind} True"] == rank[f"{kind} False"]
        assert rank[f"{kind} True"]["stem.norm.num_batches_tracked"] == [2]


@pytest.mark.parametrize("setup", ZERO)
def test_autocast_under_zero_is_that_of_ddp(got: Got, setup: str) -> None:
    assert got("formats", setup)[0]["bf16"]["losses"] == got("formats", "ddp x2")[0]["bf16"]["losses"]


@every_setup
def test_skipped_steps_count_as_steps_and_not_as_updates(got: Got, setup: str) -> None:
    """C25: 3 of 6 steps overflow; the schedule, 1 / (1 + updates), moves with the other 3."""
    for rank in got("overflow", setup):
        assert rank["skipped"] == [True] * 3 + [False] * 3
        assert rank["updates"] == [0, 0, 0, 1, 2, 3]
        assert rank["rates"] == [0.125, 0.125, 0.125, 0.125, 0.0625, 0.125 / 3]
        assert rank["scales"] == [65536, 32768, 16384, 8192, 8192, 8192]
        assert rank["still"] == [True] * 3 + [False] * 3
        assert rank["norms"][:3] == [float("inf")] * 3
        assert rank["norms"][3:] == pytest.approx(got("overflow", "ddp x2")[0]["norms"][3:], rel=2e-3)  # measured 6e-4


@every_setup
def test_the_scale_is_kept_and_restored(got: Got, setup: str) -> None:
    for rank in got("overflow", setup):
        assert rank["kept"] == {"cur_scale": 8192, "cur_iter": 6, "last_overflow_iter": 2, "cur_hysteresis": 1}
        assert rank["restored"] == {"cur_scale": 4, "cur_iter": 7, "last_overflow_iter": 2, "cur_hysteresis": 1}


@every_setup
@pytest.mark.parametrize("kind, steps, scale", [("dynamic", 12, "1"), ("static", 9, "64")])
def test_ten_skips_at_the_smallest_scale_end_the_run(got: Got, setup: str, kind: str, steps: int, scale: str) -> None:
    """C25: from scale 8 three steps lead down to 1, and the tenth there is the last; in every stage, on every rank."""
    for rank in got("floor", setup):
        assert rank[kind]["steps"] == steps
        assert rank[kind]["updates"] == 0
        (line,) = rank[kind]["lines"]
        assert f"10 steps in a row were skipped: gradients are not finite at loss scale {scale};" in line


@pytest.mark.parametrize("setup", [*ZERO, "pipeline x2"])
@pytest.mark.parametrize("formats", ["bf16 to bf16", "fp16 to fp16", "bf16 to no"])
def test_a_16_bit_checkpoint_goes_over_without_a_rounding(got: Got, setup: str, formats: str) -> None:
    """Weights by their fp32 masters, moments, counts and the loss scale, from the strategy before in the list."""
    for rank in got("carried", setup):
        carried = rank[formats]
        # DDP's frozen weights are fp32; held in 16 bit they have no master.
        rounded = setup == "zero1 x2" and formats != "bf16 to no"
        assert carried["weights"] == (["frozen.weight", "frozen.bias"] if rounded else [])
        assert carried["states"] == []
        first, second = carried["scale"]
        assert first == second
        assert (first or {}).get("cur_scale") == (512 if formats.startswith("fp16") else None)


@pytest.mark.parametrize("setup", [*ZERO, "pipeline x2"])
def test_masters_start_from_the_models_own_weights(got: Got, setup: str) -> None:
    """Rounded to bf16 first, as DeepSpeed does it, they would start from 1."""
    held = [rank["masters"] for rank in got("masters", setup) if rank["masters"][0]]
    assert held == [[[1 + 2**-9], [1 + 2**-10], [1.0], [1 - 2**-10]]]


@pytest.mark.parametrize("setup", ["zero2_offload x2", "zero3_offload x2"])
@pytest.mark.parametrize(
    "name, kind", [("sgd", "SGD"), ("adam", "DeepSpeedCPUAdam"), ("adamw", "DeepSpeedCPUAdam"), ("own", "AdamW")]
)
def test_an_offloaded_optimizer_is_the_one_asked_for(got: Got, setup: str, name: str, kind: str) -> None:
    """C18: Adam becomes DeepSpeed's own with the same numbers, any other one stays what it is."""
    for rank, plain in zip(got("offloaded", setup), got("offloaded", setup.replace("_offload", "")), strict=True):
        assert rank[name]["class"] == kind
        # After 10 steps at 1e-2. Measured 7e-7.
        assert rank[name]["weights"] == pytest.approx(plain[name]["weights"], abs=2e-6)


@pytest.mark.parametrize("hysteresis", [1, 2, 3])
@pytest.mark.parametrize("consecutive", [False, True])
def test_the_rule_is_deepspeeds(monkeypatch: pytest.MonkeyPatch, hysteresis: int, consecutive: bool) -> None:
    monkeypatch.setattr(deepspeeds.dist, "get_rank", lambda: 0)
    numbers = LOSS_SCALE | {
        "hysteresis": hysteresis,
        "consecutive_hysteresis": consecutive,
        "loss_scale_window": 4,
        "initial_scale_power": 5,
    }
    ours = LossScaler(numbers)
    theirs = deepspeeds.DynamicLossScaler(2**5, 4, 1, hysteresis, consecutive, raise_error_at_min_scale=False)
    chance = random.Random(0)
    for step in range(400):
        overflow = chance.random() < (0.5 if step // 40 % 2 else 0.05)
        ours.update_scale(overflow)
        theirs.update_scale(overflow)
        assert kept(ours) == kept(theirs)


def test_a_static_scale_stays() -> None:
    scaler = LossScaler(LOSS_SCALE | {"loss_scale": 128})
    scaler.update_scale(True)
    assert scaler.cur_scale == 128
