"""Which state goes to the host's memory, from which files, and what is refused there."""

import os

import pytest
from launched import DEEPSPEED, INLINE, INLINE_YAML, TORCHRUN, ZERO, of_yaml, refused, setup

from toolkit.setup import Setup

CPU, OPTIMIZER, PARAM = {"device": "cpu"}, "offload_optimizer", "offload_param"


def config(stage, more=None, **sections):
    return {"zero_optimization": {"stage": stage, **sections}, **(more or {})}


# --- what is taken -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "sections", "strategy", "on_host"),
    [
        (1, {OPTIMIZER: CPU}, "zero1_offload", True),
        (2, {OPTIMIZER: CPU}, "zero2_offload", True),
        (3, {OPTIMIZER: CPU}, "zero3_offload", True),
        (3, {OPTIMIZER: CPU, PARAM: CPU}, "zero3_offload", True),
        (3, {PARAM: CPU}, "zero3_offload", False),
        (2, {OPTIMIZER: {"device": "none"}}, "zero2", False),
        (2, {OPTIMIZER: {"device": "auto", "nvme_path": "auto"}}, "zero2", False),
        (2, {OPTIMIZER: None}, "zero2", False),
        (0, {OPTIMIZER: {"device": "none"}}, "ddp", False),
    ],
)
def test_the_sections_decide(write, stage, sections, strategy, on_host):
    got = setup(TORCHRUN, "--deepspeed_config", write("a.json", config(stage, **sections)))
    assert (got.strategy, got.offloads_optimizer) == (strategy, on_host)
    if strategy.endswith("_offload"):
        assert got.deepspeed_config["zero_optimization"] == {"stage": stage, **sections}
        assert got.deepspeed_config["zero_force_ds_cpu_optimizer"] is False
    elif got.deepspeed_config is not None:
        assert got.deepspeed_config["zero_optimization"] == {"stage": stage}


@pytest.mark.parametrize(
    ("strategy", "sections"),
    [
        ("zero1_offload", {OPTIMIZER: CPU}),
        ("zero2_offload", {OPTIMIZER: CPU}),
        ("zero3_offload", {OPTIMIZER: CPU, PARAM: CPU}),
    ],
)
def test_build_has_the_strategies_too(strategy, sections):
    got = Setup.build(strategy=strategy, world_size=2)
    assert got.deepspeed_config["zero_optimization"] == {"stage": int(strategy[4])} | sections
    more = {"zero_optimization": {OPTIMIZER: CPU | {"pin_memory": False}}}
    got = Setup.build(strategy=strategy, world_size=2, deepspeed=more)
    assert got.deepspeed_config["zero_optimization"] == {"stage": int(strategy[4]), **more["zero_optimization"]}


@pytest.mark.parametrize(("optimizer", "said"), [("adamw", True), ("adam", True), ("sgd", False)])
def test_the_banner_says_which_optimizer_is_another_class(write, optimizer, said):
    got = setup(
        DEEPSPEED, "--deepspeed_config", write("a.json", config(2, **{OPTIMIZER: CPU})), "--optimizer", optimizer
    )
    assert (f", {optimizer} is DeepSpeedCPUAdam, " in got.banner()) is said
    assert "DeepSpeedCPUAdam" not in setup(DEEPSPEED, "--optimizer", optimizer).banner()


@pytest.mark.parametrize(
    ("section", "note", "left"),
    [
        (
            {"device": "cpu", "nvme_path": "/disk", "buffer_count": 5, "pin_memory": True},
            "a.json: zero_optimization.offload_optimizer.device cpu: not used there: nvme_path, buffer_count",
            {"device": "cpu", "pin_memory": True},
        ),
        (
            {"pin_memory": True},
            "a.json: zero_optimization.offload_optimizer.device: no device is given, nothing is offloaded",
            None,
        ),
    ],
)
def test_what_has_no_effect_is_said(write, section, note, left):
    got = setup(TORCHRUN, "--deepspeed_config", write("a.json", config(2, **{OPTIMIZER: section})))
    assert note in got.notes
    assert got.deepspeed_config["zero_optimization"].get(OPTIMIZER) == left


# --- Accelerate's fields -------------------------------------------------------------------------------------------


def fields(environ, text, *flags):
    """Of `accelerate launch` with these lines in the YAML's deepspeed_config."""
    names = {"OFFLOAD_OPTIMIZER_DEVICE": "none", **environ}
    named = {f"ACCELERATE_DEEPSPEED_{name}": value for name, value in names.items()}
    return of_yaml(text, ZERO | INLINE | named, *flags)


def test_fields_of_the_yaml_are_the_sections(write):
    text = INLINE_YAML.replace("device: none", "device: cpu\n  offload_param_device: cpu")
    environ, parent = fields({"OFFLOAD_OPTIMIZER_DEVICE": "cpu", "OFFLOAD_PARAM_DEVICE": "cpu"}, write("i.yaml", text))
    got = setup(environ, parent=parent)
    assert got.strategy == "zero3_offload"
    assert got.deepspeed_config["zero_optimization"] == {"stage": 3, OPTIMIZER: CPU, PARAM: CPU}


def test_a_field_of_none_is_off(write):
    environ, parent = fields({}, write("i.yaml", INLINE_YAML))
    got = setup(environ, parent=parent)
    assert (got.strategy, got.deepspeed_config["zero_optimization"]) == ("zero3", {"stage": 3})


@pytest.mark.parametrize(
    ("added", "environ", "flags", "where"),
    [
        ("  offload_optimizer_nvme_path: /disk\n", {}, (), "i.yaml: deepspeed_config.offload_optimizer_device"),
        ("", {}, ("--offload_optimizer_nvme_path", "/disk"), "i.yaml: deepspeed_config.offload_optimizer_device"),
        ("", {"OFFLOAD_OPTIMIZER_NVME_PATH": "/disk"}, (), "i.yaml: deepspeed_config.offload_optimizer_device"),
        ("  offload_optimizer_nvme_path: none\n", {}, (), None),
    ],
)
def test_a_path_beside_the_cpu_is_not_dropped_without_a_word(write, added, environ, flags, where):
    text = INLINE_YAML.replace("device: none\n", f"device: cpu\n{added}")
    environ, parent = fields({"OFFLOAD_OPTIMIZER_DEVICE": "cpu"} | environ, write("i.yaml", text), *flags)
    got = setup(environ, parent=parent)
    assert got.deepspeed_config["zero_optimization"][OPTIMIZER] == CPU
    assert [note for note in got.notes if "nvme_path" in note] == (
        [] if where is None else [f"{where} cpu: not used there: nvme_path"]
    )


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (
            config(0, **{OPTIMIZER: CPU}),
            "offload_optimizer.device: 'cpu': ZeRO stage 0 cannot offload that; write stage 1, 2 or 3, or remove the "
            "section",
        ),
        (
            config(2, **{PARAM: CPU}),
            "offload_param.device: 'cpu': ZeRO stage 2 cannot offload that; write stage 3, or remove the section",
        ),
        (
            config(1, {"pipeline": {"stages": 2}}, **{OPTIMIZER: CPU}),
            "offload_optimizer.device: 'cpu': a pipeline keeps its state on its own device; remove the section",
        ),
        (
            config(2, **{OPTIMIZER: {"device": "gpu"}}),
            "offload_optimizer.device: 'gpu': state on the rank's own device is not offloaded; write none, or cpu",
        ),
        (
            config(3, **{PARAM: {"device": "cuda:0"}}),
            "'cuda:0': state on the rank's own device is not offloaded; write none, or cpu",
        ),
        (config(2, **{OPTIMIZER: {"device": "CPU"}}), "'CPU': unknown device; did you mean cpu?"),
        (config(2, **{OPTIMIZER: {"device": "disk"}}), "'disk': unknown device; write cpu or none"),
        (
            config(3, **{OPTIMIZER: {"device": "nvme", "nvme_path": "/tmp"}}),
            "offload_optimizer.device: 'nvme': DeepSpeed 0.19.8 trains another model with state on NVMe; write cpu",
        ),
        (
            config(2, **{OPTIMIZER: {"device": "cpu", "pin_memry": True}}),
            "offload_optimizer.pin_memry: True: unknown key, it would be ignored; did you mean pin_memory?",
        ),
        (
            config(2, {"zero_force_ds_cpu_optimizer": True}, **{OPTIMIZER: CPU}),
            "offloaded Adam and AdamW are DeepSpeed's own anyway, SGD stays torch's; write false or remove the key",
        ),
    ],
)
def test_an_offload_that_cannot_be_is_refused(write, content, line):
    (got,) = refused(DEEPSPEED, "--deepspeed_config", write("a.json", content))
    assert got.startswith("a.json: zero_")
    assert got.endswith(line)


def test_a_field_is_refused_under_the_name_it_was_written(write):
    text = INLINE_YAML.replace("zero_stage: 3", "zero_stage: 2").replace(
        "device: none", "device: none\n  offload_param_device: cpu"
    )
    environ, parent = fields({"ZERO_STAGE": "2", "OFFLOAD_PARAM_DEVICE": "cpu"}, write("i.yaml", text))
    (line,) = refused(environ, parent=parent)
    assert line.startswith("i.yaml: deepspeed_config.offload_param_device: 'cpu': ZeRO stage 2 cannot offload that")


def test_python_with_an_offload_json_is_refused(write):
    (line,) = refused({}, "--deepspeed_config", write("a.json", config(2, **{OPTIMIZER: CPU})))
    assert line.startswith("--deepspeed_config: 'a.json': python starts one process without DeepSpeed; start with: ")


def test_accelerates_plain_launch_starts_no_offload(write):
    environ, parent = of_yaml(
        write("p.yaml", "distributed_type: MULTI_GPU"), TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no"}
    )
    (line,) = refused(environ, "--deepspeed_config", write("a.json", config(2, **{OPTIMIZER: CPU})), parent=parent)
    assert "it asks for zero2_offload, but p.yaml: distributed_type MULTI_GPU starts no DeepSpeed" in line


@pytest.mark.parametrize("stage", [2, 3])
@pytest.mark.parametrize(
    ("section", "path_shown", "reason"),
    [
        ({}, "None", "nvme needs the path of a folder"),
        ({"nvme_path": None}, "None", "nvme needs the path of a folder"),
        ({"nvme_path": "auto"}, "'auto'", "nvme needs the path of a folder"),
        ({"nvme_path": "nowhere"}, "'nowhere'", "no such folder, searched from {folder}"),
        ({"nvme_path": "a.json/swap"}, "'a.json/swap'", "no such folder, searched from {folder}"),
        ({"nvme_path": "a.json"}, "'a.json'", "not a folder"),
    ],
)
def test_nvme_without_a_usable_path_is_told_beside_its_refusal(write, tmp_path, stage, section, path_shown, reason):
    name = write("a.json", config(stage, **{OPTIMIZER: {"device": "nvme", **section}}))
    zero = "a.json: zero_optimization.offload_optimizer"
    assert list(refused(TORCHRUN, "--deepspeed_config", name)) == [
        f"{zero}.device: 'nvme': DeepSpeed 0.19.8 trains another model with state on NVMe; write cpu",
        f"{zero}.nvme_path: {path_shown}: {reason.format(folder=tmp_path)}; name a folder that can be written, or "
        "write cpu, which needs none",
    ]


def test_a_path_that_cannot_be_written_is_told_too(write, monkeypatch):
    monkeypatch.setattr("toolkit.setup.offload.os.access", lambda path, mode: path != "." or mode != os.W_OK)
    name = write("a.json", config(3, **{PARAM: {"device": "nvme", "nvme_path": "."}}))
    device, path = refused(TORCHRUN, "--deepspeed_config", name)
    assert path.startswith("a.json: zero_optimization.offload_param.nvme_path: '.': the folder cannot be written; name")
    assert (device.where.key, path.where.key) == (
        "zero_optimization.offload_param.device",
        "zero_optimization.offload_param.nvme_path",
    )


def test_nvme_fields_of_a_yaml_are_told_under_their_own_names(write):
    added = "device: nvme\n  offload_optimizer_nvme_path: nowhere\n"
    text = INLINE_YAML.replace("device: none\n", added)
    environ, parent = fields({"OFFLOAD_OPTIMIZER_DEVICE": "nvme"}, write("i.yaml", text))
    device, path = refused(environ, parent=parent)
    assert device.startswith("i.yaml: deepspeed_config.offload_optimizer_device: 'nvme': DeepSpeed 0.19.8 trains")
    assert path.startswith("i.yaml: deepspeed_config.offload_optimizer_nvme_path: 'nowhere': no such folder")
