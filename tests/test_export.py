"""What `oneloop verify` finds, and that an export is the model it came from, tensor by tensor."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import written
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from written import LABELS, SHARD

from toolkit.checkpoint.files import ABOUT, INDEX, MANIFEST
from toolkit.errors import UserError
from toolkit.export import export, verify
from toolkit.models.cnn import CNN


class Tied(nn.Module):
    """An embedding tied to the head, a frozen layer and BatchNorm: 11 keys, one of them twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 4)
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 7)
        self.head.weight = self.embedding.weight
        self.register_buffer("mask", torch.tensor([True, False]))


def loaded(folder: Path) -> dict[str, Tensor]:
    return {name: tensor for file in sorted(folder.glob("*.safetensors")) for name, tensor in load_file(file).items()}


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert found[name].dtype == tensor.dtype, name
        assert torch.equal(found[name], tensor), name


def test_the_export_of_a_cnn_builds_the_model_again(tmp_path: Path) -> None:
    model = written.cnn(activation="gelu", pooling="avg", dropout=0.5)
    line = export(written.write(tmp_path / "step-000003", model), tmp_path / "out")
    assert line == f"{tmp_path / 'out'}: the weights of {tmp_path / 'step-000003'}: 16 tensors, fp32, 0.0 MB"
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["model.safetensors", "oneloop.json"]
    about = json.loads((tmp_path / "out" / ABOUT).read_text())
    assert (about["step"], about["data"]["label_names"]) == (3, LABELS)
    assert about["data"]["image_size"] == [8, 6]
    again = CNN(**about["model"]["arguments"]).eval()
    again.load_state_dict(load_file(tmp_path / "out" / "model.safetensors"), strict=True)
    assert_same(again.state_dict(), model.state_dict())
    assert int(again.state_dict()["stem.norm.num_batches_tracked"]) == 3
    images = torch.randint(0, 256, (5, 1, 8, 6), dtype=torch.uint8)
    assert torch.equal(again(images), model(images))


@pytest.mark.parametrize("shard_bytes", [10**9, 10_000, 1])
def test_from_pretrained_loads_the_export_of_a_bert(tmp_path: Path, shard_bytes: int) -> None:
    model, out = written.bert(), tmp_path / "new" / "out"
    export(written.write(tmp_path / "step-000003", model), out, shard_bytes=shard_bytes)
    again, report = AutoModelForSequenceClassification.from_pretrained(out, output_loading_info=True)
    assert report["missing_keys"] == report["unexpected_keys"] == set()
    assert_same(again.state_dict(), model.state_dict())
    assert again.config.id2label == dict(enumerate(LABELS))
    assert again.config.label2id == {"bad": 0, "fair": 1, "good": 2}
    assert AutoTokenizer.from_pretrained(out)("a film b")["input_ids"] == written.tokenizer()("a film b")["input_ids"]
    assert json.loads((out / ABOUT).read_text())["data"]["max_length"] == 10
    count = len(model.state_dict())
    files = len(list(out.glob("model*.safetensors")))
    assert files == {10**9: 1, 10_000: files, 1: count}[shard_bytes] and (shard_bytes != 10_000 or 2 < files < count)
    if files > 1:
        index = json.loads((out / INDEX).read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in model.state_dict().values())
        sizes = [sum(tensor.nbytes for tensor in load_file(path).values()) for path in out.glob("model-*")]
        largest = max(tensor.nbytes for tensor in model.state_dict().values())
        assert max(sizes) <= max(shard_bytes, largest)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_a_dtype_casts_what_is_floating_point_alone(tmp_path: Path, dtype: str) -> None:
    wanted = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    for number, model in enumerate((written.cnn(), written.bert(), Tied())):
        out = tmp_path / f"out-{number}"
        export(written.write(tmp_path / f"step-00000{number}", model), out, dtype)
        live = written.weights_of(model)
        assert_same(loaded(out), {k: v.to(wanted) if v.is_floating_point() else v for k, v in live.items()})
    assert {t.dtype for t in loaded(tmp_path / "out-2").values()} == {wanted, torch.int64, torch.bool}
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path / "out-1").dtype == wanted


def test_weights_trained_in_16_bit_leave_as_their_masters(tmp_path: Path) -> None:
    masters = written.cnn().state_dict()
    model = written.cnn().to(torch.bfloat16)
    # As two ranks write them: each a piece of the flattened parameter.
    pieces = [
        (f"{name}/master/{start}", piece)
        for name, _ in model.named_parameters()
        for start, piece in ((0, masters[name].flatten()[:2].clone()), (2, masters[name].flatten()[2:].clone()))
    ]
    written.write(tmp_path / "step-000003", model, optimizer=pieces)
    export(tmp_path / "step-000003", tmp_path / "fp32")
    buffers = {name: tensor.float() if "running" in name else tensor for name, tensor in model.named_buffers()}
    assert_same(loaded(tmp_path / "fp32"), masters | buffers)
    assert not torch.equal(masters["head.linear.weight"], model.head.linear.weight.float())
    export(tmp_path / "step-000003", tmp_path / "bf16", "bf16")
    assert_same(loaded(tmp_path / "bf16"), model.state_dict())


def test_tied_once_and_frozen_ones_and_buffers_included(tmp_path: Path) -> None:
    model = Tied()
    export(written.write(tmp_path / "step-000003", model), tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    live = model.state_dict()
    assert live.keys() - found.keys() == {"head.weight"}
    assert_same(found, {name: tensor for name, tensor in live.items() if name != "head.weight"})
    again = Tied()
    assert again.load_state_dict(found, strict=False).missing_keys == ["head.weight"]
    assert_same(again.state_dict(), live)


def test_float64_is_kept(tmp_path: Path) -> None:
    export(written.write(tmp_path / "step-000003", nn.Linear(2, 2).double(), data={"kind": None}), tmp_path / "out")
    assert {tensor.dtype for tensor in loaded(tmp_path / "out").values()} == {torch.float64}


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-5] ^= 1
    file.write_bytes(content)


def stray(folder: Path) -> None:
    save_file(load_file(folder / SHARD) | {"more.weight": torch.ones(2)}, folder / SHARD)
    written.seal(folder)


def size_zero(folder: Path) -> None:
    save_file(load_file(folder / SHARD) | {"head.linear.bias": torch.ones(0)}, folder / SHARD)
    parameters = json.loads((folder / ABOUT).read_text())["parameters"]
    written.edit(folder, ABOUT, parameters=parameters | {"head.linear.bias": {"shape": [0], "dtype": "float32"}})


def lacking(folder: Path) -> None:
    save_file({"head.linear.bias": torch.ones(3)}, folder / SHARD)
    written.seal(folder)


def other_shape(folder: Path) -> None:
    save_file(load_file(folder / SHARD) | {"head.linear.bias": torch.ones(4)}, folder / SHARD)
    written.seal(folder)


def empty(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


# What is done to a checkpoint of the CNN, and what its line says.
DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "truncated": (lambda f: (f / SHARD).write_bytes((f / SHARD).read_bytes()[:1000]), f"{SHARD}: '1000 bytes': "),
    "a flipped bit": (lambda f: flip(f / SHARD), f"{SHARD}: "),
    "a flipped bit in JSON": (lambda f: flip(f / ABOUT), f"{ABOUT}"),
    "a missing shard": (lambda f: (f / SHARD).unlink(), f"{SHARD}: 'missing': {MANIFEST} has it"),
    "a missing manifest": (lambda f: (f / MANIFEST).unlink(), f"not a whole checkpoint: no {MANIFEST} in it"),
    "a manifest that is no JSON": (lambda f: (f / MANIFEST).write_text("{"), f"{MANIFEST} is damaged"),
    "a missing oneloop.json": (lambda f: (f / ABOUT).unlink(), f"{ABOUT} is damaged or missing"),
    "an empty folder": (empty, "not a whole checkpoint: an empty folder"),
    "a stray tensor": (stray, f"more.weight is a stray tensor: {INDEX} lacks it"),
    "a tensor of size zero": (size_zero, "head.linear.bias has size zero: shape (0,)"),
    "a tensor of another shape": (other_shape, "head.linear.bias has shape (4,), oneloop.json says (3,)"),
    "tensors lacking": (lacking, "File does not contain tensor stem.conv.weight"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_is_one_line_and_is_not_exported(tmp_path: Path, damage: str) -> None:
    run = tmp_path / "run"
    good = written.write(run / "checkpoints" / "step-000003", written.cnn())
    bad = written.write(run / "checkpoints" / "step-000012", written.cnn())
    break_it, told = DAMAGES[damage]
    break_it(bad)
    size = sum(file.stat().st_size for file in good.iterdir() if file.name != MANIFEST) / 1e6
    whole, line = list(verify([run]))
    assert whole == (True, f"{good}: whole (16 tensors, {size:,.1f} MB)")
    assert not line[0]
    assert line[1].startswith(f"{bad}: ") and told in line[1] and "\n" not in line[1]
    assert list(verify([bad])) == [line]
    with pytest.raises(UserError):
        export(bad, tmp_path / "out")
    if damage in ("a stray tensor", "a tensor of size zero"):  # each file is as written, and resume can do with it
        with pytest.raises(UserError, match=f"^CHECKPOINT: '{bad}'"):
            export(run, tmp_path / "out")
        return
    # An output folder gives its newest whole one, and says so.
    assert f"the weights of {good} (step-000012 is not whole): " in export(run, tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "run"]


def test_what_is_no_checkpoint_and_what_a_kill_left(tmp_path: Path) -> None:
    run = tmp_path / "run"
    written.write(run / "checkpoints" / "step-000003", written.cnn())
    (run / "checkpoints" / ".step-000004.tmp").mkdir()
    (tmp_path / "bare").mkdir()
    found = list(verify([run, tmp_path / "bare", tmp_path / "nowhere"]))
    assert [whole for whole, _ in found] == [True, True, False, False]
    assert found[1][1].startswith(f"{run / 'checkpoints' / '.step-000004.tmp'}: left over by a save that was killed")
    assert [line for _, line in found[2:]] == [
        f"{tmp_path / 'bare'}: no checkpoint in it",
        f"{tmp_path / 'nowhere'}: no such folder",
    ]


def test_another_model_and_other_shapes_are_found(tmp_path: Path) -> None:
    bert = written.write(tmp_path / "step-000001", written.bert())
    cnn = written.write(tmp_path / "step-000002", written.cnn())
    wide = written.write(tmp_path / "step-000003", CNN(1, (8, 6), 3, norm="batch", width=0.3))
    export(cnn, tmp_path / "export")
    torch.manual_seed(0)
    written.random_bert(2).save_pretrained(tmp_path / "two")
    base = written.random_bert(2, vocab_size=len(written.WORDS), max_position_embeddings=16).bert
    base.save_pretrained(tmp_path / "base")

    def line(checkpoint: Path, model: Path) -> str:
        [(whole, text)] = verify([checkpoint], model)
        assert whole == ("whole" in text)
        return text.removeprefix(f"{checkpoint}: ").partition(" (16 tensors")[0].partition(" (41 tensors")[0]

    assert line(cnn, cnn) == line(cnn, tmp_path / "export") == line(bert, bert) == "whole"
    assert line(bert, tmp_path / "base") == "whole"  # without a classifier: training gives it one for the labels
    assert line(wide, cnn) == (
        f"of other shapes than {cnn}: stem.conv.weight [10, 1, 3, 3], there [6, 1, 3, 3], "
        "stem.norm.weight [10], there [6], stem.norm.bias [10], there [6], ... (13 in all)"
    )
    assert line(bert, tmp_path / "two").startswith(
        f"of other shapes than {tmp_path / 'two'}: bert.embeddings.word_embeddings.weight [17, 32], there [100, 32]"
    )
    assert "classifier.weight [3, 32], there [2, 32]" in line(bert, tmp_path / "two")
    told = line(bert, cnn)
    assert told.startswith(f"of another model than {cnn}: lacks stem.conv.weight, ")
    assert "(16 in all) and has bert.embeddings" in told
    with pytest.raises(UserError, match="--model: .*no config.json and no checkpoint there"):
        list(verify([cnn], tmp_path / "nowhere"))


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    model = CNN(1, 8, 3, width=0.5)
    with torch.no_grad():
        model.head.linear.bias[1] = 70000.0
    source = written.write(tmp_path / "step-000003", model)
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("nowhere")
    for out in ("there", "link"):
        with pytest.raises(UserError, match="OUT: .*: exists; name a new folder"):
            export(source, tmp_path / out)
    with pytest.raises(UserError, match="head.linear.bias has 7e[+]04, beyond the 6.55e[+]04 of the dtype"):
        export(source, tmp_path / "out", "fp16")
    with pytest.raises(UserError, match="there is none"):
        export(tmp_path / "there", tmp_path / "out")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, hard))  # as a full disk: a write fails half way
    try:
        with pytest.raises(UserError, match="OUT: .*: cannot be written: File too large"):
            export(source, tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "step-000003", "there"]


def test_an_export_needs_neither_accelerate_nor_deepspeed(tmp_path: Path) -> None:
    source = written.write(tmp_path / "step-000003", written.bert())
    program = (
        "import sys; from toolkit import export; from pathlib import Path\n"
        "export.export(Path(sys.argv[1]), Path(sys.argv[2])); print(*export.verify([Path(sys.argv[1])]))\n"
        "print({'accelerate', 'deepspeed', 'transformers'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, source, tmp_path / "out"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines()[-1] == "set()"
    assert "whole (41 tensors" in done.stdout
