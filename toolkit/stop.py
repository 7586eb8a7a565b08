"""An end that all ranks agree on: a signal lets each of them finish the same unit of work, save, and leave.

A unit is what the loop does between two calls of `go_on()`: an optimizer step, a chunk of an evaluation. Every rank has
the same sequence of them. Signals reach one rank, or all at different times, so the threads of `toolkit.watch` agree
through the store, without a collective and without a cost per step: each freezes its rank's gate, so that no unit
starts, and reports how many were started. The last unit is the highest of these numbers.
"""

from __future__ import annotations

import atexit
import json
import multiprocessing.util  # its clean-up at exit is registered here, so that _end_workers comes before it
import os
import select
import signal as signals
import threading
import time
from pathlib import Path
from typing import Any

SIGNALS = (signals.SIGTERM, signals.SIGINT, signals.SIGUSR1)
POLL_SECONDS = 1.0
# torchrun and deepspeed's launch.py pass on what their whole group got, as SIGTERM the latter: one wish, two signals.
SAME_SECONDS = 1.5
# Their SIGTERM can overtake the SIGINT that the terminal sent to all: it waits this long for one to follow.
OVERTAKEN_SECONDS = 0.2
LAUNCHERS = ("accelerate", "accelerate-launch", "torchrun", "deepspeed")
LAUNCHER_MODULES = ("accelerate.commands", "torch.distributed", "deepspeed.launcher")


class Ended(SystemExit):
    """The run has ended before its end, and all ranks know; `toolkit.run` parts them and exits with the code."""


class Gate:
    """Lets the main thread start units until the ranks have agreed on the last one. Threads may share it."""

    def __init__(self) -> None:
        self.opened = False  # a run is in work
        self.end = ""  # what a signal then does, for people
        self.started = 0  # units
        self.asked: int | None = None  # the signal this rank got, or SIGTERM for a launcher that is gone
        self.signal: int | None = None  # the one that ended the run, once `go_on` has said so: equal on every rank
        self.woken = threading.Event()  # asked has changed
        self.leaving = False  # this process is on its way out: no signal hastens it
        self._last: tuple[int, int] | None = None  # unit, signal
        self._frozen = False
        self._changed = threading.Condition()

    def go_on(self) -> bool:
        """Count a unit as started and return True; False once the agreed last one is done."""
        with self._changed:
            while self._frozen and self._last is None:
                self._changed.wait()
            if self._last is not None and self.started >= self._last[0]:
                self.signal = self._last[1]
                return False
            self.started += 1
            return True

    def ask(self, number: int) -> None:
        """This rank is to end."""
        self.asked = self.asked or number
        self.woken.set()

    def freeze(self) -> tuple[int, bool]:
        """Start no unit until `decide`. Returns (units started, whether a run is in work)."""
        with self._changed:
            self._frozen = True
            return self.started, self.opened

    def decide(self, last: int, number: int) -> None:
        """Unit `last` is the last one, because of this signal."""
        with self._changed:
            self._last = last, number
            self._changed.notify_all()
        if self.opened:
            _tell(f"{signals.Signals(number).name}: {self.end}; a second signal ends it at once")


class Agreement:
    """One rank's part in finding the last unit. `poll` is called by its watch thread every now and then.

    Args:
        prefix: of its keys in the store, "stop" and "stop/RANK".
    """

    def __init__(self, gate: Gate, prefix: str, rank: int, world_size: int) -> None:
        self.gate, self.rank = gate, rank
        self.number: int | None = None  # the signal that the ranks are to end by
        self._wish = f"{prefix}stop"
        self._reports = [f"{prefix}stop/{rank}" for rank in range(world_size)]
        self._done = False

    @property
    def pending(self) -> bool:
        return self.number is not None and not self._done

    def poll(self, store: Any) -> bool:
        """One look at the store. True where the ranks are to end at once: one of them has no run in work."""
        if self._done:
            return False
        if self.number is None:
            if self.gate.asked is not None:  # the first rank's signal is everyone's
                store.compare_set(self._wish, "", str(self.gate.asked))
            if not store.check([self._wish]):
                return False
            self.number = int(store.get(self._wish))
            store.set(self._reports[self.rank], json.dumps(self.gate.freeze()))
        if not store.check(self._reports):
            return False
        started, opened = zip(*(json.loads(store.get(key)) for key in self._reports), strict=True)
        self._done = True
        if not all(opened):
            return True
        self.gate.decide(max(started), self.number)
        return False


class Listener:
    """Takes this process's signals, and notices that its launcher is gone, in a thread.

    A Python signal handler does not run while the main thread sits in a collective; the wake-up descriptor is written
    at once.
    """

    def __init__(self, gate: Gate, alone: bool) -> None:
        self.gate, self.alone = gate, alone
        self._first: float | None = None
        self._held = False  # a SIGTERM, which a SIGINT may follow
        self._read, self._write = os.pipe()
        os.set_blocking(self._write, False)
        signals.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        self._before = {number: signals.signal(number, _noted) for number in SIGNALS}
        self._thread = threading.Thread(target=self._run, name="oneloop-signals", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Signals do what they did before, unless they are ignored by now."""
        self.restore()
        os.write(self._write, b"\0")
        self._thread.join()
        os.close(self._read)
        os.close(self._write)

    def restore(self) -> None:
        """Give the handlers back; in a forked child too, whose signals would else be heard by its parent."""
        signals.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            if signals.getsignal(number) is _noted:
                signals.signal(number, handler)

    def _run(self) -> None:
        while True:
            if not self._held and self.gate.asked is None and orphaned():
                # `accelerate launch` with one process passes no signal on, it just ends.
                _tell("the launcher has ended, so this run ends as after SIGTERM")
                self._wish(signals.SIGTERM)
            if select.select([self._read], [], [], OVERTAKEN_SECONDS if self._held else POLL_SECONDS)[0]:
                number = os.read(self._read, 1)[0]
                if number == 0:
                    return
                if number in SIGNALS:
                    self._take(number)
            elif self._held:
                self._held = False
                self._wish(signals.SIGTERM)

    def _take(self, number: int) -> None:
        now = time.monotonic()
        if self.gate.leaving:
            return
        if self._first is not None and now - self._first > SAME_SECONDS:
            _tell(f"a second {signals.Signals(number).name}: ended at once, without a checkpoint")
            os._exit(128 + number)
        self._first = self._first or now
        self._held = number == signals.SIGTERM and self.gate.asked is None
        if not self._held:
            self._wish(number)

    def _wish(self, number: int) -> None:
        if self.gate.asked is None:
            self.gate.ask(number)
            if self.alone:
                self.gate.decide(self.gate.freeze()[0], number)


gate = Gate()
_listener: Listener | None = None


def listen(alone: bool) -> None:
    """Take signals from now on, once; `alone` where no watch agrees with other ranks. Only the main thread can."""
    global _listener
    if _listener is None and threading.current_thread() is threading.main_thread():
        atexit.register(_end_workers)
        _listener = Listener(gate, alone)


def unlisten() -> None:
    """Signals do again what they did before."""
    global _listener
    if _listener is not None:
        _listener.close()
    _listener = None


def open_(end: str = "ends with a checkpoint") -> None:
    """A run begins: signals ask for an agreed end from now on. Before, and after `close_`, they end the process."""
    listen(alone=True)
    gate.end = end
    gate.opened = True


def close_() -> None:
    """The run has ended, or failed."""
    gate.opened = False
    if _listener is not None and _listener.alone:
        if gate.signal is not None:
            ignore()  # what a launcher passes on may come late, and must not change the exit code
        unlisten()


def go_on() -> bool:
    """Called before each unit of work: True, do it; False, the last one is done on every rank: save and leave."""
    return gate.go_on()


def exit_code(number: int | None = None) -> int:
    """130 after SIGINT, else 143; of the signal that ended the run where none is given."""
    return 130 if (number or gate.signal) == signals.SIGINT else 143


def reason(number: int | None = None) -> str:
    """Why the run ended before its end, for people."""
    name = signals.Signals(number or gate.signal or signals.SIGTERM).name
    return "interrupted" if name == "SIGINT" else f"ended by {name}"


def ignore(_worker: int = 0) -> None:
    """Ignore the signals from now on: while the ranks part, and in a DataLoader's workers (its `worker_init_fn`).

    Launchers send a signal to all processes below them; the rank still needs its workers until its last step.
    """
    for number in SIGNALS:
        signals.signal(number, signals.SIG_IGN)


def orphaned() -> bool:
    """Whether a launcher started this process, and has ended since."""
    return _LAUNCHED and os.getppid() != _PARENT


def _noted(*_: object) -> None:
    """In place of KeyboardInterrupt in the middle of a step: the listener's thread acts."""


def _tell(text: str) -> None:
    if os.environ.get("RANK", "0") == "0":
        os.write(2, f"oneloop: {text}\n".encode())


def _end_workers() -> None:
    """Workers that ignore SIGTERM would keep multiprocessing's own clean-up waiting."""
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def _in_child() -> None:
    global _listener
    if _listener is not None:
        _listener.restore()
    _listener = None


def _is_launcher(process: int) -> bool:
    try:
        tokens = Path(f"/proc/{process}/cmdline").read_text(encoding="utf-8", errors="replace").split("\0")
    except OSError:
        return False
    return any(os.path.basename(token) in LAUNCHERS or token.startswith(LAUNCHER_MODULES) for token in tokens[:5])


_PARENT = os.getppid()
_LAUNCHED = _is_launcher(_PARENT)
os.register_at_fork(after_in_child=_in_child)
