"""Each launcher with setups it may launch: what is obtained, and three losses equal to one process's.

In 16 bit they are near to those, and the formats that were obtained are the ones asked for.
"""

from __future__ import annotations

import json
from functools import partial

import pytest
from starting import ROOT, launch_matrix, side_by_side

# A sample; `python tests/launch/launch_matrix.py` runs the whole product. name -> (launcher, setup, ranks, obtained)
CNN = {
    "python": ("python", "", 1, launch_matrix.OBTAINED["single"]),
    "torchrun": ("torchrun", "", 2, launch_matrix.OBTAINED["ddp"]),
    "torchrun zero1": ("torchrun", "zero1", 2, launch_matrix.OBTAINED["zero1"]),
    "torchrun pipeline": ("torchrun", "pipeline", 2, launch_matrix.OBTAINED["pipeline"]),
    "accelerate": ("accelerate", "", 1, launch_matrix.OBTAINED["single"]),
    "accelerate single": ("accelerate", "single", 1, launch_matrix.OBTAINED["single"]),
    "accelerate ddp": ("accelerate", "ddp", 2, launch_matrix.OBTAINED["ddp"]),
    "accelerate zero2": ("accelerate", "zero2", 2, launch_matrix.OBTAINED["zero2"]),
    "accelerate zero3": ("accelerate", "zero3", 2, launch_matrix.OBTAINED["zero3"]),
    "accelerate pipeline": ("accelerate", "pipeline", 2, launch_matrix.OBTAINED["pipeline"]),
    "deepspeed": ("deepspeed", "", 2, launch_matrix.OBTAINED["zero1"]),
    "deepspeed zero2": ("deepspeed", "zero2", 2, launch_matrix.OBTAINED["zero2"]),
    "deepspeed pipeline": ("deepspeed", "pipeline", 2, launch_matrix.OBTAINED["pipeline"]),
    "deepspeed pipeline_dp": ("deepspeed", "pipeline_dp", 4, launch_matrix.OBTAINED["pipeline_dp"]),
    "accelerate zero2_offload": ("accelerate", "zero2_offload", 2, launch_matrix.OBTAINED["zero2_offload"]),
    "torchrun zero3_offload, bf16": ("torchrun", "zero3_offload", 2, launch_matrix.OBTAINED["zero3_offload"]),
    "accelerate ddp, fp16": ("accelerate", "ddp", 2, launch_matrix.OBTAINED["ddp"]),
    "deepspeed, fp16": ("deepspeed", "", 2, launch_matrix.OBTAINED["zero1"]),
    # On CPU Accelerate makes plain DDP of these two variables together; asked for and obtained is ZeRO-2, its default.
    "deepspeed and cpu in the environment": ("torchrun", "", 2, launch_matrix.OBTAINED["zero2"]),
    "torchrun ddp, with loading processes": ("torchrun", "ddp", 2, launch_matrix.OBTAINED["ddp"]),
    "a setup added by two files, bf16 weights": ("accelerate", "added", 2, launch_matrix.OBTAINED["zero2"]),
}
BERT = {
    "bert python": ("python", "", 1, launch_matrix.OBTAINED["single"]),
    "bert accelerate pipeline": ("accelerate", "pipeline", 2, launch_matrix.OBTAINED["pipeline"]),
    "bert deepspeed zero3": ("deepspeed", "zero3", 2, launch_matrix.OBTAINED["zero3"]),
}
# name -> (parameter_dtype, autocast_dtype)
FORMATS = {
    "torchrun zero3_offload, bf16": ("float32", "bfloat16"),
    "accelerate ddp, fp16": ("float32", "float16"),
    "deepspeed, fp16": ("float16", None),
    "a setup added by two files, bf16 weights": ("bfloat16", None),
}
MORE = {
    "torchrun ddp, with loading processes": ["--dataloader_num_workers", "2"],
    "deepspeed and cpu in the environment": ["--verbose"],
} | {name: ["--mixed_precision", "fp16" if "float16" in formats else "bf16"] for name, formats in FORMATS.items()}
ENVIRONMENT = {
    "deepspeed and cpu in the environment": {"ACCELERATE_USE_DEEPSPEED": "true", "ACCELERATE_USE_CPU": "true"}
}


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launched")
    jobs = {}
    for name, (launcher, setup, ranks, _) in (CNN | BERT).items():
        script = [*launch_matrix.MODELS["bert" if name.startswith("bert") else "cnn"], *MORE.get(name, [])]
        line = added(folder, script) if setup == "added" else launch_matrix.command(launcher, setup, script, ranks)
        jobs[name] = partial(launch_matrix.launch, line, folder / name.replace(" ", "-"), **ENVIRONMENT.get(name, {}))
    return side_by_side(jobs)


def added(folder, script):
    """A setup of the user's own: a YAML and a JSON, no Python."""
    own = {"zero_optimization": {"stage": 2, "overlap_comm": False}, "gradient_clipping": 1.0}
    (folder / "mine.json").write_text(json.dumps({**own, "bf16": {"enabled": "auto"}}))
    preset = (ROOT / "accelerate_configs/zero2.yaml").read_text(encoding="utf-8")
    (folder / "mine.yaml").write_text(preset.replace("ds_configs/zero2.json", str(folder / "mine.json")))
    line = launch_matrix.command("accelerate", "zero2", script)
    return [str(folder / "mine.yaml") if part == "accelerate_configs/zero2.yaml" else part for part in line]


@pytest.mark.parametrize("name", CNN | BERT)
def test_asked_for_obtained_and_equal(launched, name):
    reference = launched["bert python" if name in BERT else "python"]
    assert len(reference.losses) == 3
    # Losses within 1e-5 relative; measured 1e-7.
    asked, formats = (CNN | BERT)[name][3], FORMATS.get(name, ())
    assert launch_matrix.faults(launched[name], asked, reference.losses, *formats) == []
    assert launched[name].summary["error"] is None
    assert launched[name].summary["steps"] == 3


QUIET = ["torchrun zero1", "torchrun pipeline", "deepspeed zero2", "torchrun ddp, with loading processes"]


@pytest.mark.parametrize("name", QUIET)
def test_a_run_says_its_own_lines_and_no_more(launched, name):
    chatter = ("[20", "[INFO]", "[WARNING]", "W1", "cmd = ", "deepspeed")  # the launchers' own
    lines = [line for line in launched[name].output.splitlines() if line.strip()]
    ours = [line for line in lines if line.startswith("oneloop: ")]
    others = [line for line in lines if not line.startswith("oneloop: ")]
    assert len([line for line in ours if line.startswith("oneloop: done: accuracy ")]) == 1
    assert len([line for line in ours if ", fp32, 64 = " in line]) == 1
    if name.startswith("deepspeed"):
        others = [line for line in others if not line.startswith(chatter)]
    assert others == []


@pytest.mark.parametrize("name", CNN)
def test_fp16_starts_from_one_loss_scale_and_nothing_else_has_one(launched, name):
    assert launched[name].loss_scales == [2.0**16 if "float16" in FORMATS.get(name, ()) else None] * 3


@pytest.mark.parametrize("name", ["accelerate zero2_offload", "torchrun zero3_offload, bf16"])
def test_another_optimizer_is_said_not_swapped_in_silence(launched, name):
    (banner,) = [line for line in launched[name].output.splitlines() if ", 64 = " in line]
    assert ", adamw is DeepSpeedCPUAdam, " in banner


def test_verbose_shows_more(launched):
    told = launched["deepspeed and cpu in the environment"].output.splitlines()
    assert any("DeepSpeed" in line for line in told if not line.startswith("oneloop: "))


def test_every_launcher_of_the_matrix_is_in_the_sample():
    assert {launcher for launcher, *_ in CNN.values()} == set(launch_matrix.MATRIX) == set(launch_matrix.WITHOUT_FILE)
    shipped = {path.stem for path in (ROOT / "accelerate_configs").glob("*.yaml")}
    assert set(launch_matrix.MATRIX["accelerate"]) - {""} == shipped
    assert {setup for _, setup, *_ in CNN.values()} - {"", "added"} == shipped
