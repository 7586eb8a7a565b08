"""Reads and verifies checkpoints: JSON and safetensors, nothing is unpickled."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from toolkit.checkpoint.files import ABOUT, INDEX, MANIFEST, record
from toolkit.errors import UserError, fault

NAME = re.compile(r"step-(\d+)")
REMEDY = "take another checkpoint; `oneloop verify` names the whole ones"


class Checkpoint:
    """A checkpoint's folder; tensors are read one by one, or in part.

    Raises:
        UserError: there is no checkpoint, or its JSON files cannot be read: one line.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = Path(folder)
        try:
            if not self.folder.is_dir():
                raise UserError(self._line("no such folder"))
            if not (self.folder / MANIFEST).is_file():
                found = "an empty folder" if not any(self.folder.iterdir()) else f"no {MANIFEST} in it"
                raise UserError(self._line(f"not a whole checkpoint: {found}"))
        except OSError as error:
            raise UserError(self._line(f"cannot be read ({error.strerror})")) from None
        self.files: dict[str, dict[str, Any]] = self._json(MANIFEST, "files")
        for name, entry in self.files.items():
            if (
                Path(name).name != name
                or not name.isprintable()
                or not isinstance(entry, dict)
                or set(entry) != {"size", "sha256"}
            ):
                raise UserError(self._line(f"{MANIFEST} is damaged at {name!r}"))
        if unlisted := {ABOUT, INDEX} - self.files.keys():
            raise UserError(self._line(f"{MANIFEST} is damaged: it lacks {min(unlisted)}"))
        self.about: dict[str, Any] = self._json(ABOUT)
        self.step = int(self.about["step"])
        self._weight_map: dict[str, str] = self._json(INDEX, "weight_map")
        self._opened: dict[str, Any] = {}

    def faults(self) -> list[str]:
        """One line for each file that is missing or damaged; where none is, one if they do not fit together."""
        return self.damage() or self.misfits()

    def damage(self, share: int = 0, of: int = 1) -> list[str]:
        """One line for each file that is not as the manifest says, of every `of`-th file from `share` on."""
        found = []
        for name in sorted(self.files)[share::of]:
            path, told = self.folder / name, self.files[name]
            try:
                here = record(path)
            except OSError as error:
                value = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
                found.append(fault(str(path), value, f"{MANIFEST} has it ({error.strerror})", REMEDY))
                continue
            if here["size"] != told["size"]:
                reason = f"{told['size']} bytes were written"
                found.append(fault(str(path), f"{here['size']} bytes", reason, REMEDY))
            elif here != told:
                reason = f"its SHA-256 is not the one in {MANIFEST}: damaged"
                found.append(fault(str(path), here["sha256"][:12], reason, REMEDY))
        return found

    def misfits(self) -> list[str]:
        """At most one line: what does not fit together although each file is as it was written."""
        try:
            odd = list(self._odd())
        except (SafetensorError, OSError, AttributeError, KeyError, TypeError, ValueError) as error:
            odd = [f"cannot be read: {error!r}"]
        more = f", and {len(odd) - 1} more" if len(odd) > 1 else ""
        return [self._line(odd[0] + more)] if odd else []

    @property
    def names(self) -> list[str]:
        """Parameters and saved buffers."""
        return list(self._weight_map)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self._file(self._weight_map[name]).get_slice(name).get_shape())

    def weight(self, name: str) -> Tensor:
        """The whole tensor, on the CPU, in the dtype it was stored in."""
        return self._file(self._weight_map[name]).get_tensor(name)

    def value(self, name: str) -> Tensor:
        """The whole tensor as it was trained, on the CPU: the fp32 master of a weight that was held in 16 bit."""
        weight = self.weight(name)
        if "master" not in self._pieces.get(name, {}):
            return weight
        return self.optimizer(name, "master", 0, weight.numel()).reshape(weight.shape)

    def states(self, name: str) -> list[str]:
        """Names of the optimizer's state for a parameter, but for `step` and `master`."""
        return [state for state in self._pieces.get(name, {}) if state not in ("step", "master")]

    def optimizer(self, name: str, state: str, start: int, stop: int) -> Tensor:
        """Elements [start, stop) of a flattened parameter's state: [stop - start], on the CPU, as they were stored."""
        parts = []
        for first, end, file, key in sorted(self._pieces[name][state]):
            a, b = max(first, start), min(end, stop)
            if a < b:
                parts.append(self._file(file).get_slice(key)[a - first : b - first])
        return torch.cat(parts)

    def updates_of(self, name: str) -> float | None:
        """How often the optimizer has stepped a parameter; None where it does not count."""
        if "step" not in self._pieces.get(name, {}):
            return None
        _, _, file, key = self._pieces[name]["step"][0]
        return float(self._file(file).get_tensor(key))

    def random_state(self, rank: int) -> dict[str, Tensor] | None:
        """What `toolkit.checkpoint.randomness` kept of that rank."""
        for name in self.files:
            if name.startswith(f"random-{rank + 1:05d}-of-"):
                file = self._file(name)
                return {key: file.get_tensor(key) for key in file.keys()}
        return None

    @cached_property
    def _pieces(self) -> dict[str, dict[str, list[tuple[int, int, str, str]]]]:
        """{parameter: {state: [(start, stop, file, key)]}}"""
        pieces: dict[str, dict[str, list[tuple[int, int, str, str]]]] = {}
        for name in sorted(self.files):
            if name.startswith("optimizer-"):
                file = self._file(name)
                for key in file.keys():
                    parameter, state, start = parse(key)
                    stop = start + math.prod(file.get_slice(key).get_shape())
                    pieces.setdefault(parameter, {}).setdefault(state, []).append((start, stop, name, key))
        return pieces

    def _odd(self) -> Iterator[str]:
        for path in sorted(self.folder.glob("*.safetensors")):
            if path.name not in self.files:
                yield f"{path.name} is not in {MANIFEST}, and `from_pretrained` might load it instead"
        for name in self.files:
            if name.endswith(".safetensors"):
                self._file(name)  # readable
        told = self.about["parameters"]
        for name in told:
            if name not in self._weight_map:
                yield f"{INDEX} lacks {name}"
        for name, file in self._weight_map.items():
            if file not in self.files:
                yield f"{INDEX} has {name} in {file!r}, which {MANIFEST} lacks"
            elif name not in told:
                yield f"{ABOUT} lacks {name}"
            elif list(self.shape(name)) != told[name]["shape"]:
                yield f"{name} has shape {self.shape(name)}, {ABOUT} says {tuple(told[name]['shape'])}"
        for name, states in self._pieces.items():
            size = math.prod(told[name]["shape"]) if name in told else -1
            for state, held in states.items():
                at = 0
                for start, stop, _, _ in sorted(held):
                    at = stop if start == at else -1
                if at != (1 if state == "step" else size):
                    yield f"the optimizer's {state} of {name} is not whole"

    def _file(self, name: str) -> Any:
        if name not in self._opened:
            self._opened[name] = safe_open(str(self.folder / name), framework="pt")
        return self._opened[name]

    def _json(self, name: str, key: str | None = None) -> dict[str, Any]:
        try:
            content = json.loads((self.folder / name).read_text(encoding="utf-8"), object_pairs_hook=_once)
            if name != INDEX and content["format"] != 1:
                raise UserError(self._line(f"{name} has format {content['format']!r}, this version reads 1"))
            content = content if key is None else content[key]
            if not isinstance(content, dict) or (name == ABOUT and not isinstance(content.get("step"), int)):
                raise ValueError("not what was written")
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(self._line(f"{name} is damaged or missing ({error})")) from None
        return content

    def _line(self, reason: str) -> str:
        return fault("checkpoint", str(self.folder), reason, REMEDY)


def find(path: Path) -> list[Path]:
    """The checkpoints at a path, oldest first, sorted as numbers: of an output folder, or the one that it is itself.

    Raises:
        UserError: a folder may not be read.
    """
    try:
        return _find(Path(path))
    except OSError as error:
        reason = f"cannot be read ({error.strerror})"
        raise UserError(fault("checkpoint", error.filename or str(path), reason, "see who may read it")) from error


def _find(path: Path) -> list[Path]:
    places = [place for place in (path / "checkpoints", path) if place.is_dir()]
    if path.match(".step-*.tmp"):  # a save's, which may be removed at any time
        return []
    if (path / MANIFEST).exists() or (NAME.fullmatch(path.name) and places == [path]):
        return [path]
    for place in places:
        found = [each for each in place.iterdir() if NAME.fullmatch(each.name) and each.is_dir()]
        if found:
            return sorted(found, key=lambda each: int(each.name.partition("-")[2]))
    return []


def leftovers(path: Path) -> list[Path]:
    """Temporary folders that a killed save left in an output folder."""
    return sorted((Path(path) / "checkpoints").glob(".step-*.tmp"))


def newest_whole(path: Path) -> Checkpoint:
    """The newest checkpoint at a path that is whole.

    Raises:
        UserError: there is none, or a path that is itself a checkpoint is damaged.
    """
    found = find(path)
    faults: list[str] = []
    for folder in reversed(found):
        try:
            checkpoint = Checkpoint(folder)
        except UserError as error:
            faults += error.lines
            continue
        if not (lines := checkpoint.faults()):
            return checkpoint
        faults += lines
    raise UserError(*(faults or [fault("checkpoint", str(path), "there is none", "name one, or a run's folder")]))


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object whose keys differ: of two equal ones, which damage can make, json keeps the last in silence."""
    content = dict(pairs)
    if len(content) != len(pairs):
        raise ValueError("a key stands twice")
    return content


def parse(key: str) -> tuple[str, str, int]:
    """NAME/STATE/START, or NAME/step."""
    if key.endswith("/step"):
        return key.removesuffix("/step"), "step", 0
    name, state, start = key.rsplit("/", 2)
    return name, state, int(start)
