"""Every signal to every target of every launcher: do all ranks end at one step, with one whole checkpoint, and when?

    python tests/launch/signal_matrix.py [--launcher torchrun ...] [--signal TERM ...]

Exits 1 where one does not. Takes 10 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import launch_matrix

from toolkit.checkpoint.reader import Checkpoint

ROOT = launch_matrix.ROOT
SCRIPT = str(Path(__file__).with_name("signalled.py").relative_to(ROOT))
SIGNALS = {name: getattr(signal, f"SIG{name}") for name in ("TERM", "INT", "USR1")}
# name -> (launcher, setup, ranks, what a signal may be sent to)
# "front" is the command that was typed, "below" the process that started the ranks, "group" the front's process group,
# which torchrun's ranks are not in, and "job" every process of the launch, workers of the loaders included, as Slurm's.
LAUNCHERS = {
    "torchrun": ("torchrun", "", 2, ("rank", "ranks", "front", "group", "job")),
    "accelerate, 2": ("accelerate", "ddp", 2, ("rank", "ranks", "front", "group", "job")),
    "accelerate, 1": ("accelerate", "single", 1, ("rank", "front", "group", "job")),
    # Its front end passes nothing on and leaves all below it running: not for signals.
    "deepspeed": ("deepspeed", "zero1", 2, ("rank", "ranks", "below", "group", "job")),
    "python": ("python", "", 1, ("rank", "group")),
}
# A torchrun or accelerate that does not know USR1 dies of it; torch 2.13 takes the names from here.
FRONT = {"PET_SIGNALS_TO_HANDLE": "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1"}
STEPS_FIRST = 5


@dataclass
class Ended:
    """A launch that a signal has ended, and what it left."""

    output_dir: Path
    output: str
    returncode: int  # the front end's
    seconds: float  # from the signal until no process was left
    left: list[str]  # processes after a minute
    codes: list[int | None]  # of the ranks
    units: list[int | None]  # at which they stopped
    checkpoints: list[str]
    faults: list[str]
    cause: str  # in summary.json


def expected_code(name: str, number: int, to: str) -> int:
    """The ranks' exit code. Some launchers make SIGTERM of SIGINT, and one just dies."""
    unheard = (name, to) in (("deepspeed", "below"), ("accelerate, 1", "front"))
    return 130 if number == signal.SIGINT and not unheard else 143


def signalled(name: str, number: int, to: str, folder: Path, *more: str) -> Ended:
    """Launch the script, send it a signal once it is in work, and wait until all its processes are gone."""
    launcher, setup, ranks, _ = LAUNCHERS[name]
    folder.mkdir()
    output_dir = folder / "run"
    line = launch_matrix.command(launcher, setup, [SCRIPT, *more, "--logging_steps", "1"], ranks)
    path = f"{launch_matrix.BIN}:{os.environ['PATH']}"
    given = {**os.environ, "OMP_NUM_THREADS": "1", "PATH": path, "ONELOOP_LEFT": str(folder), **FRONT}
    with (folder / "output").open("w") as output:
        front = subprocess.Popen(
            [*line, "--output_dir", str(output_dir)],
            cwd=ROOT,
            env=given,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # A shell's background job ignores SIGINT, and so would a launcher started from one.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
    wait_until(lambda: front.poll() is not None or rows(output_dir) >= STEPS_FIRST, 120)
    began = time.monotonic()
    send(number, to, front.pid, folder)
    wait_until(lambda: front.poll() is not None and not processes(str(output_dir)), 60)
    seconds = time.monotonic() - began
    left = processes(str(output_dir))
    for process, _ in left:
        os.kill(process, signal.SIGKILL)
    ends = [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(ranks)]
    kept = sorted((output_dir / "checkpoints").glob("*"))
    return Ended(
        output_dir,
        (folder / "output").read_text(),
        front.wait(),
        seconds,
        [line for _, line in left],
        [end.get("code") for end in ends],
        [end.get("units") for end in ends],
        [path.name for path in kept],
        [fault for path in kept for fault in Checkpoint(path).faults()],
        (json.loads((output_dir / "summary.json").read_text())["error"] or {}).get("message", ""),
    )


def send(number: int, to: str, front: int, folder: Path) -> None:
    ranks = [json.loads(path.read_text()) for path in sorted(folder.glob("rank-*.json"))]
    if to == "group":
        os.killpg(front, number)
        return
    targets = {
        "rank": [ranks[-1]["process"]],
        "ranks": [rank["process"] for rank in ranks],
        "front": [front],
        "below": [ranks[0]["parent"]],
        "job": [process for process, _ in processes(str(folder / "run"))],
    }
    for process in targets[to]:
        os.kill(process, number)


def faults(ended: Ended, code: int) -> list[str]:
    """What is wrong with an end."""
    found = []
    if set(ended.codes) != {code}:
        found.append(f"the ranks' exit codes are {ended.codes}, not {code}")
    if len(set(ended.units)) != 1 or ended.checkpoints != [f"step-{ended.units[0]:06}"]:
        found.append(f"stopped at {ended.units}, checkpoints {ended.checkpoints}")
    if ended.left:
        found.append(f"left running: {ended.left}")
    if ended.seconds > 30:
        found.append("more than the 30 s that launchers give")
    return found + ended.faults


def rows(output_dir: Path) -> int:
    try:
        return len((output_dir / "metrics.jsonl").read_text().splitlines())
    except OSError:
        return 0


def processes(text: str) -> list[tuple[int, str]]:
    """(process, command line) of those that name this folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            command = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in command and path.parent.name != str(os.getpid()):
            found.append((int(path.parent.name), command))
    return found


def wait_until(done, seconds: float) -> None:  # type: ignore[no-untyped-def]
    end = time.monotonic() + seconds
    while not done() and time.monotonic() < end:
        time.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launcher", nargs="+", choices=LAUNCHERS, default=list(LAUNCHERS))
    parser.add_argument("--signal", nargs="+", choices=SIGNALS, default=list(SIGNALS))
    chosen = parser.parse_args()
    bad = 0
    print(f"{'launcher':13} {'signal':6} {'to':5} {'front':>5} {'ranks':>5} {'step':>5} {'gone':>7}")
    with tempfile.TemporaryDirectory() as temporary:
        for name in chosen.launcher:
            for number in map(SIGNALS.get, chosen.signal):
                for to in LAUNCHERS[name][3]:
                    kind = signal.Signals(number).name[3:]
                    ended = signalled(name, number, to, Path(temporary, f"{name}-{kind}-{to}"))
                    wrong = faults(ended, expected_code(name, number, to))
                    bad += bool(wrong)
                    print(
                        f"{name:13} {kind:6} {to:5} {ended.returncode:5} {ended.codes[0]!s:>5} {ended.units[0]!s:>5}"
                        f" {ended.seconds:5.1f} s  {'; '.join(wrong)}",
                        flush=True,
                    )
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
