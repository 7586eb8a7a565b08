"""Starts the setups one after another, each with its real launcher, and ends whatever is left of one."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import psutil
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from toolkit.compare.runs import Run, read_run
from toolkit.compare.setups import Start
from toolkit.errors import PREFIX, UserError
from toolkit.launch import say

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
GRACE_SECONDS = 30.0  # that a launcher has to end its ranks
_POLL_SECONDS = 0.5  # looking at the processes takes from their own time
_LAST_LINES = 8  # of a log, where a failed run has no line of ours


class Interrupted(Exception):
    """SIGINT or SIGTERM came; `code` is the exit code that says so."""

    def __init__(self, code: int) -> None:
        self.code = code


def run_all(starts: Sequence[Start], steps: int) -> Iterator[Run]:
    """The run of each start, in order, one at a time. One that fails does not stop the others.

    Raises:
        Interrupted: after the running one's processes are gone.
    """
    with _signals(), _progress() as progress:
        bar = progress.add_task("", total=steps)
        for number, start in enumerate(starts, 1):
            name = f"{start.label} ({number}/{len(starts)})"
            progress.reset(bar, description=name, total=steps)
            if start.errors:
                _say(progress, f"{name}: not started: {start.errors[0]}")
                yield Run(start.label, start.folder, errors=start.errors)
                continue
            if progress.disable:
                say(f"{name}: {start.ranks} rank{'s' * (start.ranks > 1)}, output in {start.log}")
            began = time.monotonic()
            try:
                code = _run(start, lambda done: progress.update(bar, completed=done))
                run = read_run(start.folder, start.label, errors=() if code == 0 else _errors(start, code))
            except OSError as error:  # no launcher, or no room for its log
                run = Run(start.label, start.folder, errors=(f"cannot be started: {error}",))
            except UserError as error:
                errors = tuple(
                    f"ended well, but in {start.folder} {getattr(line, 'reason', line)}" for line in error.lines
                )
                run = Run(start.label, start.folder, errors=errors)
            progress.update(bar, completed=len(run.rows))
            what = f"failed: {run.errors[0]}" if run.errors else "done"
            _say(progress, f"{name}: {what}, {time.monotonic() - began:.0f} s")
            yield run


def _run(start: Start, tell: Callable[[int], None]) -> int:
    """The launcher's exit code; nothing that it started is left when this returns or raises."""
    start.log.parent.mkdir(parents=True, exist_ok=True)
    with start.log.open("w", encoding="utf-8") as log:
        process = subprocess.Popen(
            start.command,
            env=dict(start.environ),
            stdin=subprocess.DEVNULL,  # nobody answers a question there
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    seen: dict[int, psutil.Process] = {}
    try:
        while not _ended(process):
            _see(process.pid, seen)
            tell(_steps(start))
    except BaseException:
        _end(process, seen)
        raise
    _end(process, seen)
    return process.returncode


def _ended(process: subprocess.Popen[bytes]) -> bool:
    try:
        process.wait(_POLL_SECONDS)
    except subprocess.TimeoutExpired:
        return False
    return True


def _see(pid: int, seen: dict[int, psutil.Process]) -> None:
    """Remember the launcher's descendants: a rank in a session of its own outlives a launcher that is killed."""
    try:
        seen.update((child.pid, child) for child in psutil.Process(pid).children(recursive=True))
    except psutil.NoSuchProcess:
        pass


def _end(process: subprocess.Popen[bytes], seen: dict[int, psutil.Process]) -> None:
    """SIGTERM to the launcher, which hands it to its ranks; what is there after the grace is killed."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    left = [child for child in seen.values() if child.is_running()]
    _, left = psutil.wait_procs(left, timeout=1.0)
    for child in left:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            pass
    psutil.wait_procs(left, timeout=GRACE_SECONDS)


def _steps(start: Start) -> int:
    """Rows that the run has written."""
    try:
        return (start.folder / "metrics.jsonl").read_bytes().count(b'"loss"')
    except OSError:
        return 0


def _errors(start: Start, code: int) -> tuple[str, ...]:
    """Lines of ours in the log, else its last ones."""
    lines = [line.strip() for line in start.log.read_text(encoding="utf-8", errors="replace").splitlines()]
    ours = list(dict.fromkeys(line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)))
    return tuple(ours) or (f"ended with {code}", *[line for line in lines if line][-_LAST_LINES:])


def _progress() -> Progress:
    return Progress(
        TextColumn("{task.description}", style="bold", markup=False),  # a label is the user's
        BarColumn(bar_width=20),
        TextColumn("step {task.completed:.0f}/{task.total:.0f}"),
        TimeElapsedColumn(),
        console=Console(file=sys.stderr),
        disable=not sys.stderr.isatty(),
    )


def _say(progress: Progress, text: str) -> None:
    """On a terminal above the bar, which has the last line."""
    if progress.disable:
        say(text)
    else:
        progress.console.print(Text(f"oneloop: {text}"), soft_wrap=True)


@contextmanager
def _signals() -> Iterator[None]:
    """SIGNALS become `Interrupted`, once: a second Ctrl-C does not cut the end of the first short."""

    def stop(number: int, _: FrameType | None) -> None:
        for each in SIGNALS:
            signal.signal(each, signal.SIG_IGN)
        with contextlib.suppress(OSError):  # SIGHUP: the terminal is gone
            say("ending the running setup; what is done is kept")
        raise Interrupted(128 + number)

    before = {number: signal.signal(number, stop) for number in SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def deferred() -> Iterator[list[int]]:
    """The numbers of signals that come while nothing runs: what was measured is told before they end the command."""
    came: list[int] = []
    before = {number: signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS}
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
