"""What a launcher would hand to rank 0, without starting anything: `oneloop check` then settles it as a run does."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.errors import fault
from toolkit.setup.accelerate_file import AccelerateFile, read_yaml
from toolkit.setup.batch import Given
from toolkit.setup.device import count_gpus
from toolkit.setup.hostfile import Hosts
from toolkit.setup.launcher import IN_ENVIRONMENT

# Types that Accelerate starts through torchrun's agent, a rank each.
_MULTI = re.compile(r"MULTI_(?!CPU$)\w+|DEEPSPEED|FSDP|MEGATRON_LM")


@dataclass(frozen=True)
class Planned:
    """The environment of rank 0, its parent's command line, and the number of ranks with its origin."""

    environ: Mapping[str, str]
    parent: tuple[str, ...] = ()
    processes: Given | None = None
    faults: list[str] = field(default_factory=list)


def plan(
    environ: Mapping[str, str],
    script: str,
    *,
    config_file: str | None,
    deepspeed: bool,
    num_processes: int | None,
    hosts: Hosts | None,
) -> Planned:
    """With a `config_file` as `accelerate launch` does, with a DeepSpeed JSON or hosts as `deepspeed`, else torchrun or
    python. What stands in the environment and the launcher does not set, a script gets as it is.

    Args:
        deepspeed: whether a DeepSpeed JSON is given.
        num_processes: as `accelerate launch --num_processes`, or the ranks of the other launchers.
        hosts: of a hostfile; their slots are the ranks.
    """
    typed = Given(num_processes, "--num_processes") if num_processes is not None else None
    slots = Given(hosts.total, f"{hosts.path}: slots") if hosts is not None else None
    if config_file is not None:
        return _accelerate(environ, read_yaml(config_file), script, typed, slots)
    faults = _disagree(typed, slots)
    processes = typed or slots
    deepspeed = deepspeed or hosts is not None
    if processes is None and not deepspeed:
        return Planned(environ)
    if processes is None:
        gpus = count_gpus(environ)
        processes = Given(max(1, gpus), "deepspeed's default, one for each GPU" if gpus else "deepspeed's default")
    ranks = _ranks(processes.value, len(hosts.slots) if hosts is not None else 1)
    if deepspeed:
        return Planned({**environ, **ranks, "CROSS_RANK": "0", "LOCAL_SIZE": "1"}, (), processes, faults)
    if processes.value == 1:
        return Planned(environ, (), processes, faults)
    return Planned({**environ, **ranks, "TORCHELASTIC_RUN_ID": "none"}, (), processes, faults)


def _accelerate(
    inherited: Mapping[str, str], file: AccelerateFile, script: str, typed: Given | None, slots: Given | None
) -> Planned:
    """As accelerate 1.15 does in `_validate_launch_command` and the functions `prepare_*_env`."""
    parent = ["accelerate", "launch", "--config_file", file.path]
    parent += ["--num_processes", str(typed.value)] if typed is not None else []
    written = file.get("num_processes")
    processes = typed or Given(written, file.where("num_processes"))
    fields = file.settings.get("deepspeed_config") or {}
    # A type that is refused or missing has its line; the rest is checked as its section would have it.
    kind = str(file.settings.get("distributed_type", "DEEPSPEED" if fields else "MULTI_GPU"))
    environ = {
        **inherited,
        "ACCELERATE_MIXED_PRECISION": str(file.settings.get("mixed_precision") or "no").lower(),
    }
    if kind != "DEEPSPEED":
        environ["ACCELERATE_DYNAMO_BACKEND"] = file.dynamo_backend
    faults = _disagree(typed or (processes if written != -1 else None), slots)
    machines = file.get("num_machines")
    if not _MULTI.fullmatch(kind):
        environ["ACCELERATE_USE_CPU"] = str(bool(file.settings.get("use_cpu")))
        return Planned(environ, (*parent, script), None, faults)
    if processes.value == -1:
        told = "num_processes" in file.lines or any("num_processes" in line for line in file.faults)
        if file.settings and not told:
            reason, remedy = "Accelerate wants the number of ranks", "write num_processes: 2, or add --num_processes"
            faults.append(fault(file.where("num_processes"), None, reason, remedy))
        processes = Given(machines, "one for each machine")
    environ |= _ranks(processes.value, machines) | {"TORCHELASTIC_RUN_ID": "none"}
    if kind == "DEEPSPEED":
        environ["ACCELERATE_USE_DEEPSPEED"] = "true"
        named = [*fields, *(["mixed_precision"] if file.settings.get("mixed_precision") is not None else [])]
        environ["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(named).lower()
        if (json_file := fields.get("deepspeed_config_file")) is not None:
            environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"] = str(json_file)
        handed = {key: fields.get(name) for name, key in IN_ENVIRONMENT.items() if not name.endswith("nvme_path")}
        environ |= {key: str(value).lower() for key, value in handed.items() if value is not None}
    return Planned(environ, (*parent, script), None, faults)


def _ranks(processes: int, machines: int) -> dict[str, str]:
    local = str(max(1, processes // max(1, machines)))
    return {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(processes), "LOCAL_WORLD_SIZE": local}


def _disagree(processes: Given | None, slots: Given | None) -> list[str]:
    if processes is None or slots is None or processes.value == slots.value:
        return []
    reason = f"{slots.origin} adds up to {slots.value}"
    return [fault(processes.origin, processes.value, reason, f"write {slots.value}, or change the slots")]
