"""Which launcher started this rank, with which Accelerate YAML, and what it was asked for.

Seen in the environments of the four ways to start (accelerate 1.15, deepspeed 0.19.8, torch 2.13):
`accelerate launch` always sets ACCELERATE_MIXED_PRECISION and uses torchrun's agent for MULTI_GPU and DEEPSPEED;
`deepspeed` sets CROSS_RANK and LOCAL_SIZE and adds --local_rank=N; torchrun sets TORCHELASTIC_RUN_ID.
"""

import contextlib
import filecmp
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from toolkit.errors import Place, fault
from toolkit.setup.accelerate_file import AccelerateFile, other_options, read_yaml, unused_options
from toolkit.setup.batch import Given
from toolkit.setup.command_line import default_file, launch_options, parent_command
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.words import nearest

# Fields of a YAML's deepspeed_config, and the DeepSpeed key each stands for.
INLINE = {
    "zero_stage": "zero_optimization.stage",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
    "gradient_clipping": "gradient_clipping",
    "offload_optimizer_device": "zero_optimization.offload_optimizer.device",
    "offload_param_device": "zero_optimization.offload_param.device",
    "offload_optimizer_nvme_path": "zero_optimization.offload_optimizer.nvme_path",
    "offload_param_nvme_path": "zero_optimization.offload_param.nvme_path",
    "zero3_save_16bit_model": "zero_optimization.stage3_gather_16bit_weights_on_model_save",
}
# Fields that are Accelerate's launch or have no effect on training here.
LAUNCH_FIELDS = {
    "deepspeed_config_file",
    "zero3_init_flag",
    "deepspeed_hostfile",
    "deepspeed_multinode_launcher",
    "deepspeed_exclusion_filter",
    "deepspeed_inclusion_filter",
    "deepspeed_moe_layer_cls_names",
}
DYNAMO_KEYS = ("dynamo_config.dynamo_backend", "dynamo_config.backend")
# Where a script cannot see its launcher's command line.
ENVIRONMENT = "accelerate's environment"
IN_ENVIRONMENT = {
    "zero_stage": "ACCELERATE_DEEPSPEED_ZERO_STAGE",
    "gradient_accumulation_steps": "ACCELERATE_GRADIENT_ACCUMULATION_STEPS",
    "gradient_clipping": "ACCELERATE_GRADIENT_CLIPPING",
    "offload_optimizer_device": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE",
    "offload_param_device": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE",
    "offload_optimizer_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH",
    "offload_param_nvme_path": "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH",
    "zero3_save_16bit_model": "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL",
}


@dataclass(frozen=True)
class Launch:
    """What the environment says. `yaml` is the Accelerate file that was read, "" where there was none."""

    launcher: str  # python | torchrun | accelerate | deepspeed
    rank: int = 0
    local_rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    use_cpu: bool = False
    yaml: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    requested_processes: Given | None = None
    requested_type: Given | None = None  # Accelerate's distributed_type
    deepspeed: bool = False  # Accelerate's DeepSpeed launch, or ACCELERATE_USE_DEEPSPEED=true
    json_file: Given | None = None
    inline: Mapping[str, Given] = field(default_factory=dict)
    mixed_precision: Given | None = None
    where: str = ""  # the YAML, or what stands for it
    notes: tuple[str, ...] = ()


def read_launch(
    environ: Mapping[str, str], parent: Sequence[str] | None = None, script: str = ""
) -> tuple[Launch, list[str]]:
    """The launch, and a line for each thing in it that is refused.

    Args:
        parent: command line of the parent process; read from /proc where it is None. Accelerate does not tell its
            script which YAML it read, its own command line does.
    """
    faults: list[str] = []
    local_size = "LOCAL_WORLD_SIZE" if environ.get("LOCAL_WORLD_SIZE") else "LOCAL_SIZE"
    ranks: dict[str, Any] = {
        "rank": _whole(environ, "RANK", 0, faults),
        "local_rank": _whole(environ, "LOCAL_RANK", 0, faults),
        "world_size": _whole(environ, "WORLD_SIZE", 1, faults),
        "local_world_size": _whole(environ, local_size, 1, faults),
        "use_cpu": _true(environ.get("ACCELERATE_USE_CPU")) or environ.get("DS_ACCELERATOR") == "cpu",
    }
    deepspeed = _true(environ.get("ACCELERATE_USE_DEEPSPEED"))
    several = "WORLD_SIZE" if ranks["world_size"] > 1 else "ACCELERATE_USE_DEEPSPEED" if deepspeed else None
    if several and not environ.get("RANK"):  # left in a shell: torch would wait for an address, or raise
        reason = "no launcher has set RANK beside it, and python starts one process"
        faults.append(fault(Place("environment", several), environ[several], reason, "unset it, or use a launcher"))
    if not deepspeed and "ACCELERATE_MIXED_PRECISION" not in environ:
        name = "python"
        if "CROSS_RANK" in environ and "LOCAL_SIZE" in environ:
            name = "deepspeed"
        elif "TORCHELASTIC_RUN_ID" in environ or "RANK" in environ:
            name = "torchrun"
        return Launch(name, **ranks), faults
    launch, found = _accelerate(environ, parent_command() if parent is None else parent, script, deepspeed, ranks)
    return launch, faults + found


def _whole(environ: Mapping[str, str], name: str, least: int, faults: list[str]) -> int:
    """A number of ranks, or of a rank, from the environment; `least` where it is absent or empty."""
    text = environ.get(name) or str(least)
    if re.fullmatch("[0-9]{1,19}", text) and int(text) >= least:
        return int(text)
    reason = f"expected an integer of {least} or more"
    faults.append(fault(Place("environment", name), text, reason, "unset it, launchers set it"))
    return least


def _accelerate(
    environ: Mapping[str, str], parent: Sequence[str], script: str, deepspeed: bool, ranks: dict[str, Any]
) -> tuple[Launch, list[str]]:
    options = launch_options(parent, script)
    yaml = "" if options is None else options.get("config_file", "") or default_file(environ, options)
    file = read_yaml(yaml, options or {}) if yaml else AccelerateFile("")
    found, options = options is not None, options or {}
    unknown_place = "accelerate launch" if found else ENVIRONMENT
    fields, faults = file.settings.get("deepspeed_config") or {}, list(file.faults)
    ranks["use_cpu"] = ranks["use_cpu"] or file.settings.get("use_cpu") is True
    kind = _requested_type(file, options)

    def origin(name: str) -> str:
        if name in options:
            return f"accelerate launch --{name}"
        key = f"deepspeed_config.{name}"
        return file.where(key) if name in fields else Place(ENVIRONMENT, IN_ENVIRONMENT.get(name, name))

    written = [name for name in environ.get("ACCELERATE_CONFIG_DS_FIELDS", "").split(",") if name and not yaml]
    for name in written:
        if name not in INLINE and name not in LAUNCH_FIELDS and name != "mixed_precision":
            where = Place(unknown_place, f"deepspeed_config.{name}")
            remedy = nearest(name, [*INLINE, *LAUNCH_FIELDS]) or "remove it"
            faults.append(fault(where, None, "unknown key, Accelerate ignores it", remedy))
    faults += other_options(options)
    # A launch that asked for DeepSpeed and did not get it has its own line, of `check_obtained`; so has a file whose
    # type is refused or missing.
    untyped = bool(yaml) and kind is None
    if not deepspeed and not untyped and (kind is None or kind.value != "DEEPSPEED"):
        faults += unused_options(options, fields, file, {*INLINE, *LAUNCH_FIELDS})
    inline = {name: Given(_value(environ[key]), origin(name)) for name, key in IN_ENVIRONMENT.items() if key in environ}
    for name in INLINE if deepspeed else ():
        # `accelerate launch` reads these paths and does not hand them on.
        path = options.get(name, fields.get(name)) if name.endswith("nvme_path") else None
        if path not in (None, "", "none"):
            inline[name] = Given(path, origin(name))
    json_file = None
    if "ACCELERATE_DEEPSPEED_CONFIG_FILE" in environ:
        named = environ["ACCELERATE_DEEPSPEED_CONFIG_FILE"]
        json_file = Given(_beside(named, yaml), origin("deepspeed_config_file"))
        faults += _two_files(named, yaml, json_file.origin)
    # A DeepSpeed launch drops the file's section.
    compiled = environ.get("ACCELERATE_DYNAMO_BACKEND", file.dynamo_backend).upper()
    if compiled != "NO":
        key = next((key for key in DYNAMO_KEYS if key in file.lines), DYNAMO_KEYS[0])
        where = file.where(key) if yaml else Place(unknown_place, "dynamo_backend")
        if yaml and file.dynamo_backend == "NO":
            where = Place(ENVIRONMENT, "ACCELERATE_DYNAMO_BACKEND")
        faults.append(fault(where, compiled, "torch.compile is not part of this version", "write NO or remove it"))
    launch = Launch(
        _named(environ, deepspeed, found),
        **ranks,
        yaml=yaml,
        where=yaml or unknown_place,
        settings=file.settings,
        requested_processes=_requested_processes(file, options),
        requested_type=kind,
        deepspeed=deepspeed,
        json_file=json_file,
        inline=inline,
        mixed_precision=_mixed_precision(environ, file, options),
        notes=tuple(file.notes),
    )
    return launch, faults


def _named(environ: Mapping[str, str], deepspeed: bool, found: bool) -> str:
    """The launcher of a script that has variables of Accelerate's: a shell may have exported them."""
    if not (deepspeed or found) and "CROSS_RANK" in environ and "LOCAL_SIZE" in environ:
        return "deepspeed"
    return "accelerate" if found or "ACCELERATE_MIXED_PRECISION" in environ else "torchrun"


def _requested_processes(file: AccelerateFile, options: Mapping[str, str]) -> Given | None:
    written = file.settings.get("num_processes")
    in_file = Given(written, file.where("num_processes")) if written is not None else None
    if "num_processes" not in options:
        return in_file
    return Given(int(options["num_processes"]), "accelerate launch --num_processes").over(in_file)


def _requested_type(file: AccelerateFile, options: Mapping[str, str]) -> Given | None:
    written = file.settings.get("distributed_type")
    in_file = Given(str(written), file.where("distributed_type")) if written is not None else None
    for flag, asked in (("use_deepspeed", "DEEPSPEED"), ("multi_gpu", "MULTI_GPU"), ("use_fsdp", "FSDP")):
        if flag in options:
            return Given(asked, f"accelerate launch --{flag}").over(in_file)
    return in_file


def _mixed_precision(environ: Mapping[str, str], file: AccelerateFile, options: Mapping[str, str]) -> Given | None:
    """None where nobody says anything: Accelerate then sets "no"."""
    value = environ.get("ACCELERATE_MIXED_PRECISION", "no").lower()
    written = file.settings.get("mixed_precision")
    in_file = Given(written, file.where("mixed_precision")) if written is not None else None
    if "mixed_precision" in options:
        return Given(value, "accelerate launch --mixed_precision").over(in_file)
    if in_file is not None:
        return Given(value, in_file.origin)
    return Given(value, Place(ENVIRONMENT, "ACCELERATE_MIXED_PRECISION")) if value != "no" else None


def inline_file(launch: Launch) -> DeepSpeedFile:
    """The YAML's own DeepSpeed fields in DeepSpeed's form; Accelerate's stage where none is written is 2."""
    config: dict[str, Any] = {"zero_optimization": {"stage": 2}}
    names = {key: f"deepspeed_config.{name}" for name, key in INLINE.items()}
    names["zero_optimization.stage"] += " (Accelerate's default)"
    lines: dict[str, int] = {}
    for name, given in launch.inline.items():
        *sections, last = INLINE[name].split(".")
        node = config
        for section in sections:
            node = node.setdefault(section, {})
        node[last] = given.value
        names[INLINE[name]] = given.origin.removeprefix(f"{launch.where}: ")
        if isinstance(given.origin, Place) and given.origin.line is not None:
            lines[given.origin.key] = given.origin.line
    return DeepSpeedFile(launch.where, config, names, lines)


def check_obtained(launch: Launch, script: str) -> list[str]:
    """Requested against obtained: Accelerate starts fewer processes, or another type, without a word."""
    faults, asked, kind = [], launch.requested_processes, launch.requested_type
    wanted = asked.value if asked is not None else launch.world_size
    change = "use distributed_type: MULTI_GPU, which starts CPU ranks where there is no GPU"
    if kind is not None and kind.value in ("MULTI_GPU", "DEEPSPEED"):
        change = "drop --cpu, ranks use the CPU where there is no GPU"
    remedy = f"{change}, or: torchrun --nproc_per_node {wanted} {script}"
    if kind is not None and kind.value not in ("NO", "MULTI_CPU", "MULTI_GPU", "DEEPSPEED"):
        zero3 = "use distributed_type: DEEPSPEED, as accelerate_configs/zero3.yaml does"
        return [fault(kind.origin, kind.value, "not a setup of oneloop", zero3)]
    if asked is not None and asked.value > 1 and asked.value != launch.world_size:
        type_asked = f" ({kind.origin} {kind.value})" if kind is not None else ""
        reason = f"asked for {asked.value} processes{type_asked}, got {launch.world_size}"
        faults.append(fault(asked.origin, asked.value, reason, remedy))
    elif kind is not None and kind.value == "DEEPSPEED" and not launch.deepspeed:
        reason = "asked for DeepSpeed, got a launch without it"
        faults.append(fault(kind.origin, kind.value, reason, "drop --cpu; the ranks use the CPU where there is no GPU"))
    return faults


def _beside(path: str, yaml: str) -> str:
    """A JSON named in a YAML: from the working folder, else from the YAML's own, else from the folder that holds it."""
    if os.path.isfile(path) or not yaml:
        return path
    folder = os.path.dirname(os.path.abspath(yaml))
    others = [os.path.join(each, path) for each in (folder, os.path.dirname(folder))]
    return next((os.path.relpath(other) for other in others if os.path.isfile(other)), path)


def _two_files(path: str, yaml: str, origin: str) -> list[str]:
    """A line where the working folder and the YAML's have other files of that name: Accelerate takes the first."""
    other = os.path.join(os.path.dirname(os.path.abspath(yaml)), path)
    try:
        if not yaml or os.path.isabs(path) or not (os.path.isfile(path) and os.path.isfile(other)):
            return []
        if filecmp.cmp(path, other, shallow=False):
            return []
    except OSError:  # one that cannot be read has a line of its own
        return []
    reason = f"one stands in {os.getcwd()}, another one beside {yaml}, and they differ"
    return [fault(origin, path, reason, "name the one that is meant with its folder")]


def _true(text: str | None) -> bool:
    return (text or "").lower() in ("1", "true", "yes", "y", "t", "on")


def _value(text: str) -> Any:
    """A field that came through the environment as text; None (written as null in the YAML) stays out of the way."""
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for number in (int, float):
        with contextlib.suppress(ValueError):
            return number(text)
    return text
