"""Damage to each file of a checkpoint is told in one line that names the file, and nothing damaged is taken."""

from __future__ import annotations

import json
import pickle
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from fitting import LINE, Run, seal, tell, weights

from toolkit.checkpoint import Checkpoint, newest_whole
from toolkit.checkpoint.files import ABOUT, INDEX, MANIFEST, record
from toolkit.errors import UserError

WEIGHTS = "model-00001-of-00001.safetensors"
OPTIMIZER = "optimizer-00001-of-00001.safetensors"
RANDOM = "random-00001-of-00001.safetensors"
FILES = (WEIGHTS, OPTIMIZER, RANDOM, INDEX, ABOUT, MANIFEST)


@pytest.fixture
def folder(tmp_path: Path, whole: Run) -> Path:
    """A real checkpoint of its own."""
    return Path(shutil.copytree(whole.checkpoint(8), tmp_path / "checkpoints" / "step-000008"))


def lines_of(folder: Path) -> list[str]:
    """Every line that reading it as a whole gives."""
    try:
        return Checkpoint(folder).faults()
    except UserError as error:
        return list(error.lines)


def one_line(folder: Path) -> str:
    lines = lines_of(folder)
    assert len(lines) == 1 and "\n" not in lines[0] and LINE.fullmatch(lines[0]), lines
    with pytest.raises(UserError) as caught:
        newest_whole(folder)
    assert caught.value.lines == tuple(lines)
    return lines[0]


def flip(path: Path, byte: int, bit: int = 0) -> None:
    raw = bytearray(path.read_bytes())
    raw[byte] ^= 1 << bit
    path.write_bytes(raw)


def test_these_are_all_files(folder: Path) -> None:
    assert sorted(FILES) == sorted(path.name for path in folder.iterdir())
    assert lines_of(folder) == []


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("cut", [1, 100, None])
def test_a_file_that_was_cut_is_named(folder: Path, name: str, cut: int | None) -> None:
    raw = (folder / name).read_bytes()
    (folder / name).write_bytes(raw[:-cut] if cut else b"")
    if name == MANIFEST and cut == 1:  # the last byte is the line's end
        assert lines_of(folder) == []
        return
    line = one_line(folder)
    assert name in line
    if name in (WEIGHTS, OPTIMIZER, RANDOM):
        assert line.startswith(
            f"{folder / name}: '{len(raw) - (cut or len(raw))} bytes': {len(raw)} bytes were written;"
        )


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("where", ["first", "middle", "last"])
def test_a_flipped_bit_is_found(folder: Path, name: str, where: str) -> None:
    size = (folder / name).stat().st_size
    # Of text the last byte is the line's end: the one before it.
    last = size - 1 if name.endswith(".safetensors") else size - 2
    flip(folder / name, {"first": 0, "middle": size // 2, "last": last}[where])
    line = one_line(folder)
    assert (f"{folder / name}: '" in line and "SHA-256 is not the one" in line) or f"{name} is damaged" in line


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_gone_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    line = one_line(folder)
    if name == MANIFEST:
        assert f"checkpoint: {str(folder)!r}: not a whole checkpoint: no {MANIFEST} in it" in line
    elif name in (INDEX, ABOUT):
        assert f"{name} is damaged or missing" in line
    else:
        assert line.startswith(f"{folder / name}: 'missing': ")


@pytest.mark.parametrize("name", (WEIGHTS, ABOUT))
def test_a_folder_in_the_place_of_a_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    (folder / name).mkdir()
    assert name in one_line(folder)


def test_every_bit_of_the_manifest_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no hash of its own: whichever bit of it is flipped, the checkpoint is not taken, in one line."""
    monkeypatch.setattr("toolkit.checkpoint.reader.record", cache(record))  # the other files stay as they are
    raw = (folder / MANIFEST).read_bytes()
    taken = []
    with (folder / MANIFEST).open("r+b", buffering=0) as file:
        for byte in range(len(raw) - 1):  # the last one is the line's end
            for changed in (raw[byte] ^ 1 << bit for bit in range(8)):
                file.seek(byte)
                file.write(bytes([changed]))
                lines = lines_of(folder)
                taken += [] if lines else [(byte, changed)]
                assert len(lines) <= 1 and all(LINE.fullmatch(line) for line in lines), lines
            file.seek(byte)
            file.write(raw[byte : byte + 1])
    assert taken == []


@pytest.mark.parametrize(
    "text",
    [
        "",
        "not JSON",
        "[]",
        "null",
        "3",
        "{}",
        '{"format": 1}',
        '{"files": {}}',
        '{"format": 2, "files": {}}',
        '{"format": 1, "files": []}',
        '{"format": 1, "files": {"oneloop.json": 3}}',
        '{"format": 1, "files": {"oneloop.json": {"size": 3}}}',
        '{"format": 1, "files": {"../oneloop.json": {"size": 3, "sha256": ""}}}',
        '{"format": 1, "files": {"": {"size": 3, "sha256": ""}}}',
        '{"format": 1, "files": {"a\\u0000b": {"size": 3, "sha256": ""}}}',
        '{"format": 1, "files": {"\\ud800": {"size": 3, "sha256": ""}}}',
        "[" * 100_000,
        "\x00\x00",
        '{"format": 1, "files": {}}',
    ],
)
def test_a_manifest_of_another_kind_is_refused(folder: Path, text: str) -> None:
    (folder / MANIFEST).write_text(text)
    assert MANIFEST in one_line(folder)


@pytest.mark.parametrize("name", [ABOUT, INDEX])
def test_a_manifest_without_a_hash_of_each_json_is_refused(folder: Path, name: str) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    del told["files"][name]
    (folder / MANIFEST).write_text(json.dumps(told))
    assert f"{MANIFEST} is damaged: it lacks {name}; " in one_line(folder)


@pytest.mark.parametrize("called", ["iterdir", "is_file"])
def test_a_folder_that_may_not_be_read_is_one_line(
    tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch, called: str
) -> None:
    """The tests' user may read everything: the system's answer is put in its place."""

    def denied(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, called, denied)
    with pytest.raises(UserError) as caught:
        newest_whole(whole.folder)
    lines = caught.value.lines
    assert lines and all(LINE.fullmatch(line) and "cannot be read (Permission denied); " in line for line in lines)


def test_another_format_is_told(folder: Path) -> None:
    told = json.loads((folder / MANIFEST).read_text())
    (folder / MANIFEST).write_text(json.dumps(told | {"format": 2}))
    assert f"{MANIFEST} has format 2, this version reads 1; " in one_line(folder)
    seal(folder)
    tell(folder, ABOUT, format="1")
    assert f"{ABOUT} has format '1', this version reads 1; " in one_line(folder)


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "step-000001"
    folder.mkdir()
    assert one_line(folder).startswith(f"checkpoint: {str(folder)!r}: not a whole checkpoint: an empty folder; ")


def test_no_folder_is_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "step-000001", tmp_path / "file"):
        (tmp_path / "file").write_text("")
        with pytest.raises(UserError, match="no such folder; ") as caught:
            Checkpoint(path)
        assert LINE.fullmatch(caught.value.lines[0])


def test_a_file_beside_it_does_no_harm(folder: Path, whole: Run) -> None:
    (folder / "notes.txt").write_text("the best one")
    (folder / ".nfs0001").write_text("")
    assert lines_of(folder) == []
    assert weights(folder).keys() == weights(whole.checkpoint(8)).keys()


def test_weights_beside_it_are_refused(folder: Path) -> None:
    """`from_pretrained` takes model.safetensors before an index: other weights than the manifest's."""
    shutil.copy(folder / WEIGHTS, folder / "model.safetensors")
    assert f"model.safetensors is not in {MANIFEST}" in one_line(folder)


# ---- each file as it was written, and yet no checkpoint ----------------------------------------------------------


def parameters(change: Callable[[dict[str, Any]], None]) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        told = json.loads((folder / ABOUT).read_text())["parameters"]
        change(told)
        tell(folder, parameters=told)

    return edit


def without(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).unlink()
        seal(folder)

    return edit


def about(**changed: Any) -> Callable[[Path], None]:
    return lambda folder: tell(folder, ABOUT, **changed)


def pickled(name: str) -> Callable[[Path], None]:
    def edit(folder: Path) -> None:
        (folder / name).write_bytes(pickle.dumps(Bomb(folder / "ran")))
        seal(folder)

    return edit


class Bomb:
    """Writes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return (Path.touch, (self.path,))


ODD: dict[str, tuple[Callable[[Path], None], str]] = {
    "other shape": (
        parameters(lambda told: told["0.weight"].update(shape=[9, 4])),
        "0.weight has shape (8, 4), oneloop.json says (9, 4)",
    ),
    "other shape of equal size": (
        parameters(lambda told: told["0.weight"].update(shape=[4, 8])),
        "0.weight has shape (8, 4), oneloop.json says (4, 8)",
    ),
    "no such tensor": (
        lambda folder: tell(folder, INDEX, weight_map=dict.fromkeys(weights(folder), OPTIMIZER)),
        "cannot be read: ",
    ),
    "one more": (parameters(lambda told: told.update(extra=told["0.weight"])), f"{INDEX} lacks extra"),
    "no shape": (parameters(lambda told: told["0.weight"].pop("shape")), "cannot be read: KeyError('shape')"),
    "a number": (about(parameters=3), "cannot be read: TypeError"),
    "no parameters": (about(parameters={}), f"{ABOUT} lacks 0.weight, and 11 more; "),
    "not an index's file": (
        lambda folder: tell(folder, INDEX, weight_map={"0.weight": "../x.safetensors"}),
        f"{INDEX} lacks 0.bias, and 3 more",
    ),
    "an index to elsewhere": (
        lambda folder: tell(folder, INDEX, weight_map=dict.fromkeys(weights(folder), "../x.safetensors")),
        f"{INDEX} has 0.weight in '../x.safetensors', which {MANIFEST} lacks, and 3 more",
    ),
    "no weights": (without(WEIGHTS), f"{INDEX} has 0.weight in '{WEIGHTS}', which {MANIFEST} lacks, and 3 more"),
    "an index to no tensor": (
        lambda folder: tell(folder, INDEX, weight_map=dict.fromkeys([*weights(folder), "x"], WEIGHTS)),
        f"{ABOUT} lacks x;",
    ),
    "no step": (about(step=None), f"{ABOUT} is damaged or missing (not what was written)"),
    "a step in words": (about(step="eight"), f"{ABOUT} is damaged or missing (not what was written)"),
    "pickled weights": (pickled(WEIGHTS), "cannot be read: "),
    "pickled optimizer": (pickled(OPTIMIZER), "cannot be read: "),
    "pickled random state": (pickled(RANDOM), "cannot be read: "),
}


@pytest.mark.parametrize(("edit", "reason"), ODD.values(), ids=ODD)
def test_what_does_not_fit_together_is_one_line(folder: Path, edit: Callable[[Path], None], reason: str) -> None:
    edit(folder)
    line = one_line(folder)
    assert line.startswith(f"checkpoint: {str(folder)!r}: {reason}"), line
    assert not (folder / "ran").exists()


def test_a_state_that_is_not_whole_is_found(folder: Path) -> None:
    """A piece of the optimizer's state that no rank wrote."""
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / OPTIMIZER)
    piece = tensors.pop("0.weight/exp_avg/0")
    for name, pieces in {
        "gap": {"0.weight/exp_avg/0": piece[:5], "0.weight/exp_avg/6": piece[6:]},
        "end": {"0.weight/exp_avg/0": piece[:-1]},
        "begin": {"0.weight/exp_avg/1": piece[1:]},
        "twice": {"0.weight/exp_avg/0": piece, "0.weight/exp_avg/4": piece[4:8]},
    }.items():
        save_file(tensors | {key: part.clone() for key, part in pieces.items()}, folder / OPTIMIZER)
        seal(folder)
        assert "the optimizer's exp_avg of 0.weight is not whole" in one_line(folder), name
    # A piece under a key that says nothing.
    save_file(tensors | {"exp_avg": piece}, folder / OPTIMIZER)
    seal(folder)
    assert "cannot be read: ValueError" in one_line(folder)


def test_the_newest_whole_one_is_found_past_damage(tmp_path: Path, whole: Run) -> None:
    run = shutil.copytree(whole.folder, tmp_path / "run")
    (run / "checkpoints" / "step-000016" / WEIGHTS).unlink()
    (run / "checkpoints" / "step-000012" / MANIFEST).unlink()
    assert newest_whole(run).step == 8
    for step in (4, 8):
        flip(run / "checkpoints" / f"step-{step:06d}" / ABOUT, 40)
    with pytest.raises(UserError) as caught:
        newest_whole(run)
    assert len(caught.value.lines) == 4 and all(LINE.fullmatch(line) for line in caught.value.lines)
