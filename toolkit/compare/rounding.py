"""How far rounding alone brings a training apart: the reference once more, from weights that differ by rounding."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.files import MANIFEST, record, write_json
from toolkit.compare.causes import GUESSES, paired, relative
from toolkit.compare.runs import DIFFERS, Measured, Run
from toolkit.compare.setups import Start
from toolkit.parity import Bounds

LABEL = "rounding"
# Each weight is changed by up to this part of it, eight roundings of fp32. Setups add in another order, and one kernel
# of Adam rounds otherwise than another: that is of this size, in every step.
SIZE = 1e-6
CHANGED = f"each weight changed by up to {SIZE:.0e} of it before the first step"
# Two trainings that such a change has brought apart are not equally far apart at each step.
FACTOR = 10.0


def needed(reference: Run, others: Sequence[tuple[Run, Measured]]) -> bool:
    """Whether some run differs, not from the first step, and nothing that was said to the two explains it."""
    return reference.value("weight_dtype") == "float32" and any(
        comparable(run, reference, told) for run, told in others
    )


def comparable(run: Run, reference: Run, told: Measured) -> bool:
    """Whether rounding may be what is between the two."""
    return (
        told.verdict == DIFFERS
        and told.step != 1
        and not told.learning_rate
        and told.cause.startswith(GUESSES)
        and all(run.value(name) == reference.value(name) for name in ("mixed_precision", "weight_dtype"))
    )


def once_more(start: Start, reference: Run, folder: Path) -> Start:
    """The reference's own start, from its first weights, changed by `SIZE`, which are written into `folder`.

    Raises:
        OSError, UserError, SafetensorError: they cannot be read or written.
    """
    first = disturbed(reference.folder / "checkpoints" / "step-000000", folder / f"{LABEL}-start" / "step-000000")
    command = list(start.command)
    command[command.index("--output_dir") + 1] = str(folder / LABEL)
    command += ["--resume_from_checkpoint", str(first)]
    return replace(start, label=LABEL, folder=folder / LABEL, command=tuple(command))


def disturbed(source: Path, target: Path) -> Path:
    """A copy of a checkpoint whose trained weights w are w (1 + SIZE u), u uniform in [-1, 1) and always the same."""
    shutil.copytree(source, target)
    manifest = json.loads((target / MANIFEST).read_text(encoding="utf-8"))
    trained = {name for name, told in Checkpoint(source).about["parameters"].items() if told["trained"]}
    drawn = torch.Generator().manual_seed(0)
    for file in sorted(target.glob("model-*.safetensors")):
        tensors = load_file(file)
        for name in sorted(trained & tensors.keys()):
            change = SIZE * (2 * torch.rand(tensors[name].shape, generator=drawn) - 1)
            tensors[name] = tensors[name] * (1 + change)
        save_file(tensors, file)
        manifest["files"][file.name] = record(file)
    write_json(target / MANIFEST, manifest)
    return target


def explains(rounding: Run, reference: Run, run: Run, bounds: Bounds) -> bool:
    """Whether no loss is further apart than `bounds`, and than FACTOR times what rounding made of the steps so far.

    A loss that rounding makes infinite, or not a number, explains nothing.
    """
    far = {b["step"]: relative(a.get("loss"), b.get("loss")) for a, b in paired(rounding, reference)}
    reach = dict(zip(far, accumulate(far.values(), max), strict=True))
    apart = {b["step"]: relative(a.get("loss"), b.get("loss")) for a, b in paired(run, reference)}
    limits = {step: max(bounds.loss, FACTOR * reach.get(step, 0.0)) for step in apart}
    return all(apart[step] <= limits[step] < math.inf for step in apart)
