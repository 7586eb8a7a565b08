"""What Accelerate's launchers need of a file for its machines and ranks, and the fields that a launch does not use.

As accelerate 1.15 has it in `_validate_launch_command`, `prepare_multi_gpu_env` and `prepare_deepspeed_cmd_env`:
MULTI_GPU, and DEEPSPEED with the launcher `standard`, start torchrun's agent on each machine. Every other launcher, and
none, which is pdsh, starts `deepspeed --hostfile`. Without an address the agent searches a host called "None" for ever,
and without a hostfile `deepspeed` trains on this machine alone.
"""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup.accelerate_keys import VERSION, AccelerateFile
from toolkit.setup.hostfile import read_hostfile
from toolkit.setup.words import as_json, nearest

BACKENDS = ("static", "c10d", "etcd", "etcd-v2")  # of torchrun's rendezvous
LAUNCHERS = ("pdsh", "standard", "openmpi", "mvapich", "mpich", "nossh", "slurm")
# The parser of `accelerate launch` has a default of its own for these, which wins over the file.
OPTION_ALONE = ("rdzv_backend", "same_network", "enable_cpu_affinity")
_ONE_PROCESS = ("NO", "MULTI_CPU")
_FLAGS = {"cpu": "NO", "multi_gpu": "MULTI_GPU", "use_deepspeed": "DEEPSPEED"}
_ONE = "there is one machine"


@dataclass(frozen=True)
class _Launch:
    """A file under the options that `accelerate launch` was given beside it."""

    file: AccelerateFile
    options: Mapping[str, str]

    def get(self, name: str) -> Any:
        if name in self.options:
            text = self.options[name]
            return int(text) if re.fullmatch("-?[0-9]+", text) else text
        return self.file.settings.get(name)

    def field(self, name: str) -> Any:
        """Of deepspeed_config; None where there is no DeepSpeed."""
        if self.kind != "DEEPSPEED":
            return None
        return self.options.get(name, (self.file.settings.get("deepspeed_config") or {}).get(name))

    @property
    def kind(self) -> Any:
        return next(
            (kind for flag, kind in _FLAGS.items() if flag in self.options), self.file.settings.get("distributed_type")
        )

    @property
    def machines(self) -> int:
        return self.get("num_machines") or 1

    @property
    def launcher(self) -> str:
        """Of DeepSpeed, "" where torchrun's agent starts the ranks."""
        launcher = self.field("deepspeed_multinode_launcher") or LAUNCHERS[0]
        return "" if self.kind != "DEEPSPEED" or launcher == "standard" else launcher

    def failed(self, name: str) -> bool:
        """Whether the key in the file has a line already."""
        return any(getattr(line, "where", None) == self.file.where(name) for line in self.file.faults)

    def refuse(self, name: str, value: Any, reason: str, remedy: str) -> None:
        if name in self.options:
            self.file.faults.append(fault(f"accelerate launch --{name}", value, reason, remedy))
        else:
            self.file.refuse(name, value, reason, remedy)


def check_machines(file: AccelerateFile, options: Mapping[str, str]) -> None:
    """Adds to the `faults` and `notes` of a file whose `settings` have passed the checks of each key.

    Args:
        options: of `accelerate launch`, which win over the file.
    """
    launch = _Launch(file, options)
    if (port := launch.get("main_process_port")) is not None and port > 65535:
        launch.refuse("main_process_port", port, "ports end at 65535", "write a smaller number, 0 finds a free one")
    _check_ranks(launch)
    names = {
        "rdzv_backend": (file.settings.get("rdzv_backend"), BACKENDS),
        "deepspeed_config.deepspeed_multinode_launcher": (launch.field("deepspeed_multinode_launcher"), LAUNCHERS),
    }
    unknown = {key: row for key, row in names.items() if row[0] is not None and row[0] not in row[1]}
    for key, (value, known) in unknown.items():
        file.refuse(key, value, "unknown", nearest(str(value), known) or f"one of {', '.join(known)}")
    if launch.kind is None or unknown or launch.failed("num_machines"):
        return
    if launch.machines > 1:
        _check_several(launch)
    file.notes.extend(f"{file.where(key)} {as_json(value)} is not used: {why}" for key, value, why in _unused(launch))


def _check_ranks(launch: _Launch) -> None:
    machines, rank, processes = (launch.get(name) for name in ("num_machines", "machine_rank", "num_processes"))
    if rank is not None and rank >= (machines or 1):
        launch.refuse("machine_rank", rank, f"not one of {machines or 1} machines", f"give 0 to {(machines or 1) - 1}")
    if processes is not None and processes % (machines or 1):
        reason = f"{processes} processes do not divide into {machines} machines ({launch.file.where('num_machines')})"
        launch.refuse("num_processes", processes, reason, f"write a multiple of {machines}")
    ids, kind = launch.get("gpu_ids"), launch.kind
    if ids not in (None, "all") and kind == "MULTI_GPU" and (machines or 1) == 1 and len(str(ids).split(",")) < 2:
        reason = "Accelerate wants two or more for MULTI_GPU"
        launch.refuse("gpu_ids", ids, reason, "write all, or two or more ids")


def _check_several(launch: _Launch) -> None:
    """Several machines."""
    machines = launch.machines
    if launch.kind in _ONE_PROCESS:
        if launch.get("num_processes") is None:  # more processes than one have their line
            reason = f"{launch.kind} starts one process on each, which know nothing of each other"
            launch.refuse("num_machines", machines, reason, "write 1, or distributed_type: MULTI_GPU")
        return
    if launch.launcher:
        _check_hostfile(launch)
        return
    if not launch.get("main_process_ip") and not launch.failed("main_process_ip"):
        reason = "Accelerate needs main_process_ip with it, and searches for it for ever"
        launch.refuse("num_machines", machines, reason, "write main_process_ip, the address of the machine of rank 0")
    if launch.get("main_process_port") == 0:
        reason = "each machine would find a port of its own"
        launch.refuse("main_process_port", 0, reason, "write the number of one, 29500 where left out")
    backend = launch.file.settings.get("rdzv_backend") or "static"
    if backend != "static" and "rdzv_backend" not in launch.options:
        reason = f"Accelerate {VERSION} does not take it from the file, and meets by static"
        launch.refuse("rdzv_backend", backend, reason, f"remove it, or give accelerate launch --rdzv_backend {backend}")
    if launch.get("machine_rank") is None and launch.options.get("rdzv_backend", "static") == "static":
        where = launch.file.where("machine_rank")
        launch.file.notes.append(f"{where} is missing: 0 here, give --machine_rank on each of the other machines")


def _check_hostfile(launch: _Launch) -> None:
    """`deepspeed --hostfile` of the launchers that read one."""
    key, path = "deepspeed_config.deepspeed_hostfile", launch.field("deepspeed_hostfile")
    filters = [name for name in ("deepspeed_exclusion_filter", "deepspeed_inclusion_filter") if launch.field(name)]
    alone = "without it deepspeed starts on this machine alone"
    if len(filters) == 2:
        reason = f"Accelerate hands on {filters[0]} alone"
        launch.refuse(f"deepspeed_config.{filters[1]}", launch.field(filters[1]), reason, "keep one of the two")
    if not path and not launch.failed("deepspeed_config") and not launch.failed(key):
        reason = f"the launcher {launch.launcher} needs deepspeed_hostfile with it, {alone}"
        remedy = "name the hostfile, or write deepspeed_multinode_launcher: standard and main_process_ip"
        launch.refuse("num_machines", launch.machines, reason, remedy)
    elif path and not os.path.isfile(path):
        launch.refuse(key, path, f"no such file, searched from {os.getcwd()}, {alone}", "give the path of a hostfile")
    elif path:
        try:
            hosts = len(read_hostfile(path).slots)
        except UserError as error:
            launch.file.faults.extend(error.lines)
            return
        if hosts != launch.machines and not filters:
            reason = f"{launch.file.where('num_machines')} is {launch.machines}, and {hosts} stand there"
            launch.refuse(key, path, reason, f"write num_machines: {hosts}, or change the hosts")


def _unused(launch: _Launch) -> Iterator[tuple[str, Any, str]]:
    """(key, value, why) of each field that says something else than `accelerate config` writes, to no effect."""
    one, settings = launch.machines == 1, {**launch.file.settings, **dict.fromkeys(launch.options)}
    own = f"Accelerate {VERSION} takes it from the command line alone"
    compiler = settings.get("dynamo_config") or {}
    rows = [
        ("main_process_ip", one, _ONE),
        ("main_process_port", launch.kind in _ONE_PROCESS, "there is one process"),
        ("rdzv_backend", settings.get("rdzv_backend") != "static" and (one or launch.launcher), own),
        ("enable_cpu_affinity", True, own),
        ("main_training_function", settings.get("main_training_function") != "main", "TPUs alone call it"),
        ("debug", True, "it checks operations of Accelerate's that no engine here calls"),
        ("gpu_ids", settings.get("gpu_ids") != "all" and settings.get("use_cpu"), "use_cpu is true"),
    ]
    yield from ((name, settings[name], why) for name, unused, why in rows if unused and settings.get(name))
    if launch.file.dynamo_backend == "NO":
        for name, value in compiler.items():
            if not name.endswith("backend") and value not in (None, False, "default"):
                yield f"dynamo_config.{name}", value, "no backend is named"
    if launch.kind != "DEEPSPEED":
        return
    fields = settings.get("deepspeed_config") or {}
    for name in ("deepspeed_hostfile", "deepspeed_inclusion_filter", "deepspeed_exclusion_filter"):
        if fields.get(name) and (one or not launch.launcher):
            yield f"deepspeed_config.{name}", fields[name], _ONE if one else "the launcher standard reads none"
    if one and fields.get("deepspeed_multinode_launcher") not in (None, "pdsh", "standard"):
        yield "deepspeed_config.deepspeed_multinode_launcher", fields["deepspeed_multinode_launcher"], _ONE
    if names := fields.get("deepspeed_moe_layer_cls_names"):
        yield "deepspeed_config.deepspeed_moe_layer_cls_names", names, "leaf modules are not part of this version"
