"""Who failed: a thread on each rank that beats in the launcher's store, so that the cause is named and nobody hangs.

A Python signal handler does not run while its rank sits in a collective, and groups that DeepSpeed makes wait 30
minutes, whatever timeout the first group has. So a thread looks after the end of a run: one that a rank's failure
brings, and one that a signal asks for (`toolkit.stop`).
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch.distributed as dist

from toolkit import stop as ends
from toolkit.errors import PREFIX, UserError

BEAT_SECONDS = 1.0
AGREE_SECONDS = 0.1  # between looks, once the ranks are asked to end
DEAD_SECONDS = 4.0  # no beat for so long, once a collective has failed: the rank is gone
STUCK_SECONDS = 12.0  # the same once the ranks are asked to end, where its process is still there, or elsewhere
GRACE_SECONDS = 8.0  # for the main thread to end by itself once a cause is known
# The fifth is what a store says that its keeper has taken along.
PEER_SIGNS = (
    "closed by peer",
    "reset by peer",
    "gloo",
    "nccl",
    "connection was likely closed",
    "broken pipe",
    "connection refused",
    "timed out",
)


class Watch:
    """Heartbeats and the first error of a run, kept in the store that the ranks met at."""

    def __init__(self, rank: int, world_size: int, timeout: float) -> None:
        self.rank, self.world_size, self.timeout = rank, world_size, timeout
        self.step = 0  # optimizer step in work, kept by the loop
        self.output_dir: Path | None = None  # where summary.json lies
        # A client of its own: a wait of the main thread would block this one's calls.
        self._store = _connect(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        # torchrun's store outlives a restart of the ranks: the last attempt's error is not this one's.
        self._prefix = f"oneloop/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/"
        host, port = self._meet_at_rank_0()
        self.store = _connect(host, port)  # the main thread's
        self._spare: dist.TCPStore | None = _connect(host, port)
        self._known: dict[str, Any] | None = None  # why the run fails
        self._beats: dict[int, tuple[bytes, float]] = {}
        self._stopped = threading.Event()
        self._leaving = threading.Lock()
        self._end = ends.Agreement(ends.gate, self._prefix, rank, world_size)
        ends.listen(alone=False)
        self._beat()
        self._thread = threading.Thread(target=self._run, name="oneloop-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the thread, before the ranks part: a store that is gone then means nothing."""
        self._stopped.set()
        ends.gate.woken.set()
        self._thread.join()
        ends.unlisten()

    def fail(self, error: BaseException) -> NoReturn:
        """The main thread raised: agree on the first cause, let one rank tell it, end this process."""
        self._stopped.set()
        user = list(error.lines) if isinstance(error, UserError) else None
        if user is None and self._known:
            cause = self._known
        elif user is None and any(sign in str(error).lower() for sign in PEER_SIGNS):
            cause = self._wait_for_cause(DEAD_SECONDS + 3) or self._claim(self.rank, self.step, _text(error))
        else:
            cause = self._claim(self.rank, self.step, _text(error), user)
        if cause["rank"] == self.rank and user is None:
            traceback.print_exception(error, file=sys.stderr)
        self._leave(cause)

    def _run(self) -> None:
        known_since: float | None = None
        while not self._stopped.is_set():
            if ends.gate.woken.wait(AGREE_SECONDS if self._end.pending else BEAT_SECONDS):
                ends.gate.woken.clear()
            try:
                self._beat()
                if self._end.poll(self._store):
                    self._end_at_once()
                cause = self._cause() or self._known or self._silent()
                # A launcher sends SIGTERM when another rank has failed: tell why before this one goes too.
                if cause is None and self._end.number is not None:
                    cause = self._gone(STUCK_SECONDS)
            except (dist.DistError, RuntimeError) as error:
                cause = self._known or self._lost_store(error)
            self._known = cause
            if cause:
                known_since = known_since or time.monotonic()
                # Asked to end, the main thread may wait for the others and does not end by itself.
                late = self._end.number is not None or time.monotonic() - known_since > GRACE_SECONDS
                if late and not self._stopped.is_set():
                    self._leave(cause)

    def _end_at_once(self) -> NoReturn:
        """No run in work yet, or no more: rank 0 tells it, and goes last, since it may keep the store."""
        self._leaving.acquire()
        ends.gate.leaving = True  # the launcher ends this rank once the others have gone
        if self.rank == 0:
            time.sleep(BEAT_SECONDS)
            record(self.output_dir, {"rank": 0, "step": self.step, "message": ends.reason(self._end.number)})
            print(f"oneloop: {ends.reason(self._end.number)} at step {self.step}", file=sys.stderr, flush=True)
        os._exit(ends.exit_code(self._end.number))

    def _beat(self) -> None:
        beat = f"{time.monotonic()} {self.step} {os.getpid()} {socket.gethostname()}"
        self._store.set(f"{self._prefix}beat/{self.rank}", beat)

    def _cause(self) -> dict[str, Any] | None:
        key = f"{self._prefix}error"
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _claim(self, rank: int, step: int, message: str, user: list[str] | None = None) -> dict[str, Any]:
        """Store a cause unless there is one; the first stays."""
        cause = {"rank": rank, "step": step, "message": message, "user": user, "reporter": self.rank}
        try:
            return json.loads(self._store.compare_set(f"{self._prefix}error", "", json.dumps(cause)))
        except (dist.DistError, RuntimeError):
            return cause

    def _stale(self, ranks: range | list[int]) -> dict[int, tuple[float, int]]:
        """{rank: (seconds without a beat, its step)} as seen from here."""
        now, stale = time.monotonic(), {}
        for rank in ranks:
            key = f"{self._prefix}beat/{rank}"
            value = self._store.get(key) if self._store.check([key]) else b"0 0 0 -"
            if rank not in self._beats or self._beats[rank][0] != value:
                self._beats[rank] = (value, now)
            # A beat is up to a second old; a rank that others wait for is in the step that they are in.
            stale[rank] = (now - self._beats[rank][1], max(int(value.split()[1]), self.step))
        return stale

    def _silent(self) -> dict[str, Any] | None:
        """A rank that beats no more (stopped, its network cut): rank 0 looks at all, rank 1 at rank 0."""
        others = range(1, self.world_size) if self.rank == 0 else [0] if self.rank == 1 else []
        for rank, (seconds, step) in self._stale(others).items():
            if seconds > self.timeout:
                return self._claim(rank, step, f"silent for {seconds:.0f} s (--timeout {self.timeout:g})")
        return None

    def _wait_for_cause(self, seconds: float) -> dict[str, Any] | None:
        """The cause another rank gave, or the rank that stopped beating, within so many seconds."""
        end = time.monotonic() + seconds
        try:
            while time.monotonic() < end:
                if cause := self._cause() or self._gone(DEAD_SECONDS):
                    return cause
                self._beat()
                time.sleep(BEAT_SECONDS / 2)
        except (dist.DistError, RuntimeError) as error:
            return self._lost_store(error) or self._wait_for_cause(seconds)
        return None

    def _gone(self, patience: float) -> dict[str, Any] | None:
        """A rank that stopped beating: its process is gone, or it has been silent for so many seconds."""
        for rank, (silent, step) in self._stale(range(self.world_size)).items():
            if rank != self.rank and silent > DEAD_SECONDS:
                lives = _lives(self._beats[rank][0])
                if lives is False or silent > patience:
                    here = f"silent for {silent:.0f} s, its process is still there (stopped?)"
                    return self._claim(rank, step, here if lives else "ended without a word (killed, or out of memory)")
        return None

    def _meet_at_rank_0(self) -> tuple[str, int]:
        """Host and port of a store that rank 0 keeps: torchrun's is in its agent, and goes with it."""
        key = f"{self._prefix}kept"
        if self.rank == 0:
            with socket.create_connection((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))) as way:
                host = way.getsockname()[0]  # under which this rank is known where all have met
            listener = socket.create_server((host, 0))  # there alone: a TCPStore listens on every address by itself
            port = listener.getsockname()[1]
            more = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listener.detach()}
            self._kept = _connect(host, port, **more)
            self._store.set(key, f"{host} {port}")
        host, told = self._store.get(key).decode().split()
        return host, int(told)

    def _lost_store(self, error: Exception) -> dict[str, Any] | None:
        """Go on with the spare store: the launcher is gone, so the run is to end. None left: rank 0 is the cause."""
        if self._spare is not None:
            self._store, self._spare = self._spare, None
            ends.gate.ask(self._end.number or signal.SIGTERM)
            self._end = ends.Agreement(ends.gate, self._prefix, self.rank, self.world_size)
            return None
        message = f"ended without a word: the store it kept is gone ({_text(error)})"
        return {"rank": 0, "step": self.step, "message": message, "user": None, "reporter": self.rank}

    def _leave(self, cause: dict[str, Any]) -> NoReturn:
        """Tell the cause if it is this rank's to tell, and end at once: collectives in flight never return."""
        self._leaving.acquire()  # of two threads that come here the first one tells it
        code = 1
        if cause["user"]:
            code = 2
            if self.rank == 0:
                print("\n".join(PREFIX + line for line in cause["user"]), file=sys.stderr)
                time.sleep(2 * BEAT_SECONDS)  # for the others to read the cause: this rank may keep the store
            elif cause["rank"] == self.rank:
                time.sleep(GRACE_SECONDS)  # rank 0 tells it; were this one to go first, the launcher would end rank 0
        elif cause["reporter"] == self.rank:
            record(self.output_dir, cause)
            print(f"{PREFIX}rank {cause['rank']} failed at step {cause['step']}: {cause['message']}", file=sys.stderr)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _connect(host: str, port: int, **more: Any) -> dist.TCPStore:
    return dist.TCPStore(host, port, timeout=timedelta(seconds=60), **more)


current: Watch | None = None


def store() -> dist.Store:
    """The main thread's store, which a launcher that is killed does not take with it."""
    return current.store if current else dist.distributed_c10d._get_default_store()


def start(rank: int, world_size: int, timeout: float) -> None:
    """Begin to watch this process's ranks, once."""
    global current
    current = current or Watch(rank, world_size, timeout)


def stop() -> None:
    """End the watch, before the process group."""
    global current
    if current:
        current.stop()
    current = None


def _lives(beat: bytes) -> bool | None:
    """Whether the process that gave this beat has not ended; None where it is on another machine."""
    _, _, process, host = beat.decode().split()
    if host != socket.gethostname():
        return None
    try:
        state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in ("Z", "X")


def record(output_dir: Path | None, cause: dict[str, Any]) -> None:
    """Write the cause into summary.json, whole or not at all."""
    if output_dir is None or not (path := output_dir / "summary.json").exists():
        return
    summary = json.loads(path.read_text(encoding="utf-8"))
    summary["error"] = {name: cause[name] for name in ("rank", "step", "message")}
    temporary = path.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")
    temporary.replace(path)


def _text(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
