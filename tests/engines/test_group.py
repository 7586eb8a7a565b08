"""The lock of a native op's build: a killed build's is removed, a running one's is waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from toolkit.engines import group


@pytest.fixture
def lock(tmp_path, monkeypatch):
    monkeypatch.setattr(group, "OP_POLL_SECONDS", 0.05)
    monkeypatch.delenv("RANK", raising=False)
    path = tmp_path / "lock"
    path.touch()
    return path


def age(lock, seconds):
    then = time.time() - seconds
    os.utime(lock, (then, then))


def test_an_old_lock_without_a_build_is_removed_and_said(lock, capfd):
    age(lock, 60)
    group.clear_stale_lock(lock.parent)
    assert not lock.exists()
    assert capfd.readouterr().err == f"oneloop: {lock} is left over from a build that was killed 60 s ago: removed\n"


def test_no_lock_is_no_matter(tmp_path, capfd):
    group.clear_stale_lock(tmp_path)
    assert capfd.readouterr().err == ""


def waiting(lock):
    thread = threading.Thread(target=group.clear_stale_lock, args=(lock.parent,), daemon=True)
    thread.start()
    thread.join(0.5)
    return thread


def test_a_lock_is_waited_for_while_a_process_works_in_its_folder(lock, capfd):
    age(lock, 60)
    build = subprocess.Popen([sys.executable, "-c", "input()"], cwd=lock.parent, stdin=subprocess.PIPE)
    try:
        thread = waiting(lock)
        assert thread.is_alive()
        assert lock.exists()
        lock.unlink()  # the build has ended
        thread.join(2)
        assert not thread.is_alive()
    finally:
        build.communicate(b"\n")
    assert capfd.readouterr().err == ""


def test_a_young_lock_is_given_its_time(lock, capfd, monkeypatch):
    monkeypatch.setattr(group, "STALE_LOCK_SECONDS", 1.0)
    thread = waiting(lock)
    assert thread.is_alive()
    assert lock.exists()
    thread.join(3)
    assert not lock.exists()
    assert "was killed 1 s ago: removed" in capfd.readouterr().err
