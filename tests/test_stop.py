"""Signals end a run at a unit that all ranks agree on: the gate and the agreement with threads for ranks, one process
with real signals."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch.distributed as dist

from toolkit import stop
from toolkit.stop import Agreement, Gate

TERM, INT, USR1 = signal.SIGTERM, signal.SIGINT, signal.SIGUSR1


def test_a_gate_lets_units_start_until_the_last():
    gate = Gate()
    assert [gate.go_on() for _ in range(3)] == [True] * 3
    gate.freeze()
    gate.decide(5, TERM)
    assert [gate.go_on() for _ in range(4)] == [True, True, False, False]
    assert (gate.started, gate.signal) == (5, TERM)


def test_a_frozen_gate_holds_the_next_unit_back():
    gate, answers = Gate(), []
    gate.go_on()
    assert gate.freeze() == (1, False)
    waiting = threading.Thread(target=lambda: answers.append(gate.go_on()))
    waiting.start()
    waiting.join(0.2)
    assert (gate.started, answers) == (1, [])
    gate.decide(2, INT)
    waiting.join(5)
    assert (gate.started, answers) == (2, [True])


def test_a_signal_in_the_last_unit_of_a_run_ends_nothing():
    gate = Gate()
    gate.go_on()
    gate.freeze()
    gate.decide(1, TERM)
    assert gate.signal is None  # no unit was left out, so the run ends as it would have


class Rank:
    """A rank in two threads: units in step with the others', and the looks of its watch."""

    def __init__(self, rank: int, ranks: int, store: dist.Store, together: threading.Barrier, seed: int) -> None:
        self.gate = Gate()
        self.gate.opened = True
        self.agreement = Agreement(self.gate, "test/", rank, ranks)
        self.store, self.together, self.random = store, together, random.Random(seed * 100 + rank)
        self.units = 0
        self.at_once = False
        self.threads = [threading.Thread(target=self.work), threading.Thread(target=self.look)]

    def work(self) -> None:
        while self.gate.go_on():
            time.sleep(self.random.uniform(0, 0.004))
            self.together.wait(10)  # as a collective would: a rank that starts one unit more hangs here
            self.units += 1

    def look(self) -> None:
        while self.gate.signal is None and not self.at_once:
            self.at_once = self.agreement.poll(self.store)
            time.sleep(self.random.uniform(0, 0.01))


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_all_ranks_end_at_one_unit_whatever_the_timing(ranks):
    for seed in range(12):
        store, together = dist.HashStore(), threading.Barrier(ranks)
        group = [Rank(rank, ranks, store, together, seed) for rank in range(ranks)]
        chance = random.Random(seed)
        for thread in (thread for rank in group for thread in rank.threads):
            thread.start()
        asked = {}
        for rank in chance.sample(range(ranks), chance.randint(1, ranks)):  # one rank, some, or all, and not at once
            time.sleep(chance.uniform(0, 0.02))
            asked[rank] = chance.choice([TERM, INT, USR1])
            group[rank].gate.ask(asked[rank])
        for thread in (thread for rank in group for thread in rank.threads):
            thread.join(20)
        assert len({(rank.units, rank.gate.started, rank.gate.signal) for rank in group}) == 1, seed
        assert group[0].units == group[0].gate.started
        assert group[0].gate.signal in asked.values()


def test_all_ranks_end_at_once_where_one_has_no_run_in_work():
    store, gates = dist.HashStore(), [Gate(), Gate()]
    ends = [Agreement(gate, "test/", rank, 2) for rank, gate in enumerate(gates)]
    gates[0].opened = True
    gates[0].ask(INT)
    assert [end.poll(store) for end in (ends[0], ends[1], ends[0])] == [False, True, True]
    assert [end.number for end in ends] == [INT, INT]


def test_a_rank_that_does_not_answer_leaves_the_others_waiting_and_asked():
    store, gate = dist.HashStore(), Gate()
    gate.opened = True
    gate.ask(USR1)
    end = Agreement(gate, "test/", 0, 2)
    assert (end.poll(store), end.pending, end.number) == (False, True, USR1)


def test_an_agreement_begun_anew_in_another_store_comes_to_the_same_unit():
    """The launcher's store is lost when one rank knows the answer and the other does not."""
    first, second, gates = dist.HashStore(), dist.HashStore(), [Gate(), Gate()]
    for gate, started in zip(gates, (3, 4), strict=True):
        gate.opened = True
        assert all(gate.go_on() for _ in range(started))
    gates[0].ask(TERM)
    ends = [Agreement(gate, "test/", rank, 2) for rank, gate in enumerate(gates)]
    ends[0].poll(first)
    ends[1].poll(first)  # rank 1 has both reports: unit 4 is the last one
    assert (gates[1].go_on(), ends[0].pending) == (False, True)
    ends = [Agreement(gate, "test/", rank, 2) for rank, gate in enumerate(gates)]
    gates[1].ask(TERM)
    for end in (ends[1], ends[0], ends[1]):
        end.poll(second)
    assert [gate.go_on() for gate in gates] == [True, False]
    assert [gate.go_on() for gate in gates] == [False, False]
    assert [gate.started for gate in gates] == [4, 4]


# One process. A unit takes 0.3 s in steps of 0.01 s; `python` runs it as a script of that name.
LONE = """
import subprocess, sys, time
from multiprocessing import get_context
from toolkit import launch, stop

def main():
    unit = 0
    stop.open_()
    try:
        while unit < 40 and stop.go_on():
            print("begin", flush=True)
            {inside}
            for _ in range(30):
                time.sleep(0.01)
            unit += 1
            print("unit", unit, flush=True)
        time.sleep({save})
        print("saved", unit, stop.gate.signal, stop.reason(), flush=True)
    finally:
        stop.close_()
    time.sleep(0.5)
    raise stop.Ended(stop.exit_code())

launch.run(main)
"""


class Lone:
    """A process of LONE, up to its second unit."""

    def __init__(self, inside: str = "", save: float = 0, line: list[str] | None = None) -> None:
        line = line or [sys.executable, "-c", LONE.format(inside=inside or "pass", save=save)]
        self.process = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)
        self.output = self.read_to("unit 1")
        self.read_to("begin")

    def read_to(self, end: str) -> str:
        """The output up to a line."""
        assert self.process.stdout is not None
        return "".join(iter(self.process.stdout.readline, f"{end}\n"))

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def end(self) -> tuple[int, list[str], str]:
        """(exit code, lines of output, errors)."""
        output, errors = self.process.communicate(timeout=30)
        return self.process.returncode, output.splitlines(), errors


ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("number", "code", "reason"),
    [(TERM, 143, "ended by SIGTERM"), (INT, 130, "interrupted"), (USR1, 143, "ended by SIGUSR1")],
)
def test_one_process_ends_its_unit_saves_and_leaves(number, code, reason):
    lone = Lone()
    lone.signal(number)
    returncode, lines, errors = lone.end()
    assert (returncode, lines) == (code, ["unit 2", f"saved 2 {int(number)} {reason}"])
    assert f"oneloop: {number.name}: ends with a checkpoint; a second signal ends it at once\n" == errors


@pytest.mark.parametrize(("number", "code"), [(TERM, 143), (INT, 130), (USR1, 138)])
def test_a_second_signal_ends_at_once(number, code):
    lone = Lone(save=20)
    lone.signal(TERM)
    time.sleep(1.7)
    began = time.monotonic()
    lone.signal(number)
    returncode, lines, errors = lone.end()
    assert (returncode, lines) == (code, ["unit 2"])
    assert time.monotonic() - began < 2
    assert errors.endswith(f"oneloop: a second {number.name}: ended at once, without a checkpoint\n")


@pytest.mark.parametrize("numbers", [(INT, TERM, TERM), (TERM, INT, TERM)])
def test_what_a_launcher_passes_on_of_the_same_signal_is_not_the_second(numbers):
    """deepspeed's launch.py makes SIGTERM of SIGINT, and can be the faster one where a group got it."""
    lone = Lone()
    for number in numbers:
        lone.signal(number)
        time.sleep(0.05)
    assert lone.end()[:2] == (130, ["unit 2", "saved 2 2 interrupted"])


def test_what_comes_after_the_run_does_not_change_its_exit_code():
    lone = Lone()
    lone.signal(INT)
    lone.read_to("saved 2 2 interrupted")
    time.sleep(0.1)
    lone.signal(TERM)
    assert lone.end()[:2] == (130, [])


def test_before_a_run_is_in_work_a_signal_ends_the_process():
    heard = "signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background job ignores it
    main = "lambda: print('in', flush=True) or time.sleep(30)"
    script = f"import signal, time; from toolkit import launch; {heard}; launch.run({main})"
    for number, code in ((INT, 130), (TERM, -TERM)):
        with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, cwd=ROOT) as process:
            assert process.stdout is not None and process.stdout.readline() == b"in\n"
            process.send_signal(number)
            assert process.wait(10) == code


CHILDREN = """
            if unit == 0:
                def sleeps(kind):
                    stop.ignore() if kind == "worker" else None
                    time.sleep(30)
                fork = get_context("fork")
                worker = fork.Process(target=sleeps, args=("worker",), daemon=True)
                forked = fork.Process(target=sleeps, args=("other",), daemon=True)
                worker.start(); forked.start()
                other = subprocess.Popen(["sleep", "30"])
                time.sleep(0.3)
                import os, signal
                for process in (worker, forked, other):
                    os.kill(process.pid, signal.SIGTERM)
                other.wait(); forked.join()
                print(worker.is_alive(), forked.exitcode, other.returncode, flush=True)
"""


def test_children_keep_their_signals_but_for_a_loaders_workers_which_leave_with_the_rank():
    lone = Lone(inside=CHILDREN.strip())
    assert lone.output == f"begin\nTrue {-TERM} {-TERM}\n"
    began = time.monotonic()
    lone.signal(INT)  # what its children got has not asked this process to end
    returncode, lines, _ = lone.end()
    assert (returncode, lines[0]) == (130, "unit 2")
    assert time.monotonic() - began < 10


def test_a_run_in_a_thread_leaves_signals_alone():
    before, units = signal.getsignal(TERM), []

    def run():
        stop.open_()
        units.append(stop.go_on())
        stop.close_()

    thread = threading.Thread(target=run)
    thread.start()
    thread.join(5)
    assert (units, signal.getsignal(TERM)) == ([True], before)


def test_a_process_whose_launcher_is_gone_ends_as_after_sigterm(tmp_path):
    script, launcher = tmp_path / "train.py", tmp_path / "accelerate"
    script.write_text(LONE.format(inside="pass", save=0))
    launcher.write_text(f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n")
    lone = Lone(line=[sys.executable, str(launcher), "launch"])
    lone.process.kill()
    lone.process.wait()
    _, lines, errors = lone.end()  # to the end of the output, which the orphan holds
    assert lines[-1] == f"saved {lines[-1].split()[1]} 15 ended by SIGTERM"
    assert int(lines[-1].split()[1]) <= 8  # it looks every second
    assert errors.startswith("oneloop: the launcher has ended, so this run ends as after SIGTERM\n")


def test_a_process_whose_shell_is_gone_goes_on(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(LONE.format(inside="pass", save=0))
    lone = Lone(line=["sh", "-c", f"{sys.executable} {script} & echo $!; wait"])
    assert lone.output.splitlines()[0].isdigit()
    lone.process.kill()
    lone.process.wait()
    lone.read_to("unit 9")
    os.kill(int(lone.output.splitlines()[0]), TERM)
    assert lone.end()[1][-1].endswith("15 ended by SIGTERM")


RANKS = """
import os, time
from toolkit import launch, stop, watch
import torch.distributed as dist

def main():
    dist.init_process_group("gloo")
    watch.start(int(os.environ["RANK"]), 2, 60)
    {opened}
    print("ready", flush=True)
    time.sleep(30)

launch.run(main)
"""


@pytest.mark.parametrize("opened", ["pass", "stop.open_() if os.environ['RANK'] == '1' else None"])
def test_ranks_end_together_and_at_once_where_not_all_have_a_run_in_work(opened):
    with socket.socket() as probe:
        probe.bind(("", 0))
        given = {
            **os.environ,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(probe.getsockname()[1]),
            "WORLD_SIZE": "2",
        }
    line = [sys.executable, "-c", RANKS.format(opened=opened)]
    ranks = [
        subprocess.Popen(
            line,
            env=given | {"RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        for rank in (0, 1)
    ]
    for rank in ranks:
        assert rank.stdout is not None and rank.stdout.readline() == "ready\n"
    ranks[1].send_signal(INT)
    ends = [(*rank.communicate(timeout=20), rank.returncode) for rank in ranks]
    assert [(errors, code) for _, errors, code in ends] == [("oneloop: interrupted at step 0\n", 130), ("", 130)]
