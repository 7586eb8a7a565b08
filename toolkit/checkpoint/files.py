"""The files of a checkpoint: JSON, and safetensors written tensor by tensor."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

INDEX, ABOUT, MANIFEST = "model.safetensors.index.json", "oneloop.json", "manifest.json"
# Names of the safetensors format, widest first: tensors stand in this order, so that each lies aligned.
DTYPES = {
    torch.float64: "F64",
    torch.int64: "I64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


class TensorFile:
    """Writes one safetensors file, hashing on the way; holds one tensor at a time.

    Args:
        layout: (key, dtype, shape) of every tensor.

    A write that fails (disk full) is kept until `close`, so that ranks that gather together go on together.

    Raises:
        TypeError: a dtype that the format has no name for.
        ValueError: a tensor of size zero.
    """

    def __init__(self, path: Path, layout: Iterable[tuple[str, torch.dtype, Iterable[int]]]) -> None:
        self.path, self.size = path, 0
        self.error: OSError | None = None
        self._hash, self._position = hashlib.sha256(), 0
        header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
        shapes = {key: (dtype, list(shape)) for key, dtype, shape in layout}
        self.keys = ordered({key: dtype for key, (dtype, _) in shapes.items()})
        for key in self.keys:
            dtype, shape = shapes[key]
            if math.prod(shape) == 0:
                raise ValueError(f"{key} has shape {tuple(shape)}: a checkpoint holds nothing of size zero")
            stop = self._position + math.prod(shape) * dtype.itemsize
            header[key] = {"dtype": DTYPES[dtype], "shape": shape, "data_offsets": [self._position, stop]}
            self._position = stop
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        self._begin = 8 + len(raw)
        self._next = iter(self.keys)
        self._file: Any = None
        try:
            self._file = path.open("xb")
        except OSError as error:
            self.error = error
        self._put(len(raw).to_bytes(8, "little") + raw)

    def write(self, key: str, tensor: Tensor) -> None:
        """The next tensor of `keys`."""
        if key != (due := next(self._next)):
            raise ValueError(f"{self.path}: {key} is written where {due} is due")
        self._put(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)

    def close(self) -> dict[str, Any]:
        """{"size": bytes, "sha256": hex} of the file, which is on the disk.

        Raises:
            OSError: a write failed.
            RuntimeError: tensors are missing, or are not of the shapes told.
        """
        try:
            if self.error is None:
                self._file.flush()
                os.fsync(self._file.fileno())
        except OSError as error:
            self.error = error
        try:
            if self._file is not None:
                self._file.close()
        except OSError as error:  # what could not be written stays in the file's buffer
            self.error = self.error or error
        if self.error is not None:
            raise self.error
        if self.size != self._begin + self._position or next(self._next, None) is not None:
            raise RuntimeError(f"{self.path}: {self.size} bytes written, {self._begin + self._position} announced")
        return {"size": self.size, "sha256": self._hash.hexdigest()}

    def _put(self, raw: Any) -> None:
        if self.error is not None:
            return
        try:
            self._file.write(raw)
        except OSError as error:
            self.error = error
        self._hash.update(raw)
        self.size += len(raw)


def write_json(path: Path, content: Any) -> None:
    """Write and sync; OSError where the disk does not take it."""
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(content, indent=1) + "\n")
        file.flush()
        os.fsync(file.fileno())


def record(path: Path) -> dict[str, Any]:
    """{"size": bytes, "sha256": hex} of a file."""
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def sync_folder(path: Path) -> None:
    """Bring a folder's entries to the disk: a rename counts only then. Some network file systems cannot."""
    handle = os.open(path, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)


def ordered(dtypes: Mapping[str, torch.dtype]) -> list[str]:
    """The keys in the order in which they stand in a file: the widest dtypes first, else as given.

    Raises:
        TypeError: a dtype that the format has no name for.
    """
    places = list(DTYPES)
    for key, dtype in dtypes.items():
        if dtype not in DTYPES:
            raise TypeError(f"{key}: safetensors has no name for {dtype}")
    return sorted(dtypes, key=lambda key: places.index(dtypes[key]))
