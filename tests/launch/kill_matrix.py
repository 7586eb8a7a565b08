"""`kill -9` of a rank, again and again: does each start go on from the last whole checkpoint, to the same weights?

    python tests/launch/kill_matrix.py [--setup ddp zero2 zero3 pipeline] [--kills N]

Under each setup one run is killed N times (13, pipeline 11), every other time while a checkpoint is being written, and
each time started again with --resume_from_checkpoint auto. The end is compared, bit for bit, with a run that nothing
interrupted. Prints a line a kill and the count; exits 1 where anything is not so. Takes 40 minutes on 2 cores.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

import launch_matrix
import torch

from toolkit.checkpoint import Checkpoint, find, newest_whole
from toolkit.errors import UserError

ROOT = launch_matrix.ROOT
SCRIPT = str(Path(__file__).with_name("killed.py").relative_to(ROOT))
KILLS = {"ddp": 13, "zero2": 13, "zero3": 13, "pipeline": 11}
WIDTH = 12800  # 210 MB of weights, checkpoints of 630 MB
EVERY = 3  # steps between checkpoints
GONE_SECONDS = 60.0  # from the kill to the end of the last process
LIFE_SECONDS = 600.0  # from a start to its kill, on a busy machine
POLL_SECONDS = 0.002
WRITING = ("its folder is made", "its first bytes", "half of it", "its tensors are whole", "its manifest is written")
BETWEEN = ("a step after a checkpoint", "the step before the next", "an old one is removed")


@dataclass(frozen=True)
class Plan:
    """One kill: of which rank, after how many checkpoints of this start, at which moment."""

    rank: int
    saves: int
    moment: str


@dataclass
class Kill:
    """What one kill hit and left, and what the next start made of it."""

    plan: Plan
    in_save: bool = False  # the temporary folder of a checkpoint being written was there
    left: bool = False  # and stayed
    in_removal: bool = False  # one of a checkpoint being removed stayed
    whole: int = 0  # step of the newest whole checkpoint
    seconds: float = 0.0  # until all processes were gone
    resumed: int | None = None  # step that the next start went on from
    faults: list[str] = field(default_factory=list)


@dataclass
class Chain:
    """One run killed several times, and the run it is compared with."""

    setup: str
    kills: list[Kill]
    faults: list[str]  # of the end: weights, metrics, exit code
    weights_equal: bool = False

    @property
    def sound(self) -> bool:
        return self.weights_equal and not self.faults and not any(kill.faults for kill in self.kills)


def plans(kills: int, first: int = 0) -> list[Plan]:
    """Every other one falls into a write; `first` shifts the moments, so that setups do not all begin with the same."""
    made = []
    for number in range(kills):
        n = first + number // 2
        if number % 2 == 0:
            made.append(Plan(n % 2, n // 2 % 2 if number else 1, WRITING[n % len(WRITING)]))
        else:
            made.append(Plan(n % 2, 1, BETWEEN[n % len(BETWEEN)]))
    return made


class Run:
    """One folder of a run, its starts, and where it stands while it is watched from outside."""

    def __init__(self, setup: str, folder: Path, width: int, steps: int) -> None:
        self.folder, self.ranks = folder / "run", folder / "ranks"
        self.ranks.mkdir(parents=True)
        words = f"--width {width} --max_train_steps {steps} --checkpointing_steps {EVERY} --save_total_limit 2"
        words += f" --logging_steps 1 --output_dir {self.folder} --resume_from_checkpoint auto"
        self._line = launch_matrix.command("torchrun", setup, [SCRIPT, *words.split()])
        self._starts = 0

    def start(self) -> subprocess.Popen[bytes]:
        for path in self.ranks.iterdir():
            path.unlink()
        self._starts += 1
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONELOOP_RANKS": str(self.ranks)}
        with self.log.open("wb") as log:
            return subprocess.Popen(self._line, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Leave nothing behind where a start hangs, or this script is interrupted."""
        for each in self.living():
            with suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        process.wait()

    @property
    def log(self) -> Path:
        """Output of the last start."""
        return self.ranks.with_name(f"start-{self._starts}.txt")

    def told(self, rank: int) -> tuple[int, int]:
        """(process id, the group's port) of a rank."""
        process, port = (self.ranks / f"rank-{rank}").read_text().split()
        return int(process), int(port)

    def resumed(self) -> int | None:
        """The step that the last start says it went on from; 0 for a fresh one."""
        text = self.log.read_text()
        found = re.search(r"^oneloop: resumed from .*: step (\d+)", text, re.MULTILINE)
        return int(found[1]) if found else 0 if "starting fresh" in text else None

    def rows(self) -> list[dict[str, Any]]:
        path = self.folder / "metrics.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def step(self) -> int:
        return max((row["step"] for row in self.rows()), default=0)

    def temporary(self, older: bool = False) -> bool:
        """Whether there is a temporary folder of a checkpoint being written, or of an `older` one being removed."""
        newest = max(map(_step, find(self.folder)), default=0)
        return any((_step(path) < newest) == older for path in (self.folder / "checkpoints").glob(".step-*.tmp"))

    def living(self) -> list[int]:
        """Processes whose command line names this folder: the launcher, ranks, and what they started."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.folder).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                continue
        return found


def run(setup: str, chosen: list[Plan], folder: Path, width: int, say: Callable[[str], None] = print) -> Chain:
    """Train uninterrupted, then kill by plan and compare; `folder` receives both runs."""
    # Three more checkpoints than planned: a kill that comes late leaves one more.
    steps = EVERY * (sum(plan.saves for plan in chosen) + 3) + 2
    steps += EVERY * sum(plan.moment in WRITING[3:] for plan in chosen)
    chain = Chain(setup, [], [])
    reference = Run(setup, folder / "uninterrupted", width, steps)
    process = reference.start()
    try:
        if (code := process.wait(3 * LIFE_SECONDS)) != 0:
            chain.faults.append(f"the uninterrupted run ended with {code}: {_tail(reference)}")
            return chain
    finally:
        reference.end(process)
    size = sum(entry["size"] for entry in newest_whole(reference.folder).files.values())

    killed = Run(setup, folder / "killed", width, steps)
    whole = 0
    for number, plan in enumerate([*chosen, None], 1):
        process = killed.start()
        kill = None
        try:
            if plan is None:
                if (code := process.wait(LIFE_SECONDS)) != 0:
                    chain.faults.append(f"the last start ended with {code}: {_tail(killed)}")
            else:
                kill = _kill(killed, process, plan, whole, size)
        finally:
            killed.end(process)
        if chain.kills:
            last = chain.kills[-1]
            last.resumed = killed.resumed()
            if last.resumed != last.whole:
                last.faults.append(f"the next start went on from {last.resumed}, not {last.whole}: {_tail(killed)}")
            say(_line(setup, number - 1, last))
        if kill is not None:
            chain.kills.append(kill)
            whole = kill.whole
    if not chain.faults:
        chain.faults, chain.weights_equal = compare(killed, reference)
    for text in chain.faults:
        say(f"{setup:9} {text}")
    return chain


def _kill(run: Run, process: subprocess.Popen[bytes], plan: Plan, whole: int, size: int) -> Kill:
    """Wait for the moment and kill, in a start that goes on from step `whole`; look at what is left."""
    kill, end = Kill(plan), time.monotonic() + LIFE_SECONDS
    while not _reached(run, plan, whole + EVERY * plan.saves, size):
        if process.poll() is not None or time.monotonic() > end:
            kill.faults.append(f"ended with {process.poll()} at step {run.step()} before the kill: {_tail(run)}")
            break
        time.sleep(POLL_SECONDS)
    else:
        victim, port = run.told(plan.rank)
        os.kill(victim, signal.SIGKILL)
        kill.in_save = run.temporary()
        began = time.monotonic()
        while (left := run.living()) and time.monotonic() < began + GONE_SECONDS:
            process.poll()  # or it stays as a zombie
            time.sleep(0.05)
        kill.seconds = time.monotonic() - began
        if left:
            kill.faults.append(f"{len(left)} processes live {GONE_SECONDS:.0f} s after the kill: {_tail(run)}")
        kill.faults += [f"{path} is left" for path in Path("/dev/shm").glob(f"deepspeed_allreduce_buffer_*_{port}_*")]
        if f"oneloop: error: rank {plan.rank} failed at step" not in run.log.read_text():
            kill.faults.append(f"rank {plan.rank} is not named: {_tail(run)}")
    kill.left, kill.in_removal = run.temporary(), run.temporary(older=True)
    for folder in find(run.folder):  # none is half there, neither the newest nor an older one
        try:
            kill.faults += Checkpoint(folder).faults()
            kill.whole = _step(folder)
        except UserError as error:
            kill.faults += error.lines
    return kill


def _reached(run: Run, plan: Plan, last: int, size: int) -> bool:
    """Whether the moment is there, or is missed; `last` is the step of the checkpoint before it."""
    if run.resumed() is None:
        return False  # what the start before has left is still there
    folder = run.folder / "checkpoints"
    if plan.moment in WRITING:
        written = folder / f"step-{last + EVERY:06d}"
        try:
            sizes = {path.name: path.stat().st_size for path in written.with_name(f".{written.name}.tmp").iterdir()}
        except FileNotFoundError:
            return written.exists()
        held = sum(sizes.values())
        there = (True, held > 0, held >= size / 2, "oneloop.json" in sizes, "manifest.json" in sizes)
        return there[WRITING.index(plan.moment)]
    if not (folder / f"step-{last:06d}").exists():
        return False
    if plan.moment == BETWEEN[2]:
        return run.temporary(older=True) or run.step() > last + EVERY
    return run.step() > last + BETWEEN.index(plan.moment)


def compare(killed: Run, reference: Run) -> tuple[list[str], bool]:
    """(what differs, whether the weights are equal), bit for bit."""
    faults: list[str] = []
    mine, theirs = newest_whole(killed.folder), newest_whole(reference.folder)
    if mine.step != theirs.step:
        faults.append(f"the last checkpoint is of step {mine.step}, not {theirs.step}")
    apart = [name for name in theirs.names if not torch.equal(mine.weight(name), theirs.weight(name))]
    if apart:
        faults.append(f"weights differ: {', '.join(apart)}")
    rows, wanted = killed.rows(), reference.rows()
    for row in (*rows, *wanted):
        for name in ("samples_per_second", "data_seconds", "step_seconds"):
            row.pop(name, None)
    steps = [row["step"] for row in rows if "loss" in row]
    if steps != list(range(1, theirs.step + 1)):
        faults.append(f"metrics.jsonl has steps {steps}")
    faults += [f"metrics.jsonl: {a}, uninterrupted {b}" for a, b in zip_longest(rows, wanted) if a != b][:1]
    return faults, not apart


def _step(folder: Path) -> int:
    return int(folder.name.strip(".").split("-")[1].removesuffix(".tmp"))


def _tail(run: Run) -> str:
    lines = [line for line in run.log.read_text().splitlines() if line.startswith("oneloop:")] or ["no line of ours"]
    return f"{' | '.join(lines[-4:])} ({run.log})"


def _line(setup: str, number: int, kill: Kill) -> str:
    plan = kill.plan
    hit = f"in a save, {'left' if kill.left else 'finished'}" if kill.in_save else "between saves"
    hit = "in a removal" if kill.in_removal else hit
    line = f"{setup:9} kill {number:2} of rank {plan.rank}: {plan.moment:25}  {hit:19}  gone in {kill.seconds:4.1f} s"
    return f"{line}  whole {kill.whole:3}  resumed {kill.resumed!s:>4}  {'; '.join(kill.faults) or 'as it should'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setup", nargs="+", choices=KILLS, default=list(KILLS))
    parser.add_argument("--kills", type=int, help="of each setup")
    parser.add_argument("--width", type=int, default=WIDTH, help="16 KB of weights each")
    chosen = parser.parse_args()
    chains = []
    for number, setup in enumerate(chosen.setup):
        folder = Path(tempfile.mkdtemp(prefix=f"kill-{setup}-"))
        planned = plans(chosen.kills or KILLS[setup], first=number * 7)
        chains.append(run(setup, planned, folder, chosen.width, lambda text: print(text, flush=True)))
        if chains[-1].sound:
            shutil.rmtree(folder)
        else:
            print(f"{setup:9} kept: {folder}", flush=True)
    kills = [kill for chain in chains for kill in chain.kills]
    went_on = sum(kill.resumed == kill.whole and not kill.faults for kill in kills)
    equal = sum(chain.weights_equal for chain in chains)
    print(
        f"{len(kills)} kills, {sum(kill.in_save for kill in kills)} in a save: "
        f"{went_on} resumed from the last whole checkpoint, weights equal in {equal} of {len(chains)} setups"
    )
    sys.exit(0 if all(chain.sound for chain in chains) else 1)


if __name__ == "__main__":
    main()
