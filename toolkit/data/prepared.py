"""Arrays made of the data once per node while the other ranks wait, and kept in a cache.

An entry is a folder `NAME-FINGERPRINT` of .npy files, which every rank maps into memory, so that they share its pages,
and a small JSON with sizes and checksums. It lies in $ONELOOP_CACHE, else $XDG_CACHE_HOME/oneloop, else
~/.cache/oneloop. Nothing in it is ever changed, and nothing is removed: delete the folder to empty it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from toolkit.launch import say
from toolkit.once import once_per_node, wait_for_all

T = TypeVar("T")
Arrays = dict[str, np.ndarray]
FORMAT = 2  # of an entry; a new number makes all of them anew
ABOUT = "about.json"
TOLD_SECONDS = 1.0  # work that took longer is told
LINE_SECONDS = 10.0  # between lines where there is no terminal to draw a bar on
PART = 1 << 24  # bytes of a file that are summed at once


def prepared(name: str, key: Mapping[str, Any], make: Callable[[], Arrays], setup: Any | None = None) -> Arrays:
    """The arrays that `make` returns, memory-mapped from the cache; made once per node where they are not in it.

    Where the cache cannot be written every rank makes its own, in memory. Collective.

    Args:
        name: what it is, in an entry's name and in messages.
        key: all that decides the arrays, JSON-able: another key is another entry.

    Raises:
        UserError: that of `make`, on every rank.
    """
    folder = cache_folder() / f"{name}-{fingerprint(key)}"
    made = once_per_node(setup, lambda: _keep(name, folder, make))
    return wait_for_all(setup, lambda: _entry(folder) or made or make())


def cache_folder() -> Path:
    """Where entries lie."""
    if place := os.environ.get("ONELOOP_CACHE"):
        return Path(place)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "oneloop"


def fingerprint(key: Mapping[str, Any]) -> str:
    """32 hexadecimal digits that another key would not have."""
    text = json.dumps({"format": FORMAT, **key}, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def of_texts(texts: Iterable[str]) -> str:
    """Hash of texts, each with its length."""
    digest = hashlib.blake2b(digest_size=16)
    for text in texts:
        held = text.encode("utf-8", "surrogatepass")
        digest.update(len(held).to_bytes(8, "little"))
        digest.update(held)
    return digest.hexdigest()


def of_contents(values: Iterable[Any]) -> str:
    """Hash of bytes, or of the path, size and time of a file; of anything else its repr."""
    digest = hashlib.blake2b(digest_size=16)
    for value in values:
        held = value
        if isinstance(value, np.ndarray):
            held = f"{value.dtype} {value.shape} ".encode() + value.tobytes()
        elif not isinstance(value, bytes):
            held = repr((value, *_stamp(value))).encode("utf-8", "surrogatepass")
        digest.update(f"{type(value).__name__} {len(held)} ".encode())
        digest.update(held)
    return digest.hexdigest()


def of_tokenizer(tokenizer: Any) -> str:
    """Hash of all that decides what a tokenizer makes of a text, and of the libraries' versions."""
    parts: dict[str, Any] = {
        "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "longest": tokenizer.model_max_length,
        "sides": [tokenizer.padding_side, tokenizer.truncation_side],
        "inputs": tokenizer.model_input_names,
        "special": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "versions": [version("tokenizers"), version("transformers")],
    }
    if tokenizer.is_fast:
        held = json.loads(tokenizer.backend_tokenizer.to_str())
        # What the last call asked for, not the tokenizer's own.
        parts["backend"] = {name: value for name, value in held.items() if name not in ("truncation", "padding")}
    else:
        with tempfile.TemporaryDirectory() as folder:
            tokenizer.save_pretrained(folder)
            files = sorted(path for path in Path(folder).rglob("*") if path.is_file())
            parts["files"] = [hashlib.blake2b(path.read_bytes()).hexdigest() for path in files]
    return fingerprint(parts)


def shown(items: Iterable[T], total: int | None, what: str) -> Iterator[T]:
    """The items, with a bar on rank 0's terminal, or else a line now and then."""
    if total == 1:  # as one row of a stream
        yield from items
        return
    from rich.console import Console
    from rich.progress import track

    shows, told = sys.stderr.isatty() and os.environ.get("RANK", "0") == "0", time.monotonic()
    console = Console(file=sys.stderr)
    for number, item in enumerate(track(items, what, total, console=console, disable=not shows, transient=True), 1):
        yield item
        if not shows and time.monotonic() - told > LINE_SECONDS:
            told = time.monotonic()
            say(f"{what}: {number:,}" + (f" of {total:,}" if total else ""))


def _keep(name: str, folder: Path, make: Callable[[], Arrays]) -> Arrays:
    """See that the cache has the entry; the arrays themselves only where they were made and could not be written."""
    if _entry(folder, tell=True) is not None:
        say(f"{name}: prepared before, in {folder}")
        return {}
    refused = f"each rank prepares {name} for itself, since {folder.parent} cannot be written"
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent, ignore_cleanup_errors=True)
    except OSError as error:
        say(f"{refused}: {error.strerror or error}")
        return {}
    with aside as temporary:
        began = time.monotonic()
        made = make()
        seconds = time.monotonic() - began
        try:
            _write(Path(temporary, "entry"), made)
            _put(Path(temporary), folder)
        except OSError as error:
            say(f"{refused}: {error.strerror or error}")
            return made
    if seconds > TOLD_SECONDS:
        say(f"{name}: prepared in {seconds:.1f} s, kept in {folder}")
    return {}


def _write(folder: Path, arrays: Arrays) -> None:
    """Write and flush an entry's files: a power cut leaves a whole entry or none."""
    folder.mkdir()
    about: dict[str, dict[str, int]] = {}
    for name, array in arrays.items():
        path = folder / f"{name}.npy"
        with path.open("wb") as file:
            np.save(file, array, allow_pickle=False)
            file.flush()
            os.fsync(file.fileno())
        about[name] = {"bytes": path.stat().st_size, "crc32": _sum(path)}
    with (folder / ABOUT).open("w", encoding="utf-8") as file:
        json.dump(about, file)
        file.flush()
        os.fsync(file.fileno())


def _put(aside: Path, folder: Path) -> None:
    """Give a written entry its name; where another process (of another node) was first, its entry stays."""
    try:
        Path(aside, "entry").rename(folder)
    except OSError:
        if _entry(folder) is None:  # a damaged one: processes that have mapped its files keep them
            folder.rename(Path(aside, "damaged"))
            Path(aside, "entry").rename(folder)


def _entry(folder: Path, tell: bool = False) -> Arrays | None:
    """The arrays of an entry; None where there is none or where it is damaged, which is told."""
    if not folder.exists():
        return None
    try:
        about = json.loads((folder / ABOUT).read_text(encoding="utf-8"))
        arrays = {}
        for name, stamp in about.items():
            path = folder / f"{name}.npy"
            if path.stat().st_size != stamp["bytes"] or _sum(path) != stamp["crc32"]:
                raise ValueError(f"{path.name} is not what was written")
            arrays[name] = np.load(path, mmap_mode="r", allow_pickle=False)
        return arrays
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if tell:
            say(f"{folder} is damaged ({' '.join(str(error).split())}): preparing it again")
        return None


def _sum(path: Path) -> int:
    total = 0
    with path.open("rb") as file:
        while part := file.read(PART):
            total = zlib.crc32(part, total)
    return total


def _stamp(path: object) -> tuple[int, int]:
    """Size and time of change of a file; zeros where there is none."""
    try:
        held = os.stat(str(path))
        return held.st_size, held.st_mtime_ns
    except OSError:
        return 0, 0
