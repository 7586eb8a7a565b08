"""What `check` plans is what Accelerate's own code would hand to the script."""

import os

import pytest
from accelerates import READ, handed
from launched import ROOT, refused, setup

from toolkit.setup.hostfile import Hosts
from toolkit.setup.launcher import read_launch
from toolkit.setup.planned import plan

FILES = {
    "inline": """
distributed_type: DEEPSPEED
num_processes: 4
mixed_precision: bf16
deepspeed_config:
  zero_stage: 3
  gradient_clipping: 1.0
  gradient_accumulation_steps: 4
  offload_optimizer_device: none
  offload_param_device: cpu
  zero3_init_flag: true
  zero3_save_16bit_model: true
""",
    "bare": "distributed_type: DEEPSPEED\nnum_processes: 2\ndeepspeed_config: {}\n",
    "ddp": "distributed_type: MULTI_GPU\nnum_processes: 2\nmixed_precision: fp16\nuse_cpu: true\n",
    "cpu": "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n",
    "one": "distributed_type: 'NO'\nmixed_precision: 'no'\n",
    "compiled": "distributed_type: MULTI_GPU\nnum_processes: 2\ndynamo_config: {dynamo_backend: INDUCTOR}\n",
    "backend": "distributed_type: MULTI_GPU\nnum_processes: 2\ndynamo_backend: EAGER\n",
    "old": "distributed_type: MULTI_GPU\nnum_processes: 2\nfp16: true\n",
    "machines": "distributed_type: DEEPSPEED\nnum_processes: 8\nnum_machines: 2\nmachine_rank: 0\n"
    "main_process_ip: 127.0.0.1\nmain_process_port: 0\ndeepspeed_config:\n  deepspeed_multinode_launcher: standard\n",
}
PRESETS = sorted(path.stem for path in (ROOT / "accelerate_configs").glob("*.yaml"))


# What a shell may have exported.
EXPORTED = {
    "ACCELERATE_MIXED_PRECISION": "bf16",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "3",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "1",
    "ACCELERATE_DYNAMO_BACKEND": "EAGER",
    "ACCELERATE_DEEPSPEED_CONFIG_FILE": "other.json",
}


@pytest.mark.parametrize("exported", [{}, EXPORTED], ids=["clean", "exported"])
@pytest.mark.parametrize("options", [(), ("--num_processes", "4")], ids=["file", "option"])
@pytest.mark.parametrize("name", [*FILES, *PRESETS])
def test_the_environment_is_accelerates(monkeypatch, tmp_path, name, options, exported):
    for variable in [each for each in os.environ if each.startswith("ACCELERATE_")]:
        monkeypatch.delenv(variable)
    for variable, value in exported.items():
        monkeypatch.setenv(variable, value)
    path = ROOT / "accelerate_configs" / f"{name}.yaml"
    if name in FILES:
        path = tmp_path / "a.yaml"
        path.write_text(FILES[name])
    environ, ranks = handed(monkeypatch, path, *options, "--main_process_port", "0")
    environ = {name: value for name, value in environ.items() if name in READ}
    processes = int(options[1]) if options else None
    planned = plan(os.environ, "train.py", config_file=str(path), deepspeed=False, num_processes=processes, hosts=None)
    assert planned.faults == []
    assert {name: value for name, value in planned.environ.items() if name in READ} == environ
    launch, _ = read_launch(planned.environ, planned.parent, "train.py")
    assert (launch.launcher, launch.yaml) == ("accelerate", str(path))
    assert launch.local_world_size == ranks


NOTHING = {"config_file": None, "deepspeed": False, "num_processes": None, "hosts": None}


def planned(**more):
    return plan({"CUDA_VISIBLE_DEVICES": ""}, "train.py", **NOTHING | more)


@pytest.mark.parametrize(
    ("given", "launcher", "ranks", "origin"),
    [
        ({}, "python", 1, None),
        ({"num_processes": 1}, "python", 1, "--num_processes"),
        ({"num_processes": 3}, "torchrun", 3, "--num_processes"),
        ({"deepspeed": True}, "deepspeed", 1, "deepspeed's default"),
        ({"deepspeed": True, "num_processes": 2}, "deepspeed", 2, "--num_processes"),
        ({"hosts": Hosts("h", {"a": 4, "b": 4}, {"a": 1, "b": 2})}, "deepspeed", 8, "h: slots"),
        ({"deepspeed": True, "hosts": Hosts("h", {"a": 4, "b": 4}, {"a": 1, "b": 2})}, "deepspeed", 8, "h: slots"),
    ],
)
def test_the_launcher_without_a_yaml(given, launcher, ranks, origin):
    got = planned(**given)
    launch, faults = read_launch(got.environ, got.parent, "train.py")
    assert (launch.launcher, launch.world_size, faults, got.faults) == (launcher, ranks, [], [])
    assert (got.processes.origin if got.processes is not None else None) == origin


@pytest.mark.parametrize(
    ("inherited", "given", "expected"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {}, ("accelerate", 1, "bf16")),
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {"num_processes": 2}, ("accelerate", 2, "bf16")),
        ({"RANK": "1", "WORLD_SIZE": "4"}, {}, ("torchrun", 4, None)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, {"deepspeed": True, "num_processes": 2}, ("deepspeed", 2, None)),
    ],
)
def test_a_script_gets_what_the_shell_exported_and_the_launcher_does_not_set(inherited, given, expected):
    got = plan(inherited, "train.py", **{**NOTHING, **given})
    launch, _ = read_launch(got.environ, got.parent, "train.py")
    precision = launch.mixed_precision.value if launch.mixed_precision is not None else None
    assert (launch.launcher, launch.world_size, precision) == expected


def test_a_hostfile_and_another_number_of_ranks_are_refused():
    hosts = Hosts("h", {"a": 4, "b": 4}, {"a": 1, "b": 2})
    line = "--num_processes: 2: h: slots adds up to 8; write 8, or change the slots"
    assert planned(deepspeed=True, num_processes=2, hosts=hosts).faults == [line]


def test_a_yaml_without_ranks_is_refused_as_accelerate_does(tmp_path):
    (tmp_path / "a.yaml").write_text("distributed_type: MULTI_GPU\n")
    (line,) = planned(config_file=str(tmp_path / "a.yaml")).faults
    assert line == (
        f"{tmp_path}/a.yaml: num_processes: None: Accelerate wants the number of ranks; "
        "write num_processes: 2, or add --num_processes"
    )


@pytest.mark.parametrize("left", [{"WORLD_SIZE": "4"}, {"ACCELERATE_USE_DEEPSPEED": "true"}])
def test_what_a_launcher_sets_does_not_come_alone(left):
    ((name, value),) = left.items()
    reason = "no launcher has set RANK beside it, and python starts one process; unset it, or use a launcher"
    assert f"environment: {name}: '{value}': {reason}" in refused(left)
    assert setup({"WORLD_SIZE": "1"}).strategy == "single"
