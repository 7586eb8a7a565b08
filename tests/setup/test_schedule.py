"""The JSON's `scheduler`: DeepSpeed's own learning rates, and one owner for each of its numbers."""

import inspect

import pytest
import torch
from deepspeed.runtime import lr_schedules
from launched import DEEPSPEED, TORCHRUN, refused, setup, zero

from toolkit.errors import Place, UserError
from toolkit.optim import lr_at
from toolkit.setup import Setup
from toolkit.setup.schedule import REQUIRED, SCHEDULERS, warmup_fault

CYCLE = {"cycle_min_lr": 1e-4, "cycle_max_lr": 3e-3, "cycle_momentum": False}
STEPS = 24


def scheduler(kind, **params):
    return {"scheduler": {"type": kind, "params": params}}


def with_file(write, config, *argv, **kwargs):
    return setup(TORCHRUN, "--deepspeed_config", write("a.json", zero(1, **config)), *argv, **kwargs)


def lines_of(write, config, *argv):
    return refused(DEEPSPEED, "--deepspeed_config", write("a.json", zero(1, **config)), *argv)


def rates(got, steps=STEPS):
    """The learning rate of each update of a run, and of three after its end."""
    return [
        lr_at(
            updates,
            schedule=got.lr_scheduler_type,
            learning_rate=got.learning_rate,
            num_warmup_steps=got.num_warmup_steps,
            total_steps=steps,
            params=got.lr_schedule,
        )
        for updates in range(steps + 4)
    ]


def deepspeeds_rates(kind, params, learning_rate, steps=STEPS):
    """What DeepSpeed's class leaves in the optimizer before each update: it steps once after each of them."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=learning_rate)
    schedule = getattr(lr_schedules, kind)(optimizer, **params)
    left = []
    for _ in range(steps + 4):
        left.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    return left


@pytest.mark.parametrize(
    ("kind", "params"),
    [
        ("WarmupLR", {}),
        ("WarmupLR", {"warmup_num_steps": 7, "warmup_min_lr": 1e-5, "warmup_max_lr": 3e-4}),
        ("WarmupLR", {"warmup_num_steps": 7, "warmup_max_lr": 3e-4, "warmup_type": "linear"}),
        ("WarmupLR", {"warmup_num_steps": 1, "warmup_type": "linear", "last_batch_iteration": -1}),
        ("WarmupLR", {"warmup_num_steps": STEPS}),
        ("WarmupDecayLR", {"total_num_steps": STEPS, "warmup_num_steps": 7}),
        ("WarmupDecayLR", {"total_num_steps": STEPS, "warmup_num_steps": 5, "warmup_type": "linear"}),
        ("WarmupDecayLR", {"total_num_steps": 13, "warmup_num_steps": 3, "warmup_min_lr": 2e-5, "warmup_max_lr": 0.1}),
        ("WarmupDecayLR", {"total_num_steps": 9, "warmup_num_steps": 9}),
        ("WarmupDecayLR", {"total_num_steps": 50, "warmup_num_steps": 1}),
        ("WarmupCosineLR", {"total_num_steps": STEPS, "warmup_num_steps": 7}),
        ("WarmupCosineLR", {"total_num_steps": STEPS, "warmup_num_steps": 4, "warmup_type": "linear"}),
        ("WarmupCosineLR", {"total_num_steps": 13, "warmup_num_steps": 3, "warmup_min_ratio": 0.1, "cos_min_ratio": 0}),
        ("WarmupCosineLR", {"total_num_steps": 9, "warmup_num_steps": 9, "cos_min_ratio": 0.5}),
        ("OneCycle", CYCLE),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 7}),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 7, "cycle_second_step_size": 4}),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 3, "cycle_second_step_size": 0}),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 6, "decay_step_size": 2, "decay_lr_rate": 0.25}),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 6, "decay_step_size": 3}),
        ("OneCycle", {**CYCLE, "cycle_first_step_size": 9, "cycle_second_step_size": 7, "cycle_first_stair_count": 3}),
        (
            "OneCycle",
            {**CYCLE, "cycle_first_step_size": 9, "cycle_first_stair_count": 3, "cycle_second_stair_count": 0},
        ),
        (
            "OneCycle",
            {**CYCLE, "cycle_first_step_size": 5, "cycle_first_stair_count": 0, "cycle_second_stair_count": 2},
        ),
    ],
)
def test_every_rate_is_that_of_deepspeeds_own_class(write, kind, params):
    got = with_file(write, {"optimizer": {"type": "AdamW", "params": {"lr": "auto"}}} | scheduler(kind, **params))
    assert rates(got) == deepspeeds_rates(kind, params, got.learning_rate)
    assert len(set(rates(got))) > 2


@pytest.mark.parametrize("kind", SCHEDULERS)
def test_the_parameters_and_their_defaults_are_those_of_the_installed_class(kind):
    signature = inspect.signature(getattr(lr_schedules, kind).__init__).parameters
    theirs = {
        name: REQUIRED if each.default is inspect.Parameter.empty else each.default
        for name, each in signature.items()
        if name not in ("self", "optimizer", "last_batch_iteration")
    }
    assert theirs == SCHEDULERS[kind]


AUTO = dict.fromkeys(("warmup_min_lr", "warmup_max_lr", "warmup_num_steps", "total_num_steps"), "auto")


@pytest.mark.parametrize("steps", [STEPS, 10])
def test_auto_is_the_scripts_rate_and_warm_up_and_the_steps_of_the_run(write, steps):
    got = with_file(write, scheduler("WarmupDecayLR", **AUTO), "--num_warmup_steps", "4")
    filled = {"warmup_min_lr": 0.0, "warmup_max_lr": 2e-5, "warmup_num_steps": 4}
    assert got.lr_schedule == {"type": "WarmupDecayLR", "warmup_type": "log", "total_num_steps": "auto", **filled}
    assert rates(got, steps) == deepspeeds_rates("WarmupDecayLR", {**filled, "total_num_steps": steps}, 2e-5, steps)
    assert got.origins["learning_rate"] == "script's default"
    assert got.origins["num_warmup_steps"] == "--num_warmup_steps"


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_a_schedule_is_taken_under_every_stage_and_kept_from_deepspeed(write, stage):
    config = zero(stage, **scheduler("WarmupLR", warmup_max_lr=3e-4, warmup_num_steps=10.0))
    got = setup(DEEPSPEED, "--deepspeed_config", write("a.json", config))
    assert (got.lr_scheduler_type, got.learning_rate, got.num_warmup_steps) == ("WarmupLR", 3e-4, 10)
    assert got.origins["lr_scheduler_type"] == "a.json: scheduler.type"
    assert got.origins["learning_rate"] == "a.json: scheduler.params.warmup_max_lr"
    assert got.origins["num_warmup_steps"] == "a.json: scheduler.params.warmup_num_steps"
    assert isinstance(got.origins["num_warmup_steps"], Place)
    assert stage == 0 or "scheduler" not in got.deepspeed_config


def test_without_a_section_there_is_no_schedule_of_deepspeeds(write):
    for config in ({}, {"scheduler": {}}, {"scheduler": {"type": None, "params": {}}}):
        got = with_file(write, config)
        assert (got.lr_schedule, got.lr_scheduler_type) == ({}, "linear")


# --- two places ------------------------------------------------------------------------------------------------------

ADAMW = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}


@pytest.mark.parametrize(
    ("config", "argv", "words"),
    [
        (
            ADAMW | scheduler("WarmupLR", warmup_max_lr=3e-3),
            (),
            "scheduler.params.warmup_max_lr: 0.003: a.json: optimizer.params.lr is 0.001; make them equal, or write",
        ),
        (
            ADAMW | scheduler("OneCycle", **CYCLE),
            (),
            "scheduler.params.cycle_max_lr: 0.003: a.json: optimizer.params.lr is 0.001",
        ),
        (
            {"optimizer": {"type": "AdamW", "params": {"lr": 3e-4}}}
            | scheduler("WarmupDecayLR", total_num_steps="auto", warmup_num_steps=5),
            (),
            "scheduler.params.warmup_max_lr: None: missing, DeepSpeed takes 0.001, but a.json: optimizer.params.lr is",
        ),
        (
            scheduler("WarmupLR", warmup_max_lr=3e-3),
            ("--learning_rate", "1e-3"),
            "scheduler.params.warmup_max_lr: 0.003: --learning_rate says 0.001",
        ),
        (
            scheduler("WarmupLR", warmup_num_steps=5),
            ("--num_warmup_steps", "6"),
            "scheduler.params.warmup_num_steps: 5: --num_warmup_steps says 6",
        ),
        (
            scheduler("WarmupLR", warmup_num_steps=5),
            ("--lr_scheduler_type", "cosine"),
            "scheduler.type: 'WarmupLR': --lr_scheduler_type says 'cosine'; leave one of the two out",
        ),
        (
            scheduler("OneCycle", **CYCLE),
            ("--lr_scheduler_type", "linear"),
            "scheduler.type: 'OneCycle': --lr_scheduler_type says 'linear'",
        ),
        (
            scheduler("OneCycle", **CYCLE),
            ("--num_warmup_steps", "3"),
            "scheduler.type: 'OneCycle': --num_warmup_steps says 3, and this schedule has no warm-up",
        ),
        (
            scheduler("WarmupLR", warmup_num_steps=50),
            ("--max_train_steps", "49"),
            "scheduler.params.warmup_num_steps: 50: the warm-up is longer than the run: --max_train_steps gives 49 st",
        ),
        (
            scheduler("WarmupDecayLR", warmup_max_lr="auto", warmup_num_steps=50, total_num_steps=40),
            (),
            "scheduler.params.total_num_steps: 40: the warm-up alone takes 50 (a.json: scheduler.params.warmup_num_",
        ),
    ],
)
def test_two_places_that_differ_are_refused_naming_both(write, config, argv, words):
    (line,) = lines_of(write, config, *argv)
    assert line.startswith("a.json: " + words)


def test_a_typed_warm_up_of_no_steps_is_none_of_deepspeeds(write):
    (line,) = lines_of(write, scheduler("WarmupLR", warmup_num_steps="auto"), "--num_warmup_steps", "0")
    assert line.startswith('--num_warmup_steps: 0: a.json: scheduler.params.warmup_num_steps is "auto", and DeepSpeed')


def test_a_scripts_warm_up_of_no_steps_becomes_one_and_is_said(write):
    got = with_file(write, scheduler("WarmupLR", warmup_num_steps="auto"))
    assert (got.num_warmup_steps, got.lr_schedule["warmup_num_steps"]) == (1, 1)
    note = 'a.json: scheduler.params.warmup_num_steps "auto" is 1, not 0 (script\'s default): DeepSpeed 0.19.8 takes no'
    assert [each for each in got.notes if each.startswith(note)]


@pytest.mark.parametrize(
    ("kind", "alike"), [("WarmupLR", "constant"), ("WarmupDecayLR", "linear"), ("WarmupCosineLR", "cosine")]
)
def test_the_same_said_twice_is_fine(write, kind, alike):
    params = {"warmup_num_steps": 5} | ({} if kind == "WarmupLR" else {"total_num_steps": "auto"})
    if kind != "WarmupCosineLR":
        params["warmup_max_lr"] = 1e-3
    argv = ("--lr_scheduler_type", alike, "--num_warmup_steps", "5", "--learning_rate", "1e-3")
    got = with_file(write, ADAMW | scheduler(kind, **params), *argv)
    assert (got.lr_scheduler_type, got.num_warmup_steps, got.learning_rate) == (kind, 5, 1e-3)


def test_what_is_missing_is_deepspeeds_default_over_the_scripts_and_yields_to_the_user(write):
    config = scheduler("WarmupDecayLR", total_num_steps="auto")
    got = with_file(write, config, defaults={"num_warmup_steps": 20})
    assert (got.learning_rate, got.num_warmup_steps) == (1e-3, 1000)
    assert got.origins["learning_rate"] == "a.json: scheduler.params.warmup_max_lr (DeepSpeed's default)"
    typed = with_file(write, config, "--learning_rate", "3e-4", "--num_warmup_steps", "2", "--max_train_steps", "9")
    assert (typed.learning_rate, typed.num_warmup_steps) == (3e-4, 2)
    assert typed.lr_schedule["warmup_max_lr"] == 3e-4
    # A default is nobody's wish: a run of 9 steps only says so.
    assert with_file(write, config, "--max_train_steps", "9").num_warmup_steps == 1000


# --- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (scheduler("LRRangeTest"), "type: 'LRRangeTest': not supported yet; one of WarmupLR, WarmupDecayLR, WarmupCo"),
        (scheduler("StepLR", step_size=1), "type: 'StepLR': not supported yet"),
        (scheduler("warmuplr"), "type: 'warmuplr': DeepSpeed knows no schedule of this name; write WarmupLR"),
        ({"scheduler": {"params": {"warmup_num_steps": 5}}}, "type: None: DeepSpeed ignores a schedule without its ty"),
        (
            scheduler("OneCycle", cycle_min_lr=1e-4, cycle_max_lr=1e-3),
            "params.cycle_momentum: True: a momentum that moves with the learning rate is not supported yet (the "
            "default); write cycle_momentum: false",
        ),
        (scheduler("OneCycle", **{**CYCLE, "cycle_momentum": True}), "cycle_momentum: True: a momentum that moves"),
        (
            scheduler("OneCycle", **{**CYCLE, "cycle_first_step_size": 0}),
            "cycle_first_step_size: 0: expected an integer of 1",
        ),
        (scheduler("OneCycle", cycle_max_lr=1e-3, cycle_momentum=False), "cycle_min_lr: None: OneCycle needs it; wr"),
        (scheduler("WarmupDecayLR"), 'total_num_steps: None: WarmupDecayLR needs it; write "auto" for the steps of'),
        (
            scheduler("WarmupCosineLR", total_num_steps=0),
            "params.total_num_steps: 0: expected an integer of 1 or more; c",
        ),
        (
            scheduler("WarmupCosineLR", total_num_steps="auto", cos_min_ratio=1.5),
            "params.cos_min_ratio: 1.5: expected one number of 0 to 1; correct the value",
        ),
        (scheduler("WarmupLR", warmup_num_steps=-1), "params.warmup_num_steps: -1: expected an integer of 1 or more"),
        (scheduler("OneCycle", **{**CYCLE, "cycle_second_step_size": 2.5}), "second_step_size: 2.5: expected an int"),
        (scheduler("OneCycle", **{**CYCLE, "cycle_min_lr": [1e-4, 1e-3]}), "expected one number of 0 or more; correc"),
        (scheduler("OneCycle", **{**CYCLE, "cycle_min_lr": "auto"}), "cycle_min_lr: 'auto': expected one number of"),
        (scheduler("WarmupDecayLR", total_num_steps="8"), "total_num_steps: '8': expected integer, got string \"8\""),
        ({"scheduler": {"type": 5, "params": {"warmup_num_steps": 5}}}, "scheduler.type: 5: expected string"),
        (scheduler("WarmupLR", warmup_num_steps=0), "warmup_num_steps: 0: DeepSpeed 0.19.8 takes no warm-up of 0 st"),
        (scheduler("WarmupLR", warmup_type="cosine"), "warmup_type: 'cosine': DeepSpeed would take log in its place; "),
        (scheduler("WarmupLR", warmup_type="auto"), "params.warmup_type: 'auto': there is no rule for \"auto\" here"),
        (scheduler("WarmupLR", last_batch_iteration=5), "last_batch_iteration: 5: a run goes on where its checkpoint"),
    ],
)
def test_a_schedule_that_would_be_another_is_refused(write, config, words):
    (line,) = lines_of(write, config)
    assert line.startswith("a.json: scheduler.") and words in line


def test_numbers_of_a_momentum_that_stands_still_are_said(write):
    got = with_file(write, scheduler("OneCycle", **CYCLE, cycle_min_mom=0.8))
    assert "a.json: scheduler.params.cycle_momentum false: not used: cycle_min_mom" in got.notes


def test_only_a_warm_up_of_the_users_is_too_long():
    place = Place("a.json", "scheduler.params.warmup_num_steps")
    for origin in ("script's default", f"{place} (DeepSpeed's default)", "Setup.build"):
        assert warmup_fault(9, origin, 8, "--max_train_steps") == []
    assert warmup_fault(8, place, 8, "--max_train_steps") == []
    (line,) = warmup_fault(9, "--num_warmup_steps", 8, "--num_train_epochs")
    reason = "the warm-up is longer than the run: --num_train_epochs gives 8 steps"
    assert line == f"--num_warmup_steps: 9: {reason}; warm up for fewer steps, or train for more"


# --- Setup.build -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", ["single", "zero2"])
def test_build_takes_a_schedule(strategy):
    section = scheduler("WarmupLR", warmup_max_lr=3e-4, warmup_num_steps=5)
    got = Setup.build(strategy=strategy, deepspeed=section)
    assert (got.lr_scheduler_type, got.learning_rate, got.num_warmup_steps) == ("WarmupLR", 3e-4, 5)
    with pytest.raises(UserError, match="warmup_max_lr: 0.0003: Setup.build: learning_rate says 0.1; make them equal"):
        Setup.build(strategy=strategy, deepspeed=section, learning_rate=0.1)
