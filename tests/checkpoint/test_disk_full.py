"""A disk that is full, or fails, while a checkpoint is written: earlier ones stay whole, and nothing half is left."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from fitting import Run, fit, model, same, weights

import toolkit
from toolkit.checkpoint import Checkpoint
from toolkit.checkpoint.save import save
from toolkit.errors import UserError

RESUME = "--resume_from_checkpoint"
FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class NthWrite:
    """A file whose writes count; from the n-th on they fail, after half of the bytes."""

    writes = 0

    def __init__(self, file: Any, fails_at: int) -> None:
        """0: none fails."""
        self.file, self.fails_at = file, fails_at

    def write(self, raw: Any) -> Any:
        NthWrite.writes += 1
        if self.fails_at and NthWrite.writes >= self.fails_at:
            self.file.write(raw[: len(raw) // 2])
            raise FULL
        return self.file.write(raw)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)

    def __enter__(self) -> NthWrite:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()


class Disk:
    """A small disk that a test fills and empties."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def fill(self) -> None:
        with (self.folder / "filler").open("wb") as file:
            for size in (4096, 1):
                try:
                    while True:
                        os.write(file.fileno(), bytes(size))
                except OSError as error:
                    assert error.errno == errno.ENOSPC

    def empty(self) -> None:
        (self.folder / "filler").unlink()


class Pretended(Disk):
    """The same where no file system may be mounted: opening a file to write fails while it is full."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder)
        self.full = False
        opens = io.open

        def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
            if self.full and set(mode) & set("wxa+") and str(file).startswith(str(folder)):
                raise FULL
            return opens(file, mode, *rest, **more)

        monkeypatch.setattr(io, "open", opened)

    def fill(self) -> None:
        self.full = True

    def empty(self) -> None:
        self.full = False


@pytest.fixture(params=["tmpfs", "pretended"])
def disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A file system of 1 MB where one may be mounted, and a pretended one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if request.param == "pretended" or subprocess.run(mount, capture_output=True).returncode != 0:
        yield Pretended(folder, monkeypatch)
        return
    yield Disk(folder)
    subprocess.run(["umount", str(folder)], check=True)


def whole_rows(run: Run) -> bool:
    return (run.folder / "metrics.jsonl").read_text().endswith("\n") and len(run.rows) > 0


def test_a_save_that_fails_is_told_and_the_next_one_succeeds(disk: Disk, whole: Run, capfd: Any) -> None:
    left: list[list[str]] = []
    folder = disk.folder / "run"

    def look() -> None:
        left.append(sorted(path.name for path in (folder / "checkpoints").iterdir()))
        assert Checkpoint(folder / "checkpoints" / "step-000004").faults() == []
        disk.empty()

    run = fit(folder, "--checkpointing_steps", "4", before={6: disk.fill, 10: look})
    told = capfd.readouterr().err
    assert told.count("oneloop: warning: checkpoint step-000008 could not be written (") == 1
    assert "No space left on device); earlier ones are whole" in told
    assert left == [["step-000004"]]
    assert run.checkpoints == ["step-000004", "step-000012", "step-000016"]
    assert all(same(run.checkpoint(step), whole.checkpoint(step)) for step in (4, 12, 16))
    # Rows that found no room were written later, in order.
    assert run.steps == whole.steps
    assert [row["step"] for row in run.rows] == [row["step"] for row in whole.rows]


def test_it_is_tried_once_more_at_the_end(disk: Disk, whole: Run) -> None:
    class Frees:
        """The last evaluation, between the two tries, makes room."""

        def compute(self, **_: Any) -> dict[str, float]:
            if (disk.folder / "run" / "checkpoints" / "step-000012").exists():
                disk.empty()
            return {"score": 1.0}

    run = fit(disk.folder / "run", "--checkpointing_steps", "4", before={14: disk.fill}, metrics=[Frees()])
    assert run.checkpoints == whole.checkpoints
    assert same(run.checkpoint(16), whole.checkpoint(16))
    assert run.steps == whole.steps


def test_the_exit_code_is_3_if_the_last_save_fails(disk: Disk, whole: Run, capfd: Any) -> None:
    folder = disk.folder / "run"
    with pytest.raises(SystemExit) as caught:
        fit(folder, "--checkpointing_steps", "4", before={14: disk.fill})
    assert caught.value.code == 3
    told = capfd.readouterr().err
    assert told.count("oneloop: warning: checkpoint step-000016 could not be written (") == 2
    run = Run(folder, [])
    lost = len(run.rows) < len(whole.rows)  # where they found no room in the file's last block
    assert ("oneloop: warning: rows of metrics.jsonl wait for room on the disk (" in told) == lost
    assert lost or not isinstance(disk, Pretended)
    assert run.checkpoints == ["step-000004", "step-000008", "step-000012"]
    assert all(same(run.checkpoint(step), whole.checkpoint(step)) for step in (4, 8, 12))
    assert run.steps == whole.steps[: len(run.steps)] and whole_rows(run)
    assert run.summary["steps"] == 0  # as it was written at the start: whole
    # With room again it goes on and ends as the uninterrupted one.
    disk.empty()
    again = fit(folder, "--checkpointing_steps", "4", RESUME, "auto")
    assert again.checkpoints == whole.checkpoints
    assert again.steps == whole.steps
    assert again.evaluated == whole.evaluated
    assert same(again.checkpoint(16), whole.checkpoint(16))


def test_room_that_comes_back_too_late_is_no_success(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.checkpoint.keep.save", lambda *_: "rank 1: [Errno 28] No space left on device")
    with pytest.raises(SystemExit) as caught:
        fit(tmp_path / "run", "--max_train_steps", "2")
    assert caught.value.code == 3
    assert [row["step"] for row in Run(tmp_path / "run", []).rows] == [1, 2, 2]


def test_rows_that_never_found_room_are_a_failure_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opens = io.open

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if mode == "a" and str(file).endswith("metrics.jsonl"):
            raise FULL
        return opens(file, mode, *rest, **more)

    monkeypatch.setattr(io, "open", opened)
    with pytest.raises(SystemExit) as caught:
        fit(tmp_path / "run", "--max_train_steps", "2")
    assert caught.value.code == 3
    assert Run(tmp_path / "run", []).checkpoints == ["step-000002"]


def test_rows_are_whole_or_not_there(tmp_path: Path, whole: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of what is appended fits, every second time."""
    opens, tries = io.open, 0

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        nonlocal tries
        made = opens(file, mode, *rest, **more)
        if mode != "a" or not str(file).endswith("metrics.jsonl"):
            return made
        tries += 1
        before = Path(file).read_text()
        assert before == "" or before.endswith("}\n")
        return NthWrite(made, tries % 2)

    monkeypatch.setattr(io, "open", opened)
    monkeypatch.setattr(NthWrite, "writes", 0)
    run = fit(tmp_path / "run")
    assert tries > 4
    assert [row["step"] for row in run.rows] == [row["step"] for row in whole.rows]
    assert run.steps == whole.steps


def test_a_disk_that_is_full_from_the_start_is_one_line(disk: Disk) -> None:
    disk.fill()
    with pytest.raises(UserError) as caught:
        fit(disk.folder / "run")
    (line,) = caught.value.lines
    reason = "cannot be written (No space left on device); make room for it"
    assert line == f"--output_dir: {str(disk.folder / 'run')!r}: {reason}"


def test_a_run_that_cannot_cut_its_rows_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = fit(tmp_path / "run", "--max_train_steps", "2")
    before = (run.folder / "metrics.jsonl").read_bytes()
    Pretended(run.folder, monkeypatch).fill()
    with pytest.raises(UserError) as caught:
        fit(run.folder, "--max_train_steps", "3", RESUME, "auto")
    assert caught.value.lines == (
        f"--output_dir: '{run.folder}/metrics.jsonl': cannot be written (No space left on device); make room for it",
    )
    assert (run.folder / "metrics.jsonl").read_bytes() == before


# ---- one save, failing at each of its steps -----------------------------------------------------------------------


@pytest.fixture(scope="module")
def engine() -> Any:
    setup = toolkit.Setup.build(strategy="single", launcher="python", use_cpu=True, train_batch_size=8)
    made = toolkit.prepare(model, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)
    fill = torch.randn(8, 4)
    made.train_step([toolkit.data.batch.Batch((fill,), torch.zeros(8, dtype=torch.int64), torch.ones(8), 8.0, fill)])
    return made


def failing(target: Any, name: str, at: int, error: OSError = FULL) -> Callable[..., Any]:
    """That function, whose call number `at` (from 1) and all after it fail."""
    real, calls = getattr(target, name), 0

    def called(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls >= at:
            raise error
        return real(*given, **more)

    return called


def test_a_save_fails_cleanly_at_each_of_its_writes(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tmp_path / f"step-{step:06d}" for step in (1, 2))
    opens = io.open
    fails_at = 0

    def opened(file: Any, mode: str = "r", *rest: Any, **more: Any) -> Any:
        made = opens(file, mode, *rest, **more)
        return NthWrite(made, fails_at) if set(mode) & set("wxa") and str(tmp_path) in str(file) else made

    monkeypatch.setattr(io, "open", opened)

    def extras(folder: Path) -> None:
        (folder / "config.json").write_text(json.dumps({"a": 1}))

    assert save(engine, first, {"step": 1}, extras) is None
    total = NthWrite.writes
    assert total > 20
    held = {path.name: path.read_bytes() for path in first.iterdir()}
    for number in range(1, total + 1):
        fails_at, NthWrite.writes = number, 0
        problem = save(engine, second, {"step": 2}, extras)
        assert problem is not None and "No space left on device" in problem and "\n" not in problem
        assert [path.name for path in tmp_path.iterdir()] == [first.name], number
    fails_at = 0
    assert {path.name: path.read_bytes() for path in first.iterdir()} == held
    assert save(engine, second, {"step": 2}, extras) is None
    assert Checkpoint(second).faults() == []
    assert all(torch.equal(tensor, weights(first)[name]) for name, tensor in weights(second).items())


@pytest.mark.parametrize(
    ("target", "name", "calls"),
    [(os, "fsync", 6), (Path, "mkdir", 1), (Path, "rename", 1)],
    ids=["fsync", "mkdir", "rename"],
)
def test_a_save_fails_cleanly_where_the_system_refuses(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch, target: Any, name: str, calls: int
) -> None:
    for at in range(1, calls + 1):
        with monkeypatch.context() as patched:
            patched.setattr(target, name, failing(target, name, at, OSError(errno.EIO, "Input/output error")))
            problem = save(engine, tmp_path / "step-000002", {"step": 2}, lambda _: None)
        assert problem is not None and "Input/output error" in problem
        assert list(tmp_path.iterdir()) == []
    assert save(engine, tmp_path / "step-000002", {"step": 2}, lambda _: None) is None


def test_a_file_system_that_syncs_no_folders_is_fine(
    tmp_path: Path, engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.fsync

    def fsync(handle: int) -> None:
        if os.path.isdir(f"/proc/self/fd/{handle}"):
            raise OSError(errno.EINVAL, "Invalid argument")
        real(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    assert save(engine, tmp_path / "step-000002", {"step": 2}, lambda _: None) is None
    assert Checkpoint(tmp_path / "step-000002").faults() == []


def test_a_tokenizer_that_finds_no_room_is_a_save_that_failed(tmp_path: Path, capfd: Any) -> None:
    """The tokenizers library raises a bare Exception."""

    class Tokenizer:
        def save_pretrained(self, folder: Path) -> None:
            (folder / "tokenizer.json").write_text("")
            raise Exception("No space left on device (os error 28)")

    with pytest.raises(SystemExit) as caught:
        fit(tmp_path / "run", "--max_train_steps", "1", tokenizer=Tokenizer())
    assert caught.value.code == 3
    assert Run(tmp_path / "run", []).checkpoints == []
    assert "step-000001 could not be written (No space left on device (os error 28))" in capfd.readouterr().err


def test_what_a_killed_save_left_is_in_nobodys_way(tmp_path: Path, engine: Any) -> None:
    left = tmp_path / ".step-000002.tmp"
    left.mkdir()
    (left / "model-00001-of-00001.safetensors").write_text("half")
    assert save(engine, tmp_path / "step-000002", {"step": 2}, lambda _: None) is None
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    assert Checkpoint(tmp_path / "step-000002").faults() == []


def test_a_checkpoint_of_that_step_is_not_written_over(tmp_path: Path, engine: Any) -> None:
    folder = tmp_path / "step-000002"
    assert save(engine, folder, {"step": 2}, lambda _: None) is None
    held = {path.name: path.read_bytes() for path in folder.iterdir()}
    problem = save(engine, folder, {"step": 2}, lambda _: None)
    assert problem is not None and "Directory not empty" in problem
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == held
    assert [path.name for path in tmp_path.iterdir()] == ["step-000002"]
    shutil.rmtree(folder)
