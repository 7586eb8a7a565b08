"""`oneloop import`: makes a checkpoint of one that Accelerate or DeepSpeed wrote.

Neither library is imported, and no object of theirs is made. Layouts as accelerate 1.15 and deepspeed 0.19 write them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from toolkit.checkpoint.files import MANIFEST
from toolkit.checkpoint.save import write_alone
from toolkit.errors import UserError, fault
from toolkit.foreign.files import COPY, Found, Shape, refuse
from toolkit.foreign.shards import STATES, deepspeed
from toolkit.foreign.whole import accelerate

LEFT_OUT = "position in the data, schedule, loss scale and random states are not taken over"


def main_import(source: Path, out: Path) -> str:
    """Write checkpoint `out` from what `save_state` or `save_checkpoint` wrote, and return a line that says what it is.

    Weights are fp32, the masters where training was in 16 bit; tied ones stand once, frozen ones and buffers too.
    Optimizer state is taken where names, or shapes and the model's order, leave one answer to whose it is.

    Raises:
        UserError: `out` exists; `source` is another kind of folder, is not whole, or holds objects. One line.
    """
    if os.path.lexists(out):
        raise UserError(fault("OUT", str(out), "exists", "name a new folder"))
    try:
        found = _read(source)
        weights = {name: _whole(source, name, *parts) for name, parts in found.weights.items()}
        optimizer = dict(_entries(source, found))
    except OSError as error:
        refuse(source, f"cannot be read ({error.strerror or error})", "see who may read it")
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        refuse(source, f"is not laid out as DeepSpeed or Accelerate do it ({error!r})", "save it with current ones")
    about = {
        "step": found.step,
        "updates": found.updates,
        "order": None,  # resuming counts global batches of its own
        "optimizer": found.optimizer,
        "model": {"class": None, "arguments": None},
        "imported": found.kind,
    }
    try:
        write_alone(out.absolute(), weights.items(), optimizer.items(), about)
    except (OSError, TypeError) as error:  # TypeError: a dtype that safetensors has not
        reason = f"cannot be written: {getattr(error, 'strerror', None) or error}"
        raise UserError(fault("OUT", str(out), reason, "make room, or name another folder")) from error
    held = f"{found.optimizer or 'optimizer'} state of {len(found.states)} parameters"
    held = f"the weights alone, {found.alone}" if found.alone else held
    return f"{out}: {source} ({found.kind}, step {found.step}): {len(weights)} tensors, {held}; {LEFT_OUT}"


def _read(source: Path) -> Found:
    if not source.is_dir():
        refuse(source, "is a file" if source.exists() else "no such folder", _one_of(_tags(source.parent)))
    if (source / MANIFEST).exists():
        refuse(source, "is oneloop's own", "give it to --resume_from_checkpoint or `oneloop export`")
    if any(source.glob(STATES)):
        return deepspeed(source)
    names = sorted(path.name for path in source.iterdir())
    tags = _tags(source)
    for pointer in (source / "latest", source / "latest_universal"):
        if pointer.is_file():
            tag = pointer.read_text(encoding="utf-8", errors="replace").strip()
            if tag not in tags:
                refuse(pointer, f"names {tag!r}, which is not there", _one_of(tags))
            return deepspeed(source / tag)
    if "random_states_0.pkl" in names and not tags:
        return accelerate(source, names)
    what = "lacks the file `latest`" if tags else f"holds {', '.join(names[:3])}" if names else "is empty"
    refuse(source, f"{what}: not what save_state or save_checkpoint wrote", _one_of(tags))


def _tags(folder: Path) -> list[str]:
    """DeepSpeed's checkpoints in a folder."""
    return sorted(path.parent.name for path in folder.glob(f"*/{STATES}"))


def _one_of(tags: list[str]) -> str:
    there = ", ".join(dict.fromkeys(tags))
    return f"name one of the tags there: {there}" if there else "there is no tag; name what one of them wrote"


def _entries(source: Path, found: Found) -> Iterator[tuple[str, Tensor]]:
    """The optimizer's state under the keys of the format."""
    for name, count in found.stepped.items():
        yield f"{name}/step", torch.tensor(count)
    for name, states in found.states.items():
        for state, pieces in states.items():
            whole = _whole(source, f"{state} of {name}", found.weights[name][0], pieces)
            yield f"{name}/{state}/0", whole.reshape(-1)


def _whole(source: Path, name: str, shape: Shape, pieces: list[Tensor]) -> Tensor:
    tensor = torch.cat(pieces) if len(pieces) > 1 else pieces[0]
    if tensor.numel() != math.prod(shape):
        refuse(source, f"has {tensor.numel()} of the {math.prod(shape)} numbers of {name}", COPY)
    return (tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor).reshape(shape)
