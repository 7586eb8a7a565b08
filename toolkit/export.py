"""`oneloop verify` and `oneloop export`: what a checkpoint is worth, and its weights as a folder that others load.

Neither needs a GPU, a process group, Accelerate or DeepSpeed, and nothing is unpickled.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from toolkit.checkpoint.files import ABOUT, INDEX, TensorFile, write_json
from toolkit.checkpoint.reader import REMEDY, Checkpoint, find, leftovers, newest_whole
from toolkit.errors import UserError, fault

WEIGHTS = "model.safetensors"
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHARD_BYTES = 5 * 10**9  # as save_pretrained has it
SHOWN = 3  # names, or faults, that one line shows


def verify(paths: Sequence[Path], model: Path | None = None) -> Iterator[tuple[bool, str]]:
    """For each checkpoint at the paths (a checkpoint, or an output folder with its checkpoints): whether it is whole,
    and one line. With `model`, a from_pretrained folder or another checkpoint, names and shapes must be its own too.

    Raises:
        UserError: `model` cannot be read.
    """
    for path in paths:
        found = find(path)
        if not found:
            what = "no checkpoint in it" if path.is_dir() else "is a file" if path.exists() else "no such folder"
            yield False, f"{path}: {what}"
        for folder in found:
            faults: list[str] = []
            try:
                checkpoint = Checkpoint(folder)
                faults = [_short(line, folder) for line in checkpoint.faults()] or list(_stray(checkpoint))
            except UserError as error:
                faults = [_short(line, folder) for line in error.lines]
            if not faults and model is not None:
                faults = list(_unlike(checkpoint, model))
            if faults:
                yield False, f"{folder}: {_listed(faults, '; ')}"
            else:
                size = sum(entry["size"] for entry in checkpoint.files.values()) / 1e6
                yield True, f"{folder}: whole ({len(checkpoint.names)} tensors, {size:,.1f} MB)"
        for folder in leftovers(path):
            yield True, f"{folder}: left over by a save that was killed, or being written now; no checkpoint"


def export(source: Path, out: Path, dtype: str = "fp32", shard_bytes: int = SHARD_BYTES) -> str:
    """Write the weights of a checkpoint, or of an output folder's newest whole one, and return a line that says what.

    A transformers model becomes a folder for `from_pretrained`, with its tokenizer and label names; any other one
    safetensors and an `oneloop.json` with class, arguments, label names and preprocessing. Tensors go by the model's
    own names, tied ones once, one in memory at a time. In fp32 a weight that was trained in 16 bit is its fp32 master.

    Args:
        dtype: of floating-point tensors: fp32 (float64 stays), bf16 or fp16; integers stay as they are.
        shard_bytes: a file holds at most this much, unless it is a single tensor.

    Raises:
        UserError: no whole checkpoint, `out` exists, a tensor of size zero or beyond fp16, a disk that is full.
    """
    if os.path.lexists(out):
        raise UserError(fault("OUT", str(out), "exists", "name a new folder"))
    checkpoint = newest_whole(source)
    faults = list(_stray(checkpoint))
    if faults:
        raise UserError(*(fault("CHECKPOINT", str(checkpoint.folder), line, REMEDY) for line in faults))
    temporary = out.absolute().with_name(f".{out.absolute().name}.{os.getpid()}.tmp")
    try:
        temporary.mkdir(parents=True)
        size, files = _write_weights(checkpoint, temporary, DTYPES[dtype], shard_bytes)
        _write_rest(checkpoint, temporary, DTYPES[dtype])
        temporary.rename(out)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        reason = f"cannot be written: {error.strerror or error}"
        raise UserError(fault("OUT", str(out), reason, "make room, or name another folder")) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    newest = find(source)[-1]
    passed = f" ({newest.name} is not whole)" if newest != checkpoint.folder else ""
    held = f"{len(checkpoint.names)} tensors, {dtype}, {size / 1e6:,.1f} MB" + (f" in {files} files" * (files > 1))
    return f"{out}: the weights of {checkpoint.folder}{passed}: {held}"


def _write_weights(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype, shard_bytes: int) -> tuple[int, int]:
    """Bytes of the tensors, and number of files."""
    dtypes = {name: _exported_dtype(checkpoint.weight(name), dtype) for name in checkpoint.names}
    sizes = {name: math.prod(checkpoint.shape(name)) * dtypes[name].itemsize for name in dtypes}
    shards: list[list[str]] = [[]]
    room = shard_bytes
    for name, size in sizes.items():
        if size > room and shards[-1]:
            shards.append([])
            room = shard_bytes
        shards[-1].append(name)
        room -= size
    weight_map = {}
    for number, names in enumerate(shards, 1):
        file_name = WEIGHTS if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        file = TensorFile(folder / file_name, [(name, dtypes[name], checkpoint.shape(name)) for name in names])
        for name in file.keys:
            file.write(name, _exported(checkpoint, name, dtypes[name]))
        file.close()
        weight_map.update(dict.fromkeys(names, file_name))
    total = sum(sizes.values())
    if len(shards) > 1:
        write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": weight_map})
    return total, len(shards)


def _exported_dtype(tensor: Tensor, dtype: torch.dtype) -> torch.dtype:
    if not tensor.is_floating_point():
        return tensor.dtype
    return torch.promote_types(tensor.dtype, dtype) if dtype == torch.float32 else dtype


def _exported(checkpoint: Checkpoint, name: str, dtype: torch.dtype) -> Tensor:
    tensor = checkpoint.weight(name)
    tensor = checkpoint.value(name) if tensor.dtype != dtype else tensor
    cast = tensor.to(dtype)
    if cast.is_floating_point() and not cast.isfinite().eq(tensor.isfinite()).all():
        reason = f"{name} has {tensor.abs().max():.3g}, beyond the {torch.finfo(dtype).max:.3g} of the dtype"
        raise UserError(fault("--dtype", str(dtype).removeprefix("torch."), reason, "use fp32 or bf16"))
    return cast


def _write_rest(checkpoint: Checkpoint, folder: Path, dtype: torch.dtype) -> None:
    """oneloop.json, and for a transformers model its config and tokenizer."""
    kept = ("format", "step", "epoch", "model", "data", "versions")
    write_json(folder / ABOUT, {key: checkpoint.about[key] for key in kept if key in checkpoint.about})
    for name in checkpoint.files:
        if not name.endswith(".safetensors") and name not in (ABOUT, INDEX):
            shutil.copyfile(checkpoint.folder / name, folder / name)
    if not (folder / "config.json").is_file():
        return
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = str(dtype).removeprefix("torch.")  # from_pretrained loads in it
    if names := _labels(checkpoint):
        config["id2label"] = {str(number): name for number, name in enumerate(names)}
        config["label2id"] = {name: number for number, name in enumerate(names)}
    write_json(folder / "config.json", config)


def _labels(checkpoint: Checkpoint) -> list[str]:
    return list((checkpoint.about.get("data") or {}).get("label_names") or ())


def _stray(checkpoint: Checkpoint) -> Iterator[str]:
    """What the weights' files hold that the index does not know, what it knows and they do not, and empty tensors."""
    held: dict[str, tuple[int, ...]] = {}
    for name in checkpoint.files:
        if name.startswith("model") and name.endswith(".safetensors"):
            held |= shapes_in(checkpoint.folder / name)
    for name in checkpoint.names:
        if name not in held:
            yield f"{name} is in no file of the manifest"
    for name, shape in held.items():
        if name not in checkpoint.names:
            yield f"{name} is a stray tensor: {INDEX} lacks it"
        elif math.prod(shape) == 0:
            yield f"{name} has size zero: shape {shape}"


def _unlike(checkpoint: Checkpoint, model: Path) -> Iterator[str]:
    expected = _expected(model, len(_labels(checkpoint)))
    lacks = [name for name in expected if name not in checkpoint.names]
    more = [name for name in checkpoint.names if name not in expected]
    if lacks or more:
        parts = [f"{verb} {_listed(names)}" for verb, names in (("lacks", lacks), ("has", more)) if names]
        yield f"of another model than {model}: {' and '.join(parts)}"
        return
    others = [
        f"{name} {list(checkpoint.shape(name))}, there {list(shape)}"
        for name, shape in expected.items()
        if checkpoint.shape(name) != shape
    ]
    if others:
        yield f"of other shapes than {model}: {_listed(others)}"


def _expected(model: Path, labels: int) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a checkpoint, an export, or the classifier that a transformers folder gives."""
    if find(model):
        other = newest_whole(model)
        return {name: other.shape(name) for name in other.names}
    if (model / ABOUT).is_file():
        return {name: shape for file in sorted(model.glob("*.safetensors")) for name, shape in shapes_in(file).items()}
    if not (model / "config.json").is_file():
        raise UserError(fault("--model", str(model), "no config.json and no checkpoint there", "name a model's folder"))
    from transformers import AutoConfig

    from toolkit.trained import classifier_of

    try:
        config = AutoConfig.from_pretrained(model, local_files_only=True, trust_remote_code=False)
        kind, loads = classifier_of(config)
        # Training gives the labels at hand to a model without a classifier, and to any of images.
        bare = not any("SequenceClassification" in name for name in config.architectures or ())
        if labels and (kind == "image" or bare):
            config.num_labels = labels
        with torch.device("meta"):
            built = loads.from_config(config)
    except (OSError, ValueError, KeyError, ImportError) as error:
        reason = f"cannot be loaded: {' '.join(str(error).split())[:300]}"
        raise UserError(fault("--model", str(model), reason, "name a classifier's folder")) from error
    tensors = built.state_dict(keep_vars=True)
    first = {id(tensor): name for name, tensor in reversed(tensors.items())}  # of tied ones
    return {name: tuple(tensor.shape) for name, tensor in tensors.items() if first[id(tensor)] == name}


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """Shape of each tensor of a safetensors file, without reading any.

    Raises:
        UserError: it cannot be read.
    """
    try:
        with safe_open(str(file), framework="pt") as opened:
            return {name: tuple(opened.get_slice(name).get_shape()) for name in opened.keys()}
    except (SafetensorError, OSError) as error:
        raise UserError(fault("weights", str(file), f"cannot be read: {error}", "write the file again")) from error


def _short(line: str, folder: Path) -> str:
    """A fault without what stands in the line already, and without the remedy, which is this command."""
    line = line.removesuffix(f"; {REMEDY}").removeprefix(f"checkpoint: {str(folder)!r}: ")
    return line.replace(f"{folder}{os.sep}", "")


def _listed(items: Sequence[str], separator: str = ", ") -> str:
    return separator.join(items[:SHOWN]) + (f", ... ({len(items)} in all)" if len(items) > SHOWN else "")
