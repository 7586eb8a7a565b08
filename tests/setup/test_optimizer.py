"""The JSON's `optimizer`: what DeepSpeed would build, under every strategy."""

import inspect
from dataclasses import replace
from types import SimpleNamespace

import deepspeed
import pytest
import torch
from deepspeed.ops.adam import DeepSpeedCPUAdam, FusedAdam
from deepspeed.runtime.engine import DeepSpeedEngine
from launched import DEEPSPEED, TORCHRUN, refused, setup, zero

import toolkit
from toolkit.errors import Place, UserError
from toolkit.optim import optimizer_from
from toolkit.setup import Setup
from toolkit.setup.optimizer import OPTIONS


def with_optimizer(write, kind, *argv, stage=1, defaults=None, **params):
    section = {"type": kind, "params": params} if kind else {"params": params}
    path = write("a.json", zero(stage, optimizer=section))
    return setup(TORCHRUN, "--deepspeed_config", path, *argv, defaults=defaults)


def lines_of(write, kind, *argv, **params):
    path = write("a.json", zero(1, optimizer={"type": kind, "params": params}))
    return refused(DEEPSPEED, "--deepspeed_config", path, *argv)


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("Adam", "adamw"),
        ("ADAM", "adamw"),
        ("adamw", "adamw"),
        ("AdamW", "adamw"),
        ("SGD", "sgd"),
        ("auto", "adamw"),
    ],
)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_a_type_is_read_as_deepspeed_reads_it(write, kind, right, stage):
    got = with_optimizer(write, kind, stage=stage, lr=3e-4)
    assert (got.optimizer, got.learning_rate) == (right, 3e-4)
    assert stage == 0 or "optimizer" not in got.deepspeed_config


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("sgd", "DeepSpeed knows no optimizer of this name; write SGD"),
        ("Lion", "not supported yet; one of AdamW, Adam, SGD"),
        ("Lamb", "not supported yet; one of AdamW, Adam, SGD"),
        ("RMSprop", "not supported yet; one of AdamW, Adam, SGD"),
    ],
)
def test_another_type_is_refused(write, kind, reason):
    assert lines_of(write, kind, lr=1e-3) == (f"a.json: optimizer.type: {kind!r}: {reason}",)


SCRIPT = {"learning_rate": 2e-5, "weight_decay": 0.01, "momentum": 0.5, "optimizer": "sgd"}


@pytest.mark.parametrize(
    ("kind", "right"),
    [
        ("AdamW", ("adamw", 1e-3, 0.0, 0.5)),  # AdamW has no momentum: the script's has no effect
        ("SGD", ("sgd", 1e-3, 0.0, 0.0)),
        ("auto", ("sgd", 2e-5, 0.01, 0.5)),
        (None, ("sgd", 2e-5, 0.01, 0.5)),
    ],
)
def test_what_a_named_optimizer_leaves_out_is_deepspeeds_default(write, kind, right):
    got = with_optimizer(write, kind, defaults=SCRIPT)
    assert (got.optimizer, got.learning_rate, got.weight_decay, got.momentum) == right
    if kind in ("AdamW", "SGD"):
        assert got.origins["learning_rate"] == "a.json: optimizer.params.lr (DeepSpeed's default)"


def test_what_is_left_out_yields_to_the_user_and_auto_is_the_scripts(write):
    typed = with_optimizer(write, "SGD", "--learning_rate", "0.1", "--momentum", "0.9", defaults=SCRIPT)
    assert (typed.learning_rate, typed.momentum, typed.weight_decay) == (0.1, 0.9, 0.0)
    assert (typed.origins["learning_rate"], typed.origins["momentum"]) == ("--learning_rate", "--momentum")
    auto = with_optimizer(write, "SGD", lr="auto", weight_decay="auto", momentum="auto", defaults=SCRIPT)
    assert (auto.learning_rate, auto.weight_decay, auto.momentum) == (2e-5, 0.01, 0.5)


@pytest.mark.parametrize("kind", [FusedAdam, DeepSpeedCPUAdam, torch.optim.SGD])
def test_the_defaults_are_those_of_the_installed_classes(kind):
    theirs = {name: each.default for name, each in inspect.signature(kind.__init__).parameters.items()}
    options = OPTIONS["sgd" if kind is torch.optim.SGD else "adam"]
    assert {name: list(value) if name == "betas" else value for name, value in theirs.items() if name in options} == (
        options
    )
    assert (theirs["lr"], theirs["weight_decay"], theirs.get("momentum", 0)) == (1e-3, 0, 0)


@pytest.mark.parametrize("stage", [0, 1, 2])
@pytest.mark.parametrize(
    ("kind", "params", "theirs"),
    [
        ("AdamW", {"torch_adam": True}, torch.optim.AdamW),
        ("adam", {"torch_adam": True}, torch.optim.AdamW),
        ("Adam", {"torch_adam": True, "adam_w_mode": True}, torch.optim.AdamW),
        ("Adam", {"torch_adam": True, "adam_w_mode": False}, torch.optim.Adam),
        ("AdamW", {"torch_adam": False}, FusedAdam),
        ("Adam", {"adam_w_mode": False}, FusedAdam),
        ("SGD", {}, torch.optim.SGD),
    ],
)
def test_the_defaults_are_those_of_the_class_that_deepspeed_takes(write, kind, params, theirs, stage):
    adam_w_mode = kind.lower() == "adamw" or params.get("adam_w_mode", True)
    if theirs is not torch.optim.SGD:
        engine = SimpleNamespace(zero_use_cpu_optimizer=lambda: False)
        taken = DeepSpeedEngine.get_optimizer_configuration(engine, dict(params), adam_w_mode)[0]
        assert taken is theirs
    right = {name: each.default for name, each in inspect.signature(theirs.__init__).parameters.items()}
    got = with_optimizer(write, kind, stage=stage, defaults=SCRIPT | {"weight_decay": 0.3}, **params)
    assert (got.learning_rate, got.weight_decay) == (right["lr"], right["weight_decay"])
    assert (got.weight_decay == 0.01) == (theirs is torch.optim.AdamW)
    whose = "torch's default, which torch_adam takes" if params.get("torch_adam") else "DeepSpeed's default"
    assert got.origins["weight_decay"] == f"a.json: optimizer.params.weight_decay ({whose})"
    if "betas" in right:
        assert got.optimizer_options == {"betas": list(right["betas"]), "eps": right["eps"]}


def test_offload_takes_deepspeeds_own_adam_unless_torchs_is_asked_for(write):
    engine = SimpleNamespace(zero_use_cpu_optimizer=lambda: True, zenflow=None, bf16_optimizer_states=lambda: False)
    taken = [
        DeepSpeedEngine.get_optimizer_configuration(engine, {"torch_adam": asked}, True)[0] for asked in (False, True)
    ]
    assert taken == [DeepSpeedCPUAdam, torch.optim.AdamW]
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    for asked, decay in ((False, 0.0), (True, 0.01)):
        section = {"type": "AdamW", "params": {"torch_adam": asked}}
        path = write("a.json", {"zero_optimization": offload, "optimizer": section})
        assert setup(TORCHRUN, "--deepspeed_config", path).weight_decay == decay


def test_torch_adams_decay_yields_to_the_user_and_the_file(write):
    typed = with_optimizer(write, "AdamW", "--weight_decay", "0.5", torch_adam=True)
    assert (typed.weight_decay, typed.origins["weight_decay"]) == (0.5, "--weight_decay")
    assert with_optimizer(write, "AdamW", torch_adam=True, weight_decay=0.2).weight_decay == 0.2
    auto = with_optimizer(write, "AdamW", torch_adam=True, weight_decay="auto", defaults=SCRIPT | {"weight_decay": 0.3})
    assert auto.weight_decay == 0.3


@pytest.mark.parametrize(
    ("kind", "params", "right"),
    [
        ("AdamW", {}, {"betas": [0.9, 0.999], "eps": 1e-8}),
        ("Adam", {"betas": [0.8, 0.99], "eps": 1e-6}, {"betas": [0.8, 0.99], "eps": 1e-6}),
        ("AdamW", {"betas": "auto", "eps": "auto"}, {"betas": [0.9, 0.999], "eps": 1e-8}),
        (
            "AdamW",
            {"torch_adam": True, "amsgrad": False, "bias_correction": True},
            {"betas": [0.9, 0.999], "eps": 1e-8},
        ),
        ("SGD", {}, {"dampening": 0.0, "nesterov": False}),
        ("SGD", {"momentum": 0.9, "nesterov": True}, {"dampening": 0.0, "nesterov": True}),
        ("SGD", {"momentum": 0.9, "dampening": 0.5}, {"dampening": 0.5, "nesterov": False}),
    ],
)
def test_the_further_numbers_reach_the_optimizer(write, kind, params, right):
    got = with_optimizer(write, kind, **params)
    assert got.optimizer_options == right
    built = optimizer_from(got)([{"params": [torch.nn.Parameter(torch.zeros(1))]}]).defaults
    assert {name: list(built[name]) if name == "betas" else built[name] for name in right} == right


SGD = ("--optimizer", "sgd")


@pytest.mark.parametrize(
    ("section", "argv", "defaults", "right", "origin"),
    [
        (None, (*SGD, "--nesterov"), {}, True, "--nesterov"),
        (None, (*SGD, "--nesterov", "false"), {"nesterov": True}, False, "default"),
        (None, SGD, {"nesterov": True}, True, "script's default"),
        ({"type": "SGD", "params": {"momentum": 0.9}}, ("--nesterov",), {}, True, "--nesterov"),
        ({"type": "SGD", "params": {"momentum": 0.9}}, (), {"nesterov": True}, False, "default"),
        ({"type": "SGD", "params": {"momentum": 0.9, "nesterov": True}}, ("--nesterov",), {}, True, "a.json: optimi"),
        ({"type": "SGD", "params": {"momentum": 0.9, "nesterov": "auto"}}, ("--nesterov",), {}, True, "--nesterov"),
        ({"params": {"nesterov": "auto"}}, (), {"optimizer": "sgd", "nesterov": True}, True, "script's default"),
    ],
)
def test_nesterov_is_the_users_the_files_or_the_scripts(write, section, argv, defaults, right, origin):
    file = () if section is None else ("--deepspeed_config", write("a.json", zero(1, optimizer=section)))
    got = setup(TORCHRUN, *file, *argv, defaults=defaults)
    assert got.optimizer_options == {"dampening": 0.0, "nesterov": right}
    assert got.origins["optimizer_options"].startswith(origin)


def test_a_scripts_nesterov_yields_to_another_optimizer_and_to_no_momentum():
    default = {"optimizer": "sgd", "nesterov": True}
    assert "nesterov" not in setup(TORCHRUN, "--optimizer", "adamw", defaults=default).optimizer_options
    got = setup(TORCHRUN, "--momentum", "0", defaults=default)
    assert got.optimizer_options["nesterov"] is False
    assert "nesterov (script's default) is not used: it needs a momentum above 0, and dampening 0" in got.notes


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (("--nesterov",), "--nesterov: True: adamw has none; leave it out, or choose sgd"),
        ((*SGD, "--momentum", "0", "--nesterov"), "--nesterov: True: needs a momentum above 0, and dampening 0; corre"),
    ],
)
def test_a_typed_nesterov_without_its_momentum_is_refused(argv, words):
    (line,) = refused(TORCHRUN, *argv)
    assert line.startswith(words)


@pytest.mark.parametrize(("typed", "written"), [("true", False), ("false", True)])
def test_nesterov_typed_and_written_must_agree(write, typed, written):
    (line,) = lines_of(write, "SGD", "--nesterov", typed, momentum=0.9, nesterov=written)
    says = typed.title()
    assert line.startswith(f"a.json: optimizer.params.nesterov: {written}: --nesterov says {says}; make them equal")


def test_nesterov_in_a_setup_by_hand():
    assert Setup.build(strategy="single", optimizer="sgd", nesterov=True).optimizer_options["nesterov"] is True
    with pytest.raises(UserError, match=r"Setup\.build: nesterov: True: adam has none"):
        Setup.build(strategy="single", optimizer="adam", nesterov=True)


def test_offloaded_adam_has_the_same_numbers(write, monkeypatch):
    section = {"type": "Adam", "params": {"betas": [0.8, 0.99], "eps": 1e-6, "adam_w_mode": False}}
    offload = {"stage": 2, "offload_optimizer": {"device": "cpu"}}
    path = write("a.json", {"zero_optimization": offload, "optimizer": section})
    # The class itself compiles for minutes where it was never built.
    monkeypatch.setattr(deepspeed.ops.adam, "DeepSpeedCPUAdam", lambda groups, **numbers: (groups, numbers))
    groups, numbers = optimizer_from(setup(TORCHRUN, "--deepspeed_config", path))([{"params": []}])
    assert groups == [{"params": []}]
    assert numbers == {"lr": 1e-3, "weight_decay": 0.0, "betas": [0.8, 0.99], "eps": 1e-6, "adamw_mode": False}


@pytest.mark.parametrize(
    ("kind", "params", "words"),
    [
        ("AdamW", {"amsgrad": True}, "amsgrad: True: DeepSpeed's Adam has none; write false, or remove it"),
        (
            "Adam",
            {"bias_correction": False},
            "bias_correction: False: torch's Adam always corrects; write true, or rem",
        ),
        ("AdamW", {"fp32_optimizer_states": False}, "fp32_optimizer_states: False: optimizer state is kept in fp32"),
        ("AdamW", {"fused": True}, "fused: True: the optimizer's kernel is chosen here; write null, or remove it"),
        ("SGD", {"maximize": True}, "maximize: True: training makes the loss smaller; write false, or remove it"),
        ("AdamW", {"betas": [0.9]}, "betas: [0.9]: expected two numbers, each at least 0 and below 1; correct the va"),
        ("AdamW", {"betas": [0.9, 1]}, "betas: [0.9, 1]: expected two numbers"),
        ("AdamW", {"betas": [0.9, "0.99"]}, "betas: [0.9, '0.99']: expected two numbers"),
        ("AdamW", {"adam_w_mode": False}, "adam_w_mode: False: the optimizer is adamw; remove it, or name the other"),
        ("SGD", {"nesterov": True}, "nesterov: True: needs a momentum above 0, and dampening 0; correct one of the t"),
        ("SGD", {"nesterov": True, "momentum": 0.9, "dampening": 0.1}, "nesterov: True: needs a momentum above 0, a"),
        ("SGD", {"momentum": 1}, "momentum: 1: must be at least 0 and below 1; correct the value"),
        ("AdamW", {"momentum": 0.9}, "momentum: 0.9: "),
        ("SGD", {"betas": [0.9, 0.99]}, "betas: [0.9, 0.99]: "),
        ("AdamW", {"eps": "1e-6"}, "eps: '1e-6': expected number"),
    ],
)
def test_a_number_that_would_be_dropped_or_changed_is_refused(write, kind, params, words):
    (line,) = lines_of(write, kind, **params)
    assert line.startswith(f"a.json: optimizer.params.{words}")


# --- an optimizer of the script's own --------------------------------------------------------------------------------

FILE = {
    "optimizer": Place("a.json", "optimizer.type"),
    "learning_rate": Place("a.json", "optimizer.params.lr"),
    "optimizer_options": Place("a.json", "optimizer.params"),
}


def prepared(optimizer_fn, **origins):
    setup = Setup.build(strategy="single", launcher="python", use_cpu=True, learning_rate=1e-3)
    setup = replace(setup, origins={**setup.origins, **origins})
    return toolkit.prepare(lambda: torch.nn.Linear(2, 1), toolkit.cross_entropy, optimizer_fn, setup)


def test_the_files_optimizer_and_another_of_the_scripts_own_are_refused():
    with pytest.raises(UserError) as caught:
        prepared(lambda groups: torch.optim.AdamW(groups, lr=2e-5, eps=1e-6), **FILE)
    remedy = "make them equal, or build it with toolkit.optimizer_from(setup)"
    assert caught.value.lines == (
        f"a.json: optimizer.params.lr: 0.001: the script's own optimizer, AdamW, has 2e-05; {remedy}",
        "a.json: optimizer.params: {'betas': [0.9, 0.999], 'eps': 1e-08}: the script's own optimizer, AdamW, has "
        f"{{'betas': [0.9, 0.999], 'eps': 1e-06}}; {remedy}",
    )
    with pytest.raises(UserError) as caught:
        prepared(lambda groups: torch.optim.SGD(groups, lr=1e-3), **FILE)
    assert caught.value.lines == (
        f"a.json: optimizer.type: 'adamw': the script's own optimizer, SGD, has sgd; {remedy}",
    )


@pytest.mark.parametrize(
    ("lr", "origins"),
    [
        (1e-3, FILE),
        (2e-5, {}),  # no file says otherwise
        (2e-5, {"learning_rate": Place("a.json", "scheduler.params.warmup_max_lr")}),  # set in each step
    ],
)
def test_an_own_optimizer_that_contradicts_no_file_is_taken(lr, origins):
    engine = prepared(lambda groups: torch.optim.AdamW(groups, lr=lr), **origins)
    assert engine.torch_optimizer.param_groups[0]["lr"] == lr
    engine.close()
