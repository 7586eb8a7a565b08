"""What a run costs, from what it wrote."""

from itertools import product

import pytest

from toolkit.compare.runs import REFERENCE, Measured, Run
from toolkit.compare.speed import idle_shares, with_costs, with_efficiencies
from toolkit.compare.verdict import describe


def run(tmp_path, rates, **summary):
    rows = tuple({"step": n, "loss": 1.0, "samples_per_second": rate} for n, rate in enumerate(rates, 1))
    return Run("a", tmp_path, rows, (), {"setup": {}, **summary})


def costs(*args, **more):
    each = run(*args, **more)
    return with_costs(describe(each, REFERENCE), each)


def test_the_first_interval_of_logging_is_no_speed(tmp_path):
    got = costs(tmp_path, [10.0] * 4 + [100.0] * 4 + [120.0] * 4 + [110.0] * 4 + [400.0])
    assert (got.samples_per_second, got.spread) == (110.0, (105.0, 115.0))


@pytest.mark.parametrize(
    ("rates", "expected"),
    [
        ([50.0] * 4, (50.0, None)),
        ([], (None, None)),
        ([5.0] * 4 + [70.0] * 4, (70.0, None)),
        ([5.0] * 4 + [None] * 4 + [7.0] * 4, (7.0, None)),
        ([5.0] * 4 + [70.0] * 4 + [50.0] * 2 + [90.0], (60.0, (55.0, 65.0))),  # a save after the tenth step
    ],
)
def test_few_intervals(tmp_path, rates, expected):
    got = costs(tmp_path, rates)
    assert (got.samples_per_second, got.spread) == expected


def test_what_the_summary_says(tmp_path):
    counted = {"all_reduce": {"calls": 3, "bytes": 300}, "broadcast": {"calls": 1, "bytes": 20}}
    checkpoint = {"bytes": 77, "seconds": 0.5}
    more = {"seconds_to_first_step": 2.5, "peak_memory_bytes": [5, 6]}
    got = costs(tmp_path, [], communication=counted, checkpoint=checkpoint, pipeline=None, **more)
    assert (got.communication_bytes, got.checkpoint_bytes, got.checkpoint_seconds) == (320, 77, 0.5)
    assert (got.seconds_to_first_step, got.peak_memory_bytes, got.idle) == (2.5, (5, 6), None)


def makespan(forward, backward, micro_batches):
    """Seconds of DeepSpeed's own 1F1B schedule, where sending takes no time."""
    from deepspeed.runtime.pipe import schedule

    stages = len(forward)
    plans = [schedule.TrainSchedule(micro_batches, stages, stage) for stage in range(stages)]
    work = []
    for plan in plans:
        commands = [command for step in plan for command in step]
        work.append([c for c in commands if isinstance(c, schedule.ForwardPass | schedule.BackwardPass)])
    done, clock, at = {}, [0.0] * stages, [0] * stages
    while any(at[s] < len(work[s]) for s in range(stages)):
        for s in range(stages):
            if at[s] == len(work[s]):
                continue
            ahead = isinstance(work[s][at[s]], schedule.ForwardPass)
            number = sum(isinstance(c, schedule.ForwardPass) == ahead for c in work[s][: at[s]])
            needs = ("f", s - 1, number) if ahead else ("b", s + 1, number)
            start = done.get(needs, 0.0 if needs[1] in (-1, stages) else None)
            if start is None:
                continue
            clock[s] = max(clock[s], start) + (forward[s] if ahead else backward[s])
            done["f" if ahead else "b", s, number] = clock[s]
            at[s] += 1
    return max(clock)


@pytest.mark.parametrize(("stages", "micro_batches"), product((2, 3, 4), (1, 2, 4, 8)))
def test_equal_stages_wait_as_the_formula_says(stages, micro_batches):
    whole = makespan([1.0] * stages, [2.0] * stages, micro_batches)
    working = [3.0 * micro_batches] * stages
    got = idle_shares({"working_seconds": working, "step_seconds": whole}, micro_batches)
    assert got["idle"] == pytest.approx(got["idle_even"])
    assert got["idle_bound"] == pytest.approx(got["idle_even"])


@pytest.mark.parametrize("micro_batches", [1, 2, 4, 8])
@pytest.mark.parametrize("lengths", [(1, 2), (2, 1), (1, 3, 1), (3, 1, 2), (1, 1, 1, 4)])
def test_no_schedule_of_unequal_stages_waits_less_than_the_bound(lengths, micro_batches):
    whole = makespan(lengths, [2 * each for each in lengths], micro_batches)
    working = [3.0 * each * micro_batches for each in lengths]
    got = idle_shares({"working_seconds": working, "step_seconds": whole}, micro_batches)
    assert got["idle_bound"] <= got["idle"] + 1e-9
    if micro_batches == 1:
        assert got["idle_bound"] == pytest.approx(got["idle"])


def test_scaling_is_told_beside_the_fewest_ranks_of_the_same_setup():
    def one(label, ranks, rate):
        return Measured(label, "ddp", ranks, "fp32", REFERENCE, samples_per_second=rate)

    rows = [one("single", 1, 90.0), one("ddp x2", 2, 100.0), one("ddp x4", 4, 150.0), one("zero2 x4", 4, 80.0)]
    rows += [one("zero2 x1", 1, 50.0), one("zero2 x8", 8, None), one("zero3", 2, 90.0)]
    families = ["single", "ddp", "ddp", "zero2", "zero2", "zero2", "zero3"]
    got = with_efficiencies(rows, families)
    assert [each.efficiency for each in got] == [None, 100 / 180, 150 / 360, 0.4, None, None, None]
    got = with_efficiencies(rows[1:], families[1:])  # nothing on one rank
    assert [each.efficiency for each in got] == [None, 0.75, 0.4, None, None, None]
