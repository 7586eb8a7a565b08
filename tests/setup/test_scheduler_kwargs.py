"""--lr_scheduler_kwargs: rates as transformers and torch give them, and one line for each number that cannot be."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from launched import TORCHRUN, refused, setup, zero
from torch.optim.lr_scheduler import OneCycleLR
from transformers import get_scheduler, optimization

from toolkit.optim import lr_at
from toolkit.setup import Setup
from toolkit.setup.scheduler_kwargs import KWARGS, defaults_of

PEAK = 3e-3


def rates(kind: str, steps: int, warmup: int = 0, **numbers: Any) -> list[float]:
    told = {"schedule": kind, "learning_rate": PEAK, "num_warmup_steps": warmup, "total_steps": steps}
    return [lr_at(updates, **told, params=numbers) for updates in range(steps)]


def theirs(kind: str, steps: int, warmup: int = 0, **numbers: Any) -> list[float]:
    """What transformers' or torch's class leaves in the optimizer before each update."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)
    if kind == "one_cycle":
        schedule = OneCycleLR(optimizer, PEAK, total_steps=steps, cycle_momentum=False, **numbers)
    else:
        schedule = get_scheduler(kind, optimizer, warmup, steps, scheduler_specific_kwargs=numbers)
    left = []
    for _ in range(steps):
        left.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
    return left


@pytest.mark.filterwarnings("ignore:.*lr_scheduler.step")
@pytest.mark.parametrize("steps", [2, 7, 24, 101])
@pytest.mark.parametrize(
    ("kind", "warmup", "numbers"),
    [
        ("cosine_with_restarts", 0, {}),
        ("cosine_with_restarts", 1, {"num_cycles": 3}),
        ("polynomial", 0, {}),
        ("polynomial", 1, {"power": 2.0}),
        ("polynomial", 0, {"power": 0.5, "lr_end": 1e-4}),
        ("one_cycle", 0, {}),
        ("one_cycle", 0, {"anneal_strategy": "linear", "pct_start": 0.4}),
        ("one_cycle", 0, {"div_factor": 10.0, "final_div_factor": 100.0, "pct_start": 0.8}),
        ("one_cycle", 0, {"three_phase": True, "pct_start": 0.45}),
    ],
)
def test_every_rate_is_the_librarys_own(kind: str, warmup: int, numbers: dict[str, Any], steps: int) -> None:
    # Measured: 4e-16 relative; the last rate of one_cycle is 1.2e-8 of the peak.
    assert rates(kind, steps, warmup, **numbers) == pytest.approx(
        theirs(kind, steps, warmup, **numbers), rel=1e-12, abs=1e-18
    )


def test_a_cycle_of_a_few_steps_where_torch_divides_by_zero() -> None:
    assert rates("one_cycle", 1) == [PEAK / 25 / 1e4]
    assert rates("one_cycle", 10, pct_start=0.1)[:2] == pytest.approx([PEAK, PEAK * 0.96984], rel=1e-4)


@pytest.mark.parametrize("kind", ["polynomial", "cosine_with_restarts", "one_cycle"])
def test_after_the_last_step_the_rate_stays(kind: str) -> None:
    end = {"polynomial": 1e-7, "cosine_with_restarts": 0.0, "one_cycle": PEAK / 25 / 1e4}[kind]
    told: dict[str, Any] = {"schedule": kind, "learning_rate": PEAK, "num_warmup_steps": 0, "total_steps": 10}
    assert [lr_at(updates, **told) for updates in (10 if kind != "one_cycle" else 9, 15)] == pytest.approx([end, end])


def test_names_and_defaults_are_the_libraries_own() -> None:
    functions = {
        "polynomial": optimization.get_polynomial_decay_schedule_with_warmup,
        "cosine_with_restarts": optimization.get_cosine_with_hard_restarts_schedule_with_warmup,
        "one_cycle": OneCycleLR.__init__,
    }
    assert set(functions) == set(KWARGS)
    for kind, function in functions.items():
        known = inspect.signature(function).parameters
        assert {name: known[name].default for name in defaults_of(kind)} == defaults_of(kind)


def test_what_is_typed_is_in_the_setup() -> None:
    got = setup(TORCHRUN, "--lr_scheduler_type", "polynomial", "--lr_scheduler_kwargs", '{"power": 2}')
    assert got.lr_schedule == {"type": "polynomial", "power": 2.0, "lr_end": 1e-7}
    assert got.origins["lr_schedule"] == "--lr_scheduler_kwargs"
    plain = setup(TORCHRUN, "--lr_scheduler_type", "cosine_with_restarts")
    assert plain.lr_schedule == {"type": "cosine_with_restarts", "num_cycles": 1}
    assert plain.origins["lr_schedule"] == "--lr_scheduler_type"
    assert setup(TORCHRUN, "--lr_scheduler_type", "cosine", "--lr_scheduler_kwargs", "{}").lr_schedule == {}
    built = Setup.build(strategy="single", lr_scheduler_type="polynomial", lr_scheduler_kwargs={"power": 3.0})
    assert built.lr_schedule["power"] == 3.0


def test_a_cycle_has_no_warm_up_of_the_scripts() -> None:
    got = setup(TORCHRUN, "--lr_scheduler_type", "one_cycle", defaults={"num_warmup_steps": 20})
    assert (got.num_warmup_steps, got.overrode["num_warmup_steps"]) == (0, "script's default 20")


def test_numbers_of_the_scripts_schedule_go_with_it_alone() -> None:
    defaults = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}}
    assert setup(TORCHRUN, defaults=defaults).lr_schedule["power"] == 2.0
    got = setup(TORCHRUN, "--lr_scheduler_type", "cosine", defaults=defaults)
    assert got.lr_schedule == {}
    told = "lr_scheduler_kwargs (script's default) are not used: cosine (--lr_scheduler_type) has none of them"
    assert told in got.notes


@pytest.mark.parametrize(
    ("kind", "text", "line"),
    [
        ("polynomial", "power=2", "--lr_scheduler_kwargs: 'power=2': expected a JSON object like {"),
        ("polynomial", "[2]", "--lr_scheduler_kwargs: '[2]': expected a JSON object like {"),
        ("polynomial", "[" * 100_000, "--lr_scheduler_kwargs: '[[[["),
        ("polynomial", '{"power": NaN}', "--lr_scheduler_kwargs: '{\"power\": NaN}': NaN is no JSON; correct"),
        ("polynomial", '{"power": 1, "power": 2}', '--lr_scheduler_kwargs: \'{"power": 1, "power": 2}\': power stands'),
        (
            "polynomial",
            '{"powr": 2}',
            "--lr_scheduler_kwargs: powr: 2: polynomial has no such number; did you mean power?",
        ),
        ("polynomial", '{"power": 0}', "--lr_scheduler_kwargs: power: 0: must be above 0; correct the value"),
        ("polynomial", '{"power": "2"}', "--lr_scheduler_kwargs: power: '2': expected a value like 1.0; correct"),
        ("polynomial", '{"power": true}', "--lr_scheduler_kwargs: power: True: expected a value like 1.0; correct"),
        ("polynomial", '{"power": null}', "--lr_scheduler_kwargs: power: None: expected a number; correct the value"),
        ("polynomial", '{"lr_end": 1}', "--lr_scheduler_kwargs: lr_end: 1.0: the schedule falls to it, and learning_"),
        ("cosine_with_restarts", '{"num_cycles": 1.5}', "--lr_scheduler_kwargs: num_cycles: 1.5: expected an integer"),
        ("one_cycle", '{"pct_start": 1}', "--lr_scheduler_kwargs: pct_start: 1: must be above 0 and below 1; correct"),
        ("one_cycle", '{"three_phase": 1}', "--lr_scheduler_kwargs: three_phase: 1: expected a value like False; corr"),
        (
            "one_cycle",
            '{"three_phase": true, "pct_start": 0.5}',
            "--lr_scheduler_kwargs: pct_start: 0.5: the rise takes",
        ),
        (
            "one_cycle",
            '{"anneal_strategy": "cosine"}',
            "--lr_scheduler_kwargs: anneal_strategy: 'cosine': expected one of",
        ),
        ("one_cycle", '{"cycle_momentum": true}', "--lr_scheduler_kwargs: cycle_momentum: True: one_cycle has no such"),
        (
            "linear",
            '{"power": 2}',
            "--lr_scheduler_kwargs: {'power': 2}: linear (--lr_scheduler_type) takes none; leave",
        ),
    ],
)
def test_what_cannot_be_is_one_line(kind: str, text: str, line: str) -> None:
    (told,) = refused(TORCHRUN, "--lr_scheduler_type", kind, "--lr_scheduler_kwargs", text)
    assert told.startswith(line)


def test_a_typed_warm_up_beside_a_cycle_is_refused() -> None:
    (told,) = refused(TORCHRUN, "--lr_scheduler_type", "one_cycle", "--num_warmup_steps", "3")
    reason = "one_cycle (--lr_scheduler_type) rises by itself"
    assert told == f"--num_warmup_steps: 3: {reason}; leave it out, or give pct_start in --lr_scheduler_kwargs"


def test_beside_a_scheduler_of_the_json_they_are_refused(write: Any) -> None:
    config = zero(1, scheduler={"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}})
    argv = ("--deepspeed_config", write("a.json", config))
    (told,) = refused(TORCHRUN, *argv, "--lr_scheduler_kwargs", '{"power": 2}')
    reason = "a.json: scheduler.type decides the schedule"
    remedy = "write its numbers there, or remove scheduler there"
    assert told == f"--lr_scheduler_kwargs: {{'power': 2}}: {reason}; {remedy}"
    defaults = {"lr_scheduler_type": "polynomial", "lr_scheduler_kwargs": {"power": 2.0}}
    got = setup(TORCHRUN, *argv, defaults=defaults)
    assert got.lr_schedule["type"] == "WarmupLR"
    told = "lr_scheduler_kwargs (script's default) are not used: WarmupLR (a.json: scheduler.type) has none of them"
    assert told in got.notes


@pytest.mark.parametrize("rate", ["0", "1e-7"])
def test_a_rate_is_not_raised_by_its_end(rate: str) -> None:
    (told,) = refused(TORCHRUN, "--lr_scheduler_type", "polynomial", "--learning_rate", rate)
    reason = f"the schedule falls to it, and learning_rate is {float(rate)} (--learning_rate)"
    assert f"lr_end: 1e-07: {reason}; give a lower one" in told
    argv = ("--lr_scheduler_type", "polynomial", "--learning_rate", rate, "--lr_scheduler_kwargs", '{"lr_end": 0}')
    assert setup(TORCHRUN, *argv).lr_schedule["lr_end"] == 0.0
