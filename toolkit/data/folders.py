"""Class folders: FOLDER/CLASS/x.png, or x.txt for texts; the folder of a split (train, val, test) may stand above.

`datasets` reads such folders of images too, but leaves out what it does not know without a word.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from toolkit.data.readers import KINDS, Table, Unreadable, decoded
from toolkit.errors import UserError, fault
from toolkit.launch import say

IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
ENDINGS: dict[str, tuple[str, ...]] = {"image": IMAGES, "text": (".txt",)}
# What the folder of a split may be called, as `datasets` knows it.
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("validation", "valid", "val", "dev"), "validation"),
    **dict.fromkeys(("test", "testing", "eval", "evaluation"), "test"),
}
UNLABELLED = ("unsup", "unsupervised")  # IMDb's folder of texts without a label
NAMED = 5  # files at fault that an error names
SHOWN = 3  # files or folders left out that a line names


def class_folders(name: str, kind: str) -> dict[str, Path]:
    """The folder of each split, holding class folders of `kind`, "image" or "text"; {} for what is of another form.

    UserError for class folders of the other kind, and for two folders of one split.
    """
    root = Path(name)
    if not root.is_dir() or _described(root):
        return {}
    splits = _splits(root)
    beside = [each.name for each in _folders(root) if each not in splits.values()] if splits else []
    if not splits:
        if any(_has_rows(folder) or _splits(folder) for folder in (root, *_folders(root))):
            return {}
        splits = {"train": root}
    for held in (kind, *ENDINGS):
        if any(_holds(folder, ENDINGS[held]) for folder in splits.values()):
            if held == kind:
                if beside:
                    say(f"{root}: folders left out, beside its splits: {len(beside):,} ({_first(beside)})")
                return splits
            reason = f"holds class folders of {held}s, and this script takes {kind}s"
            raise UserError(fault("--dataset_name", name, reason, f"train on {held}s with the other script"))
    return {}


def read_classes(folder: Path, kind: str, encoding: str | None = None) -> Table:
    """The files of class folders: columns `image`, paths, or `text`, contents; and `label`, names of folders.

    What is left out is told. UserError for a class without files, and for bytes that are not in the encoding.
    """
    files, labels = listed(folder, kind)
    values, faults = files, list[str]()
    if kind == "text":
        values = []
        for file in files:
            try:
                values.append(read_text(file, encoding))
            except UserError as error:
                faults += error.lines
    if faults:
        more = [fault("--dataset_name", str(folder), f"{len(faults):,} such files in all", "see all of them")]
        raise UserError(*faults[:NAMED], *more[: len(faults) > NAMED])
    return Table(str(folder), {kind: values, "label": labels})


def listed(folder: Path, kind: str) -> tuple[list[str], list[str]]:
    """Path and class of each file, sorted by both; hidden ones are none."""
    files: list[str] = []
    labels: list[str] = []
    left = [each.name for each in _inside(folder) if each.is_file()]
    empty: list[str] = []
    for each in _folders(folder):
        inside = list(files_in(each))
        of_kind = sorted(file for file in inside if file.lower().endswith(ENDINGS[kind]))
        if kind == "text" and each.name in UNLABELLED:
            say(f"{each}: {len(of_kind):,} texts without a label are left out")
            continue
        left += sorted(os.path.relpath(file, folder) for file in set(inside).difference(of_kind))
        files += of_kind
        labels += [each.name] * len(of_kind)
        empty += [] if of_kind else [each.name]
    if empty:
        reason = f"no {kind} ({', '.join(ENDINGS[kind])}) in {', '.join(empty[:NAMED])}"
        raise UserError(fault("--dataset_name", str(folder), reason, f"put {kind}s there, or remove the folder"))
    if left:
        why = f"in no class folder or no {kind} by their ending"
        say(f"{folder}: files left out, {why}: {len(left):,} ({_first(left)})")
    return files, labels


def rows_of_classes(files: Sequence[str], labels: Sequence[str], kind: str, encoding: str | None) -> Iterator[Any]:
    """The rows of `read_classes` one after another."""
    for file, label in zip(files, labels, strict=True):
        yield {kind: read_text(file, encoding) if kind == "text" else file, "label": label}


def read_text(file: str, encoding: str | None) -> str:
    """A whole file as one text. UserError."""
    try:
        return decoded(Path(file), encoding)
    except OSError as error:
        reason = f"cannot be read: {error.strerror or error}"
        raise UserError(fault("--dataset_name", file, reason, "check the file")) from error
    except Unreadable as error:
        raise UserError(fault("--dataset_name", file, *error.args)) from error


def files_in(folder: Path) -> Iterator[str]:
    """Paths of all files in it and below, but for hidden ones. UserError for a folder that cannot be read, and for a
    link to one that was read before, which may lead round for ever."""
    read: set[str] = set()
    for place, folders, names in os.walk(folder, onerror=_not_read, followlinks=True):
        real = os.path.realpath(place)
        if real in read:
            raise UserError(fault("folder", place, f"is {real} again", "remove the link"))
        read.add(real)
        folders[:] = [name for name in folders if _seen(name)]
        yield from (os.path.join(place, name) for name in names if _seen(name))


def _described(root: Path) -> bool:
    """Whether files say what the splits or the labels are, as `datasets` reads them."""
    card = root / "README.md"
    if card.is_file() and "\nconfigs:" in card.read_text(encoding="utf-8", errors="ignore"):
        return True
    return any(list(folder.glob("metadata.*")) for folder in (root, *_splits(root).values()))


def _splits(root: Path) -> dict[str, Path]:
    found: dict[str, Path] = {}
    for folder in _folders(root):
        if (split := SPLITS.get(folder.name.lower())) and found.setdefault(split, folder) != folder:
            reason = f"{found[split].name} and {folder.name} are both its split {split}"
            raise UserError(fault("--dataset_name", str(root), reason, "leave one of them there"))
    return found


def _has_rows(folder: Path) -> bool:
    return any(each.suffix.lower() in KINDS for each in _inside(folder))


def _holds(folder: Path, endings: tuple[str, ...]) -> bool:
    return any(file.lower().endswith(endings) for each in _folders(folder) for file in files_in(each))


def _folders(folder: Path) -> list[Path]:
    return [each for each in _inside(folder) if each.is_dir()]


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def _inside(folder: Path) -> list[Path]:
    """What is in it, sorted, but for hidden things."""
    try:
        return sorted(each for each in folder.iterdir() if _seen(each.name))
    except OSError as error:
        return _not_read(error)


def _not_read(error: OSError) -> NoReturn:
    reason = f"cannot be read: {error.strerror or error}"
    raise UserError(fault("folder", str(error.filename), reason, "see that it can be")) from error


def _seen(name: str) -> bool:
    return not name.startswith(".")
