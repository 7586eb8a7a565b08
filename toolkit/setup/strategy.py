"""Which strategy launcher and file ask for, and how a pipeline is cut."""

from toolkit.errors import fault
from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO, Given
from toolkit.setup.checks import partition_fault
from toolkit.setup.dsjson import DeepSpeedFile
from toolkit.setup.launcher import Launch
from toolkit.setup.offload import offloads

# What a run without DeepSpeed takes from its JSON.
_TAKEN = {GLOBAL, MICRO, ACCUMULATION, "gradient_clipping", "optimizer", "scheduler", "fp16", "bf16", "torch_autocast"}
_TAKEN |= {"pipeline", "zero_optimization"}


def settle_strategy(
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
    unused = [key for key in file.config if key not in _TAKEN]
    offload = ("offload_optimizer", "offload_param")  # refused with stage 0 where they switch something on
    unused += [
        f"zero_optimization.{key}"
        for key in file.config.get("zero_optimization", {})
        if key != "stage" and key not in offload
    ]
    idle = f"; not used: {', '.join(unused)}" if unused else ""
    notes.append(
        f"{stage_where} 0 runs as {plain}, with batch, precision, clipping, optimizer and schedule from the file{idle}"
    )
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
