"""From one process's launcher, files and arguments to its `Setup`."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence

from toolkit.errors import UserError, fault
from toolkit.setup import schema
from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO, ONE_MICRO_BATCH, Given
from toolkit.setup.checks import optimizer_faults, partition_fault
from toolkit.setup.dsjson import DeepSpeedFile, check_keys, read_deepspeed_json
from toolkit.setup.launcher import Launch, check_obtained, inline_file, read_launch
from toolkit.setup.offload import offloads
from toolkit.setup.precision import asked_precision
from toolkit.setup.settled import VALUES, Setup, settle

BATCH_ARGUMENTS = {GLOBAL: GLOBAL, "per_device_train_batch_size": MICRO, ACCUMULATION: ACCUMULATION}
# Micro-batches of a step where a pipeline's JSON says "auto": with one, all stages but one are idle.
PIPELINE_MICRO_BATCHES = 4


def setup_from_run(arguments: Namespace, environ: Mapping[str, str], parent: Sequence[str] | None = None) -> Setup:
    """See `Setup.from_run`."""
    script = getattr(arguments, "script", "") or "SCRIPT"
    launch, faults = read_launch(environ, parent, script)
    faults += check_obtained(launch, script)
    file = None
    try:
        file = _deepspeed_file(arguments, launch, faults)
    except UserError as error:
        faults += error.lines
    if file is not None:
        faults += check_keys(file)
    if faults:
        raise UserError(*faults)
    notes: list[str] = []
    default = Given(getattr(arguments, "mixed_precision", "no"), "script's default")
    precision, lines = asked_precision(_typed(arguments, "mixed_precision"), launch.mixed_precision, file, default)
    faults += lines
    strategy, stages, partition = _strategy(launch, file, faults, notes)
    faults += _check_launcher(arguments, launch, file, strategy)
    values = _values(arguments, file, faults, notes)
    batch, default_batch = _batch(arguments, file, faults)
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
            config_files=tuple(
                path for path in (launch.yaml, file.path if file is not None else "") if os.path.isfile(path)
            ),
            notes=notes,
        )
    except UserError as error:
        raise UserError(*faults, *error.lines) from None
    if faults:
        raise UserError(*faults)
    return setup


def _deepspeed_file(arguments: Namespace, launch: Launch, faults: list[str]) -> DeepSpeedFile | None:
    """The one DeepSpeed configuration of this run; two that name different files are refused."""
    typed = getattr(arguments, "deepspeed_config", None)
    if launch.deepspeed:
        if launch.json_file is not None:
            for given in launch.inline.values():
                reason = f"Accelerate ignores it beside {launch.json_file.origin} {launch.json_file.value}"
                faults.append(fault(given.origin, given.value, reason, f"move it into {launch.json_file.value}"))
            if typed is not None and os.path.realpath(typed) != os.path.realpath(launch.json_file.value):
                reason = f"{launch.json_file.origin} names {launch.json_file.value}"
                faults.append(fault("--deepspeed_config", typed, reason, "name one file, in one place"))
            return read_deepspeed_json(launch.json_file.value)
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


def _strategy(
    launch: Launch, file: DeepSpeedFile | None, faults: list[str], notes: list[str]
) -> tuple[Given, Given, Given]:
    """(strategy, stages, partition) that launcher and file ask for."""
    plain = "ddp" if launch.world_size > 1 else "single"
    one, partition = Given(1, "default"), Given("parameters", "default")
    if file is None:
        origin = launch.requested_type.origin if launch.requested_type is not None else launch.launcher
        return Given(plain, origin), one, partition
    stage_where, stage = file.where("zero_optimization.stage"), int(file.get("zero_optimization.stage") or 0)
    if stage > 3:
        faults.append(fault(stage_where, stage, "ZeRO has stages 0 to 3", "write one of them"))
        return Given(plain, stage_where), one, partition
    pipeline = file.config.get("pipeline")
    if pipeline is not None:
        where = file.where("pipeline.stages")
        partition = _partition(file, faults, notes)
        stages = Given(int(file.get("pipeline.stages") or launch.world_size), where)
        if file.get("pipeline.stages") is None:
            notes.append(f"{where}: one stage a rank, {stages.value}")
        if stages.value > 1 and stage > 1:
            reason = f"{stage_where} is {stage}: a pipeline works with ZeRO stage 0 or 1"
            faults.append(
                fault(where, stages.value, reason, f"write stage 1, or remove the pipeline section in {file.path}")
            )
            return Given(f"zero{stage}", stage_where), one, partition
        if stages.value > 1:
            if stage == 0:
                notes.append(
                    f"{stage_where} 0 runs as ZeRO-1: without it the clipping norm would count one stage alone"
                )
            return Given("pipeline", where), stages, partition
        notes.append(f"{where} 1 is no pipeline")
        partition = Given("parameters", "default")
    if stage > 0:
        return Given(f"zero{stage}{'_offload' * offloads(file)}", stage_where), one, partition
    taken = {
        GLOBAL,
        MICRO,
        ACCUMULATION,
        "gradient_clipping",
        "optimizer",
        "fp16",
        "bf16",
        "torch_autocast",
        "pipeline",
        "zero_optimization",
    }
    unused = [key for key in file.config if key not in taken]
    offload = ("offload_optimizer", "offload_param")  # refused with stage 0 where they switch something on
    unused += [
        f"zero_optimization.{key}"
        for key in file.config.get("zero_optimization", {})
        if key != "stage" and key not in offload
    ]
    idle = f"; not used: {', '.join(unused)}" if unused else ""
    notes.append(f"{stage_where} 0 runs as {plain}, with batch, precision, clipping and optimizer from the file{idle}")
    return Given(plain, stage_where), one, partition


def _partition(file: DeepSpeedFile, faults: list[str], notes: list[str]) -> Given:
    where, value = file.where("pipeline.partition"), file.get("pipeline.partition")
    if value is None:
        return Given("parameters", "default")
    if value.lower() == "best":
        notes.append(f"{where} best is taken as parameters: layers are cut so that stages hold equally many")
        return Given("parameters", where)
    if line := partition_fault(where, value):
        faults.append(line)
    return Given(value, where)


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


def _choose(typed: Given | None, written: Given | None, default: Given, faults: list[str]) -> Given:
    """Typed, else the file's, else the script's default; typed and file must agree."""
    if typed is not None and written is not None and typed.value != written.value:
        remedy = f'make them equal, or drop one ("auto" in the file takes {typed.origin})'
        faults.append(fault(written.origin, written.value, f"{typed.origin} says {typed.value!r}", remedy))
    return typed or written or default


def _batch(arguments: Namespace, file: DeepSpeedFile | None, faults: list[str]) -> tuple[dict[str, Given], Given]:
    """What binds, keyed by DeepSpeed's names, and the script's default for the global batch."""
    nothing = Given(None, "")
    chosen = {
        key: _choose(_typed(arguments, name), _written(file, key), nothing, faults)
        for name, key in BATCH_ARGUMENTS.items()
    }
    given = {key: value for key, value in chosen.items() if value.value is not None}
    return given, Given(getattr(arguments, GLOBAL, 32), "script's default")


def _written(file: DeepSpeedFile | None, key: str) -> Given | None:
    value = file.get(key) if file is not None else None
    if file is None or value is None:
        return None
    kind = {**schema.TOP, **schema.OPTIMIZER_PARAMS}.get(key.rpartition(".")[2])
    return Given(int(value) if kind == "positive" else float(value), file.where(key))


def _values(arguments: Namespace, file: DeepSpeedFile | None, faults: list[str], notes: list[str]) -> dict[str, Given]:
    """Clipping, optimizer, schedule and the rest, each with its origin."""
    keys = {
        "max_grad_norm": "gradient_clipping",
        "learning_rate": "optimizer.params.lr",
        "weight_decay": "optimizer.params.weight_decay",
        "momentum": "optimizer.params.momentum",
    }
    values = {}
    for name, fallback in VALUES.items():
        written = _written(file, keys[name]) if name in keys else None
        if name == "optimizer" and file is not None:
            written = _optimizer(file, faults, notes)
        default = Given(getattr(arguments, name, fallback), "script's default")
        values[name] = _choose(_typed(arguments, name), written, default, faults)
    if file is not None:
        faults += optimizer_faults(file, values["optimizer"].value)
    return values


def _optimizer(file: DeepSpeedFile, faults: list[str], notes: list[str]) -> Given | None:
    """The JSON's optimizer by --optimizer's names. DeepSpeed's Adam decays as AdamW unless adam_w_mode is false."""
    value = file.get("optimizer.type")
    if value is None:
        return None
    where, name = file.where("optimizer.type"), value.lower()
    if name not in schema.OPTIMIZERS:
        faults.append(fault(where, value, "not an optimizer of oneloop", f"one of {', '.join(schema.OPTIMIZERS)}"))
        return None
    if name == "adam" and file.get("optimizer.params.adam_w_mode") is not False:
        notes.append(f"{where} {value} is AdamW, as in DeepSpeed; adam_w_mode: false gives Adam")
        name = "adamw"
    return Given(name, where)


def _auto_accumulation(arguments: Namespace, file: DeepSpeedFile | None, stages: int) -> Given:
    """Micro-batches of a step where neither the user nor the file gives a number."""
    default = getattr(arguments, ACCUMULATION, None)
    if default is not None:
        return Given(default, "script's default")
    if file is not None and stages > 1 and file.config.get(ACCUMULATION) == "auto":
        return Given(PIPELINE_MICRO_BATCHES, f'{file.where(ACCUMULATION)} "auto"')
    return ONE_MICRO_BATCH
