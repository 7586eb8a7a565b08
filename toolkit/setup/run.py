"""From one process's launcher, files and arguments to its `Setup`."""

import json
import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from toolkit.errors import Fault, Place, UserError, fault
from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO, ONE_MICRO_BATCH, Given
from toolkit.setup.dsjson import DeepSpeedFile, check_keys, read_deepspeed_json
from toolkit.setup.launcher import INLINE, Launch, check_obtained, inline_file, read_launch
from toolkit.setup.layers import layer_faults
from toolkit.setup.precision import asked_precision
from toolkit.setup.renamed import migrate
from toolkit.setup.schedule import length_notes, warmup_fault
from toolkit.setup.settle import settle
from toolkit.setup.settled import Setup
from toolkit.setup.strategy import settle_strategy
from toolkit.setup.values import VALUES, choose, settle_values

BATCH_KEYS = (GLOBAL, MICRO, ACCUMULATION)
BATCH_ARGUMENTS = {GLOBAL: GLOBAL, "per_device_train_batch_size": MICRO, ACCUMULATION: ACCUMULATION}
# Fields of a YAML that say what a JSON without their key means.
ABSENT: dict[str, Any] = {"zero_stage": 0, "zero3_save_16bit_model": False}
ABSENT |= dict.fromkeys(("offload_optimizer_device", "offload_param_device"), "none")
# Micro-batches of a step where a pipeline's JSON says "auto": with one, all stages but one are idle.
PIPELINE_MICRO_BATCHES = 4


@dataclass(frozen=True)
class Resolved:
    """`setup` where there are no faults; `notes` are then its own, else those on the files."""

    setup: Setup | None
    faults: tuple[str, ...]
    notes: tuple[str, ...]


def setup_from_run(arguments: Namespace, environ: Mapping[str, str], parent: Sequence[str] | None = None) -> Setup:
    """See `Setup.from_run`."""
    resolved = resolve(arguments, environ, parent)
    if resolved.setup is None:
        raise UserError(*resolved.faults)
    return resolved.setup


def resolve(
    arguments: Namespace,
    environ: Mapping[str, str],
    parent: Sequence[str] | None = None,
) -> Resolved:
    """The setup, or every mistake at once: what is faulty counts as absent for the checks that follow."""
    script = getattr(arguments, "script", "") or "SCRIPT"
    launch, faults = read_launch(environ, parent, script)
    obtained = check_obtained(launch, script)
    faults += obtained
    notes = list(launch.notes)
    file, readable = None, True
    try:
        file = _deepspeed_file(arguments, launch, faults)
    except UserError as error:
        faults += error.lines
        readable = False
    unsure = set[str]()
    if file is not None:
        file, unsure = _checked(file, faults, notes)
    of_files = tuple(notes)  # what is settled from faulty files is not worth a word
    default = _default(arguments, "mixed_precision", "no")
    precision, lines = asked_precision(_typed(arguments, "mixed_precision"), launch.mixed_precision, file, default)
    faults += lines
    if not readable:
        return Resolved(None, tuple(faults), of_files)
    strategy, stages, partition = settle_strategy(launch, file, faults, notes)
    faults += _check_launcher(arguments, launch, file, strategy)
    faults += layer_faults(arguments, stages)
    values = _values(arguments, file, faults, notes)
    batch, default_batch = _batch(arguments, file, faults)
    if faults and (obtained or unsure & set(BATCH_KEYS)):
        # Sizes that follow from what is wrong would be told as mistakes of their own.
        return Resolved(None, tuple(faults), of_files)
    of_engine = file.path if file is not None else ""
    try:
        setup = settle(
            launch,
            strategy,
            stages,
            partition,
            batch,
            default_batch,
            values,
            file,
            precision=precision,
            auto_accumulation=_auto_accumulation(arguments, file, stages.value),
            config_files=tuple(dict.fromkeys(path for path in (launch.yaml, of_engine) if os.path.isfile(path))),
            notes=notes,
        )
    except UserError as error:
        faults += error.lines
    return Resolved(None, tuple(faults), of_files) if faults else Resolved(setup, (), setup.notes)


def _checked(file: DeepSpeedFile, faults: list[str], notes: list[str]) -> tuple[DeepSpeedFile, set[str]]:
    """The file in today's names and without its faulty keys, and the keys that were meant by them."""
    file, moved, found = migrate(file)
    notes += moved
    found += check_keys(file)
    faults += found
    wrong = {line.where.key for line in found if isinstance(line, Fault) and isinstance(line.where, Place)}
    remedies = " ".join(found)
    return file.without(wrong), wrong | {key for key in BATCH_KEYS if f"did you mean {key}?" in remedies}


def _deepspeed_file(arguments: Namespace, launch: Launch, faults: list[str]) -> DeepSpeedFile | None:
    """The one DeepSpeed configuration of this run; two that name different files are refused."""
    typed = getattr(arguments, "deepspeed_config", None)
    if launch.deepspeed:
        if launch.json_file is not None:
            if typed is not None and os.path.realpath(typed) != os.path.realpath(launch.json_file.value):
                reason = f"{launch.json_file.origin} names {launch.json_file.value}"
                faults.append(fault("--deepspeed_config", typed, reason, "name one file, in one place"))
            named = launch.json_file
            if not os.path.isfile(named.value):
                reason = f"no such file, searched from {os.getcwd()}" + f" and beside {launch.yaml}" * bool(launch.yaml)
                raise UserError(fault(named.origin, named.value, reason, "give the path of a DeepSpeed JSON"))
            file = _filled(read_deepspeed_json(named.value), launch)
            faults += _repeated(launch, launch.json_file, file)
            return file
        if launch.inline and typed is not None:
            origin = next(iter(launch.inline.values())).origin
            remedy = "drop the argument, or write deepspeed_config_file there instead of the single keys"
            faults.append(fault("--deepspeed_config", typed, f"{origin} configures DeepSpeed already", remedy))
        if typed is None:
            return inline_file(launch)
    if typed is not None:
        return read_deepspeed_json(typed)
    if launch.launcher == "deepspeed":
        return DeepSpeedFile("deepspeed without a JSON", {"zero_optimization": {"stage": 1}})
    if getattr(arguments, "deepspeed", None):
        faults.append(
            fault("--deepspeed", True, f"{launch.launcher} needs a JSON with it", "give --deepspeed_config FILE")
        )
    return None


def _filled(file: DeepSpeedFile, launch: Launch) -> DeepSpeedFile:
    """Where the JSON says "auto", the YAML's fields and the launcher's options hold; Accelerate's own stage is 2."""
    default = Place(file.path, 'zero_optimization.stage "auto" (Accelerate\'s default)')
    fields = {"zero_stage": Given(2, default)} | dict(launch.inline)
    for name, given in fields.items():
        place = given.origin if isinstance(given.origin, Place) else Place("", given.origin)
        file = file.filled(INLINE[name], given.value, place)
    return file


def _repeated(launch: Launch, named: Given, file: DeepSpeedFile) -> list[str]:
    """Fields of the YAML that the JSON beside them does not say, or says otherwise; Accelerate ignores them."""
    faults = []
    for name, given in launch.inline.items():
        key = INLINE[name]
        written = file.get(key)
        if written == given.value or written is None and name in ABSENT and given.value == ABSENT[name]:
            continue
        says = f"{file.where(key)} says {json.dumps(written)}" if written is not None else f"{file.path} has no {key}"
        reason = f"{says}, and Accelerate ignores this beside {named.origin}"
        remedy = f"write {key} {json.dumps(given.value)} there, or remove it here"
        faults.append(fault(given.origin, given.value, reason, remedy))
    return faults


def _check_launcher(arguments: Namespace, launch: Launch, file: DeepSpeedFile | None, strategy: Given) -> list[str]:
    """`python` runs single; under `accelerate launch` the JSON goes through a DeepSpeed launch."""
    if file is None:
        return []
    script = getattr(arguments, "script", "") or "SCRIPT"
    ranks = max(2, launch.world_size, int(file.get("pipeline.stages") or 0))
    remedy = (
        f"start with: deepspeed --num_gpus {ranks} {script} --deepspeed_config {file.path}, or: accelerate launch "
        f"--use_deepspeed --num_processes {ranks} --deepspeed_config_file {file.path} {script}"
    )
    if launch.launcher == "python":
        return [fault("--deepspeed_config", file.path, "python starts one process without DeepSpeed", remedy)]
    if launch.launcher == "accelerate" and not launch.deepspeed and strategy.value not in ("single", "ddp"):
        kind = launch.requested_type
        asked = f"{kind.origin} {kind.value}" if kind is not None else "accelerate launch without --use_deepspeed"
        reason = f"it asks for {strategy.value}, but {asked} starts no DeepSpeed"
        return [fault("--deepspeed_config", file.path, reason, remedy)]
    return []


def _typed(arguments: Namespace, name: str) -> Given | None:
    """The value of an argument the user typed."""
    if name not in getattr(arguments, "typed", ()):
        return None
    return Given(getattr(arguments, name), f"--{name}")


def _default(arguments: Namespace, name: str, fallback: Any) -> Given:
    """The script's value, whatever was typed."""
    defaults = getattr(arguments, "script_defaults", None)
    value = getattr(arguments, name, fallback) if defaults is None else defaults.get(name, fallback)
    return Given(value, "script's default")


def _batch(arguments: Namespace, file: DeepSpeedFile | None, faults: list[str]) -> tuple[dict[str, Given], Given]:
    """What binds, keyed by DeepSpeed's names, and the script's default for the global batch."""
    nothing = Given(None, "")
    chosen = {
        key: choose(_typed(arguments, name), _written(file, key), nothing, faults)
        for name, key in BATCH_ARGUMENTS.items()
    }
    given = {key: value for key, value in chosen.items() if value.value is not None}
    return given, _default(arguments, GLOBAL, 32)


def _written(file: DeepSpeedFile | None, key: str) -> Given | None:
    value = file.get(key) if file is not None else None
    return None if file is None or value is None else Given(int(value), file.where(key))


def _values(arguments: Namespace, file: DeepSpeedFile | None, faults: list[str], notes: list[str]) -> dict[str, Given]:
    """Clipping, optimizer, schedule and the rest, each with its origin."""
    typed = {name: given for name in VALUES if (given := _typed(arguments, name)) is not None}
    defaults = {name: _default(arguments, name, value) for name, value in VALUES.items()}
    values = settle_values(file, typed, defaults, faults, notes)
    optimizer, momentum = values["optimizer"].value, typed.get("momentum")
    if momentum is not None and optimizer in ("adam", "adamw"):
        remedy = "leave it out, or choose sgd"
        faults.append(fault(momentum.origin, momentum.value, f"{optimizer} has none", remedy))
    warmup, steps = values["num_warmup_steps"], _typed(arguments, "max_train_steps")
    if steps is not None:
        faults += warmup_fault(warmup.value, warmup.origin, steps.value, steps.origin)
        notes += length_notes(warmup.value, values["lr_schedule"].value, steps.value)
    return values


def _auto_accumulation(arguments: Namespace, file: DeepSpeedFile | None, stages: int) -> Given:
    """Micro-batches of a step where neither the user nor the file gives a number."""
    default = _default(arguments, ACCUMULATION, None)
    if default.value is not None:
        return default
    if file is not None and stages > 1 and file.config.get(ACCUMULATION) == "auto":
        return Given(PIPELINE_MICRO_BATCHES, f'{file.where(ACCUMULATION)} "auto"')
    return ONE_MICRO_BATCH
