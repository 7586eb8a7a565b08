"""The files of a checkpoint: what is written is what is read, by this toolkit and by safetensors' own reader."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch
from fitting import Run
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from toolkit.checkpoint import Checkpoint, find, newest_whole
from toolkit.checkpoint.files import DTYPES, INDEX, MANIFEST, TensorFile, ordered, record, write_json
from toolkit.checkpoint.save import write_alone
from toolkit.errors import UserError

SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (3, 5), (2, 1, 7))


def tensor_of(dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(len(shape))) * 3
    return (values > 0) if dtype == torch.bool else values.abs().to(dtype)


def write(path: Path, tensors: dict[str, Tensor]) -> dict[str, object]:
    file = TensorFile(path, [(name, tensor.dtype, tensor.shape) for name, tensor in tensors.items()])
    for name in file.keys:
        file.write(name, tensors[name])
    return file.close()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_and_shape_is_read_back_by_safetensors(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = {f"t{shape}": tensor_of(dtype, shape) for shape in SHAPES}
    write(tmp_path / "x.safetensors", tensors)
    read = load_file(tmp_path / "x.safetensors")
    assert read.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert (read[name].dtype, read[name].shape) == (dtype, tensor.shape)
        assert torch.equal(read[name], tensor)


def test_all_dtypes_in_one_file_lie_aligned_the_widest_first(tmp_path: Path) -> None:
    # Narrow ones first, so that an order as given would put 8-byte numbers at odd places.
    tensors = {f"{DTYPES[dtype]}{n}": tensor_of(dtype, (3,)) for dtype in reversed(DTYPES) for n in (0, 1)}
    write(tmp_path / "x.safetensors", tensors)
    raw = (tmp_path / "x.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    assert header.pop("__metadata__") == {"format": "pt"}
    assert (8 + length) % 8 == 0
    assert list(header) == ordered({name: tensor.dtype for name, tensor in tensors.items()})
    assert [name[:-1] for name in list(header)[::2]] == list(DTYPES.values())
    at = 0
    for name, told in header.items():
        assert told["data_offsets"] == [at, at + tensors[name].nbytes]
        assert (8 + length + at) % tensors[name].element_size() == 0
        at += tensors[name].nbytes
    assert len(raw) == 8 + length + at
    read = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_views_are_written_as_they_look(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {"turned": base.T, "part": base[1:3, ::2], "trained": torch.nn.Parameter(base)}
    write(tmp_path / "x.safetensors", tensors)
    read = load_file(tmp_path / "x.safetensors")
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_a_file_without_a_tensor_is_a_file(tmp_path: Path) -> None:
    told = write(tmp_path / "x.safetensors", {})
    assert load_file(tmp_path / "x.safetensors") == {}
    with safe_open(str(tmp_path / "x.safetensors"), framework="pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert told == record(tmp_path / "x.safetensors")


def test_size_and_hash_are_the_files_own(tmp_path: Path) -> None:
    told = write(tmp_path / "x.safetensors", {"a": torch.randn(1000), "b": torch.ones((), dtype=torch.bool)})
    raw = (tmp_path / "x.safetensors").read_bytes()
    assert told == {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    assert told == record(tmp_path / "x.safetensors")


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 2)])
def test_a_tensor_of_size_zero_is_refused(tmp_path: Path, shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="w has shape .* nothing of size zero"):
        TensorFile(tmp_path / "x.safetensors", [("w", torch.float32, shape)])
    assert list(tmp_path.iterdir()) == []


def test_a_dtype_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="w: safetensors has no name for torch.complex64"):
        TensorFile(tmp_path / "x.safetensors", [("w", torch.complex64, (2,))])


def test_what_was_told_must_be_written_in_order_and_whole(tmp_path: Path) -> None:
    layout = [("a", torch.float32, (2,)), ("b", torch.float32, (2,))]
    file = TensorFile(tmp_path / "order.safetensors", layout)
    with pytest.raises(ValueError, match="b is written where a is due"):
        file.write("b", torch.zeros(2))
    file = TensorFile(tmp_path / "half.safetensors", layout)
    file.write("a", torch.zeros(2))
    with pytest.raises(RuntimeError, match="bytes written, .* announced"):
        file.close()
    file = TensorFile(tmp_path / "other.safetensors", layout)
    file.write("a", torch.zeros(3))
    file.write("b", torch.zeros(2))
    with pytest.raises(RuntimeError, match="bytes written, .* announced"):
        file.close()


def test_no_file_is_written_over(tmp_path: Path) -> None:
    (tmp_path / "x.safetensors").write_text("mine")
    file = TensorFile(tmp_path / "x.safetensors", [("a", torch.float32, (1,))])
    file.write("a", torch.zeros(1))
    with pytest.raises(FileExistsError):
        file.close()
    assert (tmp_path / "x.safetensors").read_text() == "mine"


# ---- the reader ------------------------------------------------------------------------------------------------


def split_up(folder: Path) -> dict[str, Tensor]:
    """A checkpoint as three ranks write it: weights and pieces of the optimizer's state over several files."""
    folder.mkdir(parents=True)
    weights = {"w": torch.randn(5, 4), "bias/odd": torch.randn(3), "count": torch.tensor(4)}
    flat, bias = torch.arange(20.0), torch.tensor([0.5, 1.5, 2.5])
    files = {
        "model-00001-of-00003.safetensors": {"w": weights["w"]},
        "model-00002-of-00003.safetensors": {},
        "model-00003-of-00003.safetensors": {"bias/odd": weights["bias/odd"], "count": weights["count"]},
        # Not in the order of the elements: which rank holds which part is the strategy's affair.
        "optimizer-00001-of-00003.safetensors": {"w/exp_avg/12": flat[12:], "bias/odd/exp_avg/0": bias},
        "optimizer-00002-of-00003.safetensors": {"w/exp_avg/0": flat[:7], "w/step": torch.tensor(9.0)},
        "optimizer-00003-of-00003.safetensors": {"w/exp_avg/7": flat[7:12]},
    }
    entries = {name: write(folder / name, tensors) for name, tensors in files.items()}
    where = {key: name for name, tensors in files.items() for key in tensors if name.startswith("model")}
    write_json(folder / INDEX, {"weight_map": {name: where[name] for name in weights}})
    shapes = {name: {"shape": list(t.shape), "trained": t.dim() > 0} for name, t in weights.items()}
    write_json(folder / "oneloop.json", {"format": 1, "step": 9, "parameters": shapes})
    entries |= {name: record(folder / name) for name in (INDEX, "oneloop.json")}
    write_json(folder / MANIFEST, {"format": 1, "files": entries})
    return weights


def test_pieces_are_read_across_the_borders_of_files(tmp_path: Path) -> None:
    weights = split_up(tmp_path / "step-000009")
    checkpoint = Checkpoint(tmp_path / "step-000009")
    assert checkpoint.faults() == []
    assert checkpoint.names == ["w", "bias/odd", "count"]
    assert [checkpoint.shape(name) for name in checkpoint.names] == [(5, 4), (3,), ()]
    assert all(torch.equal(checkpoint.weight(name), weights[name]) for name in weights)
    assert checkpoint.weight("count").dtype == torch.int64
    for start in range(20):
        for stop in range(start + 1, 21):
            assert checkpoint.optimizer("w", "exp_avg", start, stop).tolist() == list(map(float, range(start, stop)))
    assert checkpoint.optimizer("bias/odd", "exp_avg", 1, 3).tolist() == [1.5, 2.5]
    assert [checkpoint.states(name) for name in checkpoint.names] == [["exp_avg"], ["exp_avg"], []]
    assert [checkpoint.updates_of(name) for name in checkpoint.names] == [9.0, None, None]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_state_comes_back_in_the_dtype_it_had(tmp_path: Path, dtype: torch.dtype) -> None:
    state = torch.tensor([1 / 3, 2 / 3, 1e-9], dtype=torch.float64).to(dtype)
    optimizer = [("a/exp_avg/0", state[:1]), ("a/exp_avg/1", state[1:])]
    write_alone(tmp_path / "step-000001", [("a", torch.zeros(3, dtype=dtype))], optimizer, {"step": 1})
    read = Checkpoint(tmp_path / "step-000001").optimizer("a", "exp_avg", 0, 3)
    assert read.dtype == dtype and torch.equal(read, state)


def test_the_shares_of_ranks_find_each_damage_once(tmp_path: Path) -> None:
    split_up(tmp_path / "step-000009")
    for name in ("model-00001-of-00003.safetensors", "optimizer-00003-of-00003.safetensors"):
        path = tmp_path / "step-000009" / name
        path.write_bytes(path.read_bytes()[:-1])
    checkpoint = Checkpoint(tmp_path / "step-000009")
    for ranks in (1, 2, 3, 20):
        lines = [line for rank in range(ranks) for line in checkpoint.damage(rank, ranks)]
        assert [Path(line.split("'")[0].strip(": ")).name for line in sorted(lines)] == [
            "model-00001-of-00003.safetensors",
            "optimizer-00003-of-00003.safetensors",
        ]


@pytest.mark.parametrize("kind", ["model", "optimizer"])
def test_a_bit_that_makes_two_names_one_is_found(tmp_path: Path, kind: str) -> None:
    """1 and 3 differ in one bit: of a key that stands twice json keeps the last, and a file would be forgotten."""
    folder = tmp_path / "step-000009"
    split_up(folder)
    text = (folder / MANIFEST).read_text()
    (folder / MANIFEST).write_text(text.replace(f"{kind}-00001-of", f"{kind}-00003-of"))
    with pytest.raises(UserError) as caught:
        Checkpoint(folder)
    (line,) = caught.value.lines
    assert f"{MANIFEST} is damaged or missing (a key stands twice); " in line


def test_a_checkpoint_written_alone_is_whole(tmp_path: Path) -> None:
    weights = {"a": torch.randn(3, 2).bfloat16(), "n": torch.tensor(3)}
    state = {"a/exp_avg/0": torch.randn(6), "a/step": torch.tensor(2.0), "a/master/0": torch.randn(6)}
    write_alone(tmp_path / "step-000002", weights.items(), state.items(), {"step": 2})
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    checkpoint = newest_whole(tmp_path)
    assert checkpoint.step == 2
    assert torch.equal(checkpoint.weight("a"), weights["a"]) and torch.equal(checkpoint.weight("n"), weights["n"])
    assert checkpoint.states("a") == ["exp_avg"]
    assert torch.equal(checkpoint.value("a").flatten(), state["a/master/0"])
    assert torch.equal(checkpoint.optimizer("a", "master", 0, 6), state["a/master/0"])
    assert checkpoint.about["parameters"]["a"] == {"shape": [3, 2], "dtype": "bfloat16", "trained": True}


def test_a_failed_write_alone_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing of size zero"):
        write_alone(tmp_path / "step-000002", [("a", torch.zeros(0))], [], {"step": 2})
    assert list(tmp_path.iterdir()) == []


def test_checkpoints_are_sorted_as_numbers(tmp_path: Path) -> None:
    for name in ("step-1000000", "step-999999", "step-000002", "step-10", ".step-000011.tmp", "step-x", "best"):
        (tmp_path / "checkpoints" / name).mkdir(parents=True)
    (tmp_path / "checkpoints" / "aside-1-step-000012").mkdir()
    expected = ["step-000002", "step-10", "step-999999", "step-1000000"]
    assert [path.name for path in find(tmp_path)] == expected
    assert [path.name for path in find(tmp_path / "checkpoints")] == expected


def test_find_takes_a_checkpoint_for_itself_and_nothing_for_none(tmp_path: Path, whole: Run) -> None:
    assert find(whole.checkpoint(8)) == [whole.checkpoint(8)]
    assert find(whole.folder) == [whole.checkpoint(step) for step in (4, 8, 12, 16)]
    assert find(tmp_path) == find(tmp_path / "nowhere") == []
    (tmp_path / "step-000003").write_text("a file")
    assert find(tmp_path / "step-000003") == find(tmp_path) == []


def test_a_run_whose_folder_is_named_like_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "step-7" / "checkpoints" / "step-000002").mkdir(parents=True)
    assert [path.name for path in find(tmp_path / "step-7")] == ["step-000002"]


def test_the_manifest_has_every_other_file(whole: Run) -> None:
    folder = whole.checkpoint(8)
    told = json.loads((folder / MANIFEST).read_text())
    assert told["format"] == 1
    assert told["files"] == {path.name: record(path) for path in folder.iterdir() if path.name != MANIFEST}
    assert sorted(told["files"]) == [
        "model-00001-of-00001.safetensors",
        "model.safetensors.index.json",
        "oneloop.json",
        "optimizer-00001-of-00001.safetensors",
        "random-00001-of-00001.safetensors",
    ]
    index = json.loads((folder / INDEX).read_text())
    held = load_file(folder / "model-00001-of-00001.safetensors")
    assert index["weight_map"] == dict.fromkeys(
        ["0.weight", "0.bias", "3.weight", "3.bias"], "model-00001-of-00001.safetensors"
    )
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in held.values()) == 4 * (4 * 8 + 8 + 16 + 2)
