"""What a file or a caller must not say: a pipeline's cut, and what `Setup.build` decides."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import Fault, fault
from toolkit.kinds import as_typed
from toolkit.setup.batch import Given
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.offload import SECTIONS, offloads

# Keys of DeepSpeed's JSON that `Setup.build` writes, and its own name for each.
_OWNED = {
    "train_batch_size": "train_batch_size=",
    "train_micro_batch_size_per_gpu": "train_micro_batch_size_per_gpu=",
    "gradient_accumulation_steps": "gradient_accumulation_steps=",
    "gradient_clipping": "max_grad_norm=",
    "optimizer": "optimizer= and learning_rate=",
    "pipeline": "stages= and partition=",
}


def told(where: str, faults: Sequence[str]) -> bool:
    """Whether there is a line about this key already."""
    return any(isinstance(line, Fault) and line.where == where for line in faults)


def partition_fault(where: str, value: Any) -> str | None:
    """A line where `value` is no way to cut a pipeline."""
    kind, _, pattern = value.partition(":") if isinstance(value, str) else ("", "", "")
    if kind == "type" and pattern:
        try:
            re.compile(pattern)
        except re.error as error:
            return fault(where, value, f"not a regular expression: {error}", "correct it")
    elif value not in ("parameters", "uniform"):
        return fault(where, value, "unknown", "one of parameters, uniform, type:REGEX")
    return None


def rank_fault(strategy: str, stages: Given, world: int) -> str | None:
    """A line where `world` ranks cannot carry the strategy or its stages."""
    count = stages.value
    if strategy == "single" and world > 1:
        return fault("strategy", strategy, f"one process, but there are {world} ranks", "start one process, or use ddp")
    if not strategy.startswith("pipeline"):
        line = fault(stages.origin, count, f"{strategy} has no stages", "use the pipeline strategy")
        return None if count == 1 else line
    if count < 2:
        return fault(stages.origin, count, "a pipeline has 2 or more stages", "give one stage a rank")
    if count > world:
        remedy = f"start {count} processes, or write stages: {world}" if world > 1 else f"start {count} processes"
        return fault(stages.origin, count, f"more stages than the {world} rank{'s' * (world > 1)}", remedy)
    if world % count:
        reason = f"{world} ranks do not divide into {count} stages ({world} % {count} = {world % count})"
        return fault(
            stages.origin, count, reason, f"start {world - world % count} or {world + count - world % count} processes"
        )
    return None


def build_faults(strategy: str, world_size: Any, rank: Any, partition: Any, values: Mapping[str, Any]) -> list[str]:
    """What `Setup.build` was given out of range; `values` are checked as the command line checks its own."""
    from toolkit.argument_table import ARGUMENTS

    faults: list[str] = []
    whole = {"world_size": world_size, "rank": rank}
    odd = [name for name, value in whole.items() if not isinstance(value, int) or isinstance(value, bool)]
    faults += [fault(name, whole[name], "expected an integer", "correct the value") for name in odd]
    if not odd and world_size < 1:
        faults.append(fault("world_size", world_size, "must be 1 or more", "give the number of ranks"))
    elif not odd and not 0 <= rank < world_size:
        faults.append(fault("rank", rank, f"not one of {world_size} ranks", f"give 0 to {world_size - 1}"))
    if strategy == "ddp" and world_size == 1:
        faults.append(fault("strategy", strategy, "there is one rank", "use single, or give world_size 2 or more"))
    if line := partition_fault("partition", partition):
        faults.append(line)
    kinds = {name: kind for _, name, kind, _, _ in ARGUMENTS} | {
        "train_micro_batch_size_per_gpu": next(row[2] for row in ARGUMENTS if row[1] == "train_batch_size")
    }
    for name, value in values.items():
        try:
            if isinstance(value, str) and name not in ("optimizer", "lr_scheduler_type", "mixed_precision"):
                raise ValueError("expected a value, not its text")
            kinds[name](as_typed(value))
        except ValueError as error:
            faults.append(fault(name, value, str(error), "correct the value"))
    return faults


def owned_faults(file: DeepSpeedFile, strategy: str, stage: int | None) -> list[str]:
    """Keys in `deepspeed=` of `Setup.build` that its other arguments decide; `stage` is the strategy's ZeRO stage."""
    if stage is None:
        return [
            fault(file.where(key), value, f"{strategy} runs without DeepSpeed", "leave deepspeed= out")
            for key, value in file.config.items()
            if key not in ("fp16", "bf16", "scheduler")
        ]
    faults = [
        fault(file.where(key), file.get(key), "Setup.build writes this key", f"give {name}")
        for key, name in _OWNED.items()
        if file.get(key) not in (None, {})
    ]
    written = file.get("zero_optimization.stage")
    if written not in (None, stage):
        where = file.where("zero_optimization.stage")
        faults.append(fault(where, written, f"{strategy} is stage {stage}", "leave it out, or change the strategy"))
    devices = {f"{key}.device": device for key in SECTIONS if (device := file.get(f"{key}.device")) is not None}
    if devices and strategy.startswith("zero") and offloads(file) != strategy.endswith("_offload"):
        other = strategy.removesuffix("_offload") if strategy.endswith("_offload") else f"{strategy}_offload"
        key, device = next(iter(devices.items()))
        faults.append(fault(file.where(key), device, f"that is {other}", "leave it out, or change the strategy"))
    return faults
