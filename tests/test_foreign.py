"""`oneloop import` against checkpoints that the installed Accelerate and DeepSpeed wrote: the same numbers, no code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from foreign_writer import Net
from safetensors.torch import load_file

import toolkit
from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.resume import resume
from toolkit.data.sampler import Sampler
from toolkit.errors import UserError
from toolkit.export import export
from toolkit.foreign import main_import

WRITER = Path(__file__).with_name("foreign_writer.py")
TAG = "global_step3"
ONE = ("accelerate-single-adamw-named", "deepspeed-zero2-sgd-alone")
TWO = (
    "accelerate-ddp-adamw",
    "accelerate-ddp-sgd-bin",
    "accelerate-zero1-sgd",
    "accelerate-zero2-adamw",
    "accelerate-zero3-sgd",
    "deepspeed-zero0-adamw",
    "deepspeed-zero1-adamw-universal",
    "deepspeed-zero1-adamw-accum",
    "deepspeed-zero2-adamw-robin-universal",
    "deepspeed-zero2-adamw-bf16-align",
    "deepspeed-zero2-adamw-list",
    "deepspeed-zero3-adamw-universal",
    "deepspeed-zero3-adamw-bf16",
    "deepspeed-pipeline-adamw",
)
# DeepSpeed's own way to a parameter is wrong under round_robin_gradients: see its test.
WHOLE = [
    kind for kind in ONE + TWO if "pipeline" not in kind and "robin" not in kind and kind != "accelerate-ddp-adamw"
]
Copy = Callable[[str], Path]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a checkpoint of each kind, and KIND.live beside it: what the run held when it saved."""
    folder = tmp_path_factory.mktemp("foreign")
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda each: launch(folder, *each), ((2, TWO), (1, ONE))))
    return folder


def launch(folder: Path, ranks: int, kinds: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(ranks)]
    done = subprocess.run(
        [*command, str(WRITER), str(folder), *kinds],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]


@pytest.fixture
def copy(made: Path, tmp_path: Path) -> Copy:
    """copy(kind) -> one to damage."""
    return lambda kind: Path(shutil.copytree(made / kind, tmp_path / "in" / kind))


def read(source: Path, out: Path) -> tuple[Checkpoint, str]:
    line = main_import(source, out)
    checkpoint = Checkpoint(out)
    assert checkpoint.faults() == []
    assert sorted(out.parent.glob(".*")) == []
    return checkpoint, line


def live(made: Path, kind: str) -> dict[str, Any]:
    held: dict[str, Any] = torch.load(made / f"{kind}.live", weights_only=True)
    return held


def differences(checkpoint: Checkpoint, held: dict[str, Any], states: bool = True) -> list[str]:
    """Names of weights and states that are not bit for bit those of the live run, or are not there on both sides."""
    weights, stated = held["weights"], held["states"] if states else {}
    wrong = sorted(set(checkpoint.names) ^ set(weights))
    wrong += [name for name in weights if not torch.equal(checkpoint.weight(name), weights[name])]
    for name in weights:
        wrong += [f"{name}/{state}" for state in set(checkpoint.states(name)) ^ set(stated.get(name, {}))]
        for state, tensor in stated.get(name, {}).items():
            if not torch.equal(checkpoint.optimizer(name, state, 0, tensor.numel()), tensor.reshape(-1)):
                wrong.append(f"{name}/{state}")
    return wrong


def refusal(source: Path, out: Path) -> str:
    """The one line; nothing may be left of what was begun."""
    before = sorted(out.parent.iterdir())
    with pytest.raises(UserError) as raised:
        main_import(source, out)
    assert sorted(out.parent.iterdir()) == before
    (line,) = raised.value.lines
    assert "\n" not in line
    return line


@pytest.mark.parametrize("kind", WHOLE)
def test_weights_and_moments_are_the_live_runs(kind: str, made: Path, tmp_path: Path) -> None:
    checkpoint, line = read(made / kind, tmp_path / "out")
    held = live(made, kind)
    assert len(held["weights"]) == (8 if "bf16" in kind or "accum" in kind else 13)
    assert len(held["states"]) == (6 if "bf16" in kind or "accum" in kind else 8)
    assert all(set(state) == {"momentum_buffer"} or len(state) == 2 for state in held["states"].values())
    assert differences(checkpoint, held) == []
    adam = "adamw" in kind
    assert {checkpoint.updates_of(name) for name in held["states"]} == {3.0 if adam else None}
    # Accelerate counts no steps of its own beside the optimizer's.
    assert checkpoint.step == checkpoint.about["updates"] == (0 if kind == "accelerate-ddp-sgd-bin" else 3)
    assert checkpoint.about["optimizer"] == (None if "list" in kind else "AdamW" if adam else "SGD")
    assert checkpoint.about["order"] is None
    assert "optimizer state of" in line or "W state of" in line or "SGD state of" in line
    assert "schedule, loss scale and random states are not taken over" in line


@pytest.mark.parametrize("kind", ["deepspeed-zero1-adamw-universal", "deepspeed-zero3-adamw-universal"])
def test_a_universal_checkpoint_is_read(kind: str, made: Path, tmp_path: Path) -> None:
    checkpoint, line = read(made / kind / f"{TAG}_universal", tmp_path / "out")
    held = live(made, kind)
    assert differences(checkpoint, held) == []
    assert {checkpoint.updates_of(name) for name in held["states"]} == {3.0}
    assert "(DeepSpeed universal, step 3): 13 tensors, AdamW state of 8 parameters" in line


def test_the_tag_may_be_named_itself(made: Path, tmp_path: Path) -> None:
    kind = "deepspeed-zero1-adamw-universal"
    checkpoint, line = read(made / kind / TAG, tmp_path / "out")
    assert differences(checkpoint, live(made, kind)) == []
    assert "(DeepSpeed ZeRO-1 or 2, ranks: 2, step 3)" in line


def test_state_that_names_no_parameter_is_not_guessed(made: Path, tmp_path: Path) -> None:
    # model.safetensors is sorted by name, and three vectors have three numbers.
    checkpoint, line = read(made / "accelerate-ddp-adamw", tmp_path / "out")
    assert differences(checkpoint, live(made, "accelerate-ddp-adamw"), states=False) == []
    assert (checkpoint.step, checkpoint.about["optimizer"]) == (3, None)
    assert "13 tensors, the weights alone, as no optimizer state in it tells which parameter it is of;" in line


def test_order_decides_only_where_it_leaves_one_answer(made: Path, tmp_path: Path, copy: Copy) -> None:
    folder = copy("accelerate-ddp-sgd-bin")
    tensors = torch.load(folder / "pytorch_model.bin", weights_only=True)
    # A frozen vector of three beside the three that train: any of the four may be the one without state.
    torch.save({"first": torch.zeros(3), **tensors}, folder / "pytorch_model.bin")
    checkpoint, line = read(folder, tmp_path / "out")
    assert [name for name in checkpoint.names if checkpoint.states(name)] == []
    assert "the weights alone" in line


def test_round_robin_gradients_keep_their_names(made: Path, tmp_path: Path) -> None:
    # DeepSpeed links parameters to the wrong places of its partitions there, so the live run cannot be asked: the same
    # training without it can, and the weights in the module.
    kind = "deepspeed-zero2-adamw-robin-universal"
    checkpoint, _ = read(made / kind, tmp_path / "out")
    assert differences(checkpoint, live(made, "deepspeed-zero1-adamw-universal")) == []
    assert differences(checkpoint, live(made, kind)) != []
    line = refusal(made / kind / f"{TAG}_universal", tmp_path / "other")
    assert "round_robin_gradients, with which DeepSpeed mixes parameters up" in line


def test_an_import_exports(made: Path, tmp_path: Path) -> None:
    kind = "accelerate-zero3-sgd"
    read(made / kind, tmp_path / "out")
    export(tmp_path / "out", tmp_path / "exported")
    exported = load_file(tmp_path / "exported" / "model.safetensors")
    weights = live(made, kind)["weights"]
    assert exported.keys() == weights.keys()
    assert all(torch.equal(exported[name], weights[name]) for name in weights)


@patch.dict(os.environ)  # the engine takes the launcher's variables away
def test_an_import_is_resumed(made: Path, tmp_path: Path) -> None:
    kind = "deepspeed-zero3-adamw-universal"
    checkpoint, _ = read(made / kind, tmp_path / "out")
    setup = toolkit.Setup.build(strategy="single", use_cpu=True, rank=0, local_rank=0, world_size=1, seed=0)
    engine = toolkit.prepare(
        Net, torch.nn.functional.cross_entropy, lambda groups: torch.optim.AdamW(groups, lr=0.1), setup
    )
    at = resume(engine, checkpoint, Sampler(10, 5, 0), total_steps=8)
    assert (engine.updates, at.step, at.epoch, at.index, at.samples) == (3, 3, 1, 1, 15)
    held = live(made, kind)
    assert all(torch.equal(tensor, held["weights"][name]) for name, tensor in engine.named_state())
    for slot in engine.slots():
        state = engine.torch_optimizer.state[slot.tensor]
        assert float(state["step"]) == 3.0
        assert torch.equal(state["exp_avg_sq"], held["states"][slot.name]["exp_avg_sq"])
    engine.close()


class Evil:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self.marker}",)


MODEL, SHARD = "mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"
BF16 = f"bf16_{SHARD}"


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("accelerate-ddp-adamw", "optimizer.bin"),
        ("accelerate-ddp-sgd-bin", "pytorch_model.bin"),
        ("accelerate-zero2-adamw", f"pytorch_model/{MODEL}"),
        ("accelerate-zero2-adamw", f"pytorch_model/{SHARD}"),
        ("deepspeed-zero1-adamw-universal", f"{TAG}_universal/zero/mix.bias/exp_avg.pt"),
    ],
)
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_pickle_that_holds_code_is_not_run(kind: str, file: str, protocol: int, copy: Copy, tmp_path: Path) -> None:
    folder, marker = copy(kind), tmp_path / "marker"
    torch.save({"module": Evil(marker)}, folder / file, pickle_protocol=protocol)
    source = folder / f"{TAG}_universal" if "universal" in file else folder
    line = refusal(source, tmp_path / "out")
    assert str(folder / file) in line
    assert "which could run code: not read" in line
    if protocol == 2:
        assert "holds an object of posix.system" in line
    assert not marker.exists()
    torch.load(folder / file, weights_only=False)
    assert marker.exists()  # it was a live one


def test_a_class_of_another_library_is_named(copy: Copy, tmp_path: Path) -> None:
    folder = copy("accelerate-zero1-sgd")
    path = folder / "pytorch_model" / SHARD
    torch.save({"optimizer_state_dict": Path("x")}, path)
    line = refusal(folder, tmp_path / "out")
    assert f"SOURCE: '{path}': holds an object of pathlib." in line


def test_random_states_are_not_opened(copy: Copy, made: Path, tmp_path: Path) -> None:
    folder, marker = copy("accelerate-single-adamw-named"), tmp_path / "marker"
    for name in ("random_states_0.pkl", "scheduler.bin"):
        torch.save(Evil(marker), folder / name)
    checkpoint, _ = read(folder, tmp_path / "out")
    assert differences(checkpoint, live(made, "accelerate-single-adamw-named")) == []
    assert not marker.exists()


def shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:1000])


def flip(path: Path) -> None:
    """One bit of the largest tensor in the file."""
    content = torch.load(path, weights_only=False)["optimizer_state_dict"]["base_optimizer_state"]["state"][0][
        "exp_avg"
    ]
    raw = bytearray(path.read_bytes())
    at = raw.index(content.numpy().tobytes())
    raw[at + 2] ^= 1
    path.write_bytes(raw)


ZERO2, ZERO3 = "accelerate-zero2-adamw", "accelerate-zero3-sgd"


@pytest.mark.parametrize(
    ("kind", "file", "damage", "told"),
    [
        (ZERO2, f"pytorch_model/{SHARD}", Path.unlink, "cannot be read (No such file or directory)"),
        (ZERO2, f"pytorch_model/{SHARD}", shorten, "is damaged, or older than torch.save's zip format (BadZipFile)"),
        (ZERO2, f"pytorch_model/{SHARD}", flip, "is damaged, or older than torch.save's zip format (BadZipFile)"),
        (ZERO2, f"pytorch_model/{MODEL}", Path.unlink, "cannot be read (No such file or directory)"),
        (ZERO3, f"pytorch_model/zero_pp_rank_1_{MODEL}", Path.unlink, "cannot be read (No such file or directory)"),
        (ZERO3, f"pytorch_model/zero_pp_rank_0_{MODEL}", Path.unlink, "cannot be read (No such file or directory)"),
        (ZERO3, f"pytorch_model/{SHARD}", Path.unlink, "cannot be read (No such file or directory)"),
        ("deepspeed-zero3-adamw-bf16", f"{TAG}/{BF16}", Path.unlink, "cannot be read (No such file or directory)"),
        ("accelerate-ddp-adamw", "optimizer.bin", Path.unlink, "cannot be read (No such file or directory)"),
        ("accelerate-ddp-adamw", "model.safetensors", shorten, "is damaged (Error while deserializing"),
        ("accelerate-ddp-sgd-bin", "pytorch_model.bin", shorten, "is damaged, or older than"),
    ],
)
def test_a_damaged_or_missing_file_is_named(
    kind: str, file: str, damage: Callable[[Path], None], told: str, copy: Copy, tmp_path: Path
) -> None:
    folder = copy(kind)
    damage(folder / file)
    line = refusal(folder, tmp_path / "out")
    assert line.startswith(f"SOURCE: '{folder / file}': {told}")


@pytest.mark.parametrize("file", ["fp32.pt", "exp_avg.pt", "step.pt"])
def test_a_universal_checkpoint_is_whole_or_refused(file: str, copy: Copy, tmp_path: Path) -> None:
    folder = copy("deepspeed-zero1-adamw-universal") / f"{TAG}_universal"
    (folder / "zero" / "up.bias" / file).unlink()
    line = refusal(folder, tmp_path / "out")
    assert line.startswith(f"SOURCE: '{folder / 'zero' / 'up.bias' / file}': cannot be read")


def test_shards_of_different_steps_or_sizes_are_refused(copy: Copy, tmp_path: Path) -> None:
    folder = copy(ZERO2)
    path = folder / "pytorch_model" / SHARD
    shard = torch.load(path, weights_only=False)
    state = shard["optimizer_state_dict"]["base_optimizer_state"]["state"]
    state[1]["step"] += 1
    torch.save(shard, path)
    assert "its shards are of different steps" in refusal(folder, tmp_path / "out")
    state[1]["step"] -= 1
    state[1]["exp_avg"] = state[1]["exp_avg"][:3]
    torch.save(shard, path)
    assert "has 1 of the 7 numbers of exp_avg of head.bias" in refusal(folder, tmp_path / "out")


def test_a_folder_that_names_no_checkpoint_tells_which_are_there(copy: Copy, tmp_path: Path) -> None:
    folder, out = copy("deepspeed-zero1-adamw-universal"), tmp_path / "out"
    there = f"name one of the tags there: {TAG}, {TAG}_universal"
    (folder / "latest").write_text("global_step9", encoding="utf-8")
    assert refusal(folder, out) == f"SOURCE: '{folder / 'latest'}': names 'global_step9', which is not there; {there}"
    line = refusal(folder / "global_step9", out)
    assert line == f"SOURCE: '{folder / 'global_step9'}': no such folder; {there}"
    for name in ("latest", "latest_universal"):
        (folder / name).unlink()
    assert "lacks the file `latest`" in refusal(folder, out)
    assert there in refusal(folder, out)


def test_a_file_is_told_from_nothing(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(UserError) as caught:
        main_import(tmp_path / "pytorch_model.bin", tmp_path / "out")
    assert str(caught.value).startswith(f"SOURCE: '{tmp_path / 'pytorch_model.bin'}': is a file; ")


def test_another_kind_of_folder_is_refused(made: Path, copy: Copy, tmp_path: Path) -> None:
    out, other = tmp_path / "out", tmp_path / "other"
    other.mkdir()
    assert "is empty: not what save_state or save_checkpoint wrote" in refusal(other, out)
    (other / "config.json").touch()
    assert "holds config.json: not what save_state or save_checkpoint wrote" in refusal(other, out)
    torch.save({}, other / MODEL)
    assert "is not laid out as DeepSpeed or Accelerate do it (KeyError('global_steps'))" in refusal(other, out)
    line = refusal(made / "deepspeed-pipeline-adamw", out)
    assert "layer_00-model_states.pt is of a pipeline, of experts or of tensor parallelism" in line
    several = copy("accelerate-ddp-adamw")
    shutil.copy(several / "optimizer.bin", several / "optimizer_1.bin")
    assert "holds several models or optimizers (optimizer_1.bin)" in refusal(several, out)


def test_out_must_be_new(made: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    read(made / ZERO2, out)
    before = {path.name: path.stat().st_mtime_ns for path in out.iterdir()}
    assert refusal(made / ZERO2, out) == f"OUT: '{out}': exists; name a new folder"
    assert {path.name: path.stat().st_mtime_ns for path in out.iterdir()} == before
    assert "is oneloop's own; give it to --resume_from_checkpoint" in refusal(out, tmp_path / "again")
