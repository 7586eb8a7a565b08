"""The last step to a `Setup`: ranks, stages, batch, precision and offload together, and DeepSpeed's configuration."""

from collections.abc import Mapping, Sequence
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO, ONE_MICRO_BATCH, BatchSizes, Given, settle_batch
from toolkit.setup.checks import rank_fault
from toolkit.setup.dsjson import DeepSpeedFile, plain_config
from toolkit.setup.launcher import Launch
from toolkit.setup.offload import default_offload, settle_offload
from toolkit.setup.precision import settle_precision
from toolkit.setup.settled import ZERO_STAGE, Setup


def settle(
    launch: Launch,
    strategy: Given,
    stages: Given,
    partition: Given,
    batch: Mapping[str, Given],
    default_batch: Given,
    values: Mapping[str, Given],
    file: DeepSpeedFile | None,
    *,
    precision: Given,
    auto_accumulation: Given = ONE_MICRO_BATCH,
    config_files: tuple[str, ...] = (),
    notes: Sequence[str] = (),
) -> Setup:
    """Checks the ranks against strategy and stages, settles the batch, and writes DeepSpeed's configuration.

    Raises:
        UserError: stages that the ranks cannot carry, batch numbers that do not multiply, what cannot be offloaded.
    """
    name, world = strategy.value, launch.world_size
    if name.startswith("pipeline"):
        name = "pipeline" if stages.value == world else "pipeline_dp"
    counted = launch.requested_processes or Given(world, _counted(launch))
    faults: list[str] = []
    sizes = None
    if line := rank_fault(strategy.value, stages, world):
        faults.append(line)
    else:
        origin = counted.origin if stages.value == 1 else f"{counted.origin}: {world} / {stages.origin}: {stages.value}"
        try:
            sizes = settle_batch(
                batch, default_batch, world // stages.value, counted=origin, auto_accumulation=auto_accumulation
            )
        except UserError as error:
            faults += error.lines
    format, lines = settle_precision(precision, file, name)
    faults += lines
    notes = [*notes, *format.notes]
    offload = settle_offload(file, ZERO_STAGE.get(name, 0), stages.value, notes, faults) or default_offload(name)
    compiled = values["torch_compile"]
    if compiled.value and name not in ("single", "ddp"):
        reason = f"{name} ({strategy.origin}) runs the model in DeepSpeed's engine, where it is not supported yet"
        faults.append(fault(compiled.origin, True, reason, "leave it out, or take single or ddp"))
    if faults or sizes is None:
        raise UserError(*faults)
    config = None
    if name in ZERO_STAGE:
        config = _deepspeed_config(file, sizes, values, ZERO_STAGE[name]) | dict(format.sections)
        config["zero_optimization"] |= offload
    chosen = {**values, "strategy": strategy, "stages": stages, "partition": partition}
    chosen |= {"mixed_precision": precision, "world_size": counted, "loss_scale": format.loss_scale}
    place = Given(None, "environment")
    chosen |= dict.fromkeys(("launcher", "rank", "local_rank", "local_world_size", "use_cpu"), place)
    if offload:
        key = f"zero_optimization.{next(iter(offload))}.device"
        chosen["offload"] = Given(offload, file.where(key) if file is not None and file.get(key) else strategy.origin)
    chosen["weight_dtype"] = Given(format.weight_dtype, precision.origin)
    return Setup(
        strategy=name,
        launcher=launch.launcher,
        rank=launch.rank,
        local_rank=launch.local_rank,
        world_size=world,
        local_world_size=launch.local_world_size,
        use_cpu=launch.use_cpu,
        stages=stages.value,
        partition=partition.value,
        mixed_precision=precision.value,
        weight_dtype=format.weight_dtype,
        loss_scale=format.loss_scale.value,
        train_batch_size=sizes.train_batch_size,
        train_micro_batch_size_per_gpu=sizes.train_micro_batch_size_per_gpu,
        gradient_accumulation_steps=sizes.gradient_accumulation_steps,
        padding_rows=sizes.padding_rows,
        deepspeed_config=config,
        config_files=config_files,
        origins={key: given.origin for key, given in chosen.items()} | dict(sizes.origins),
        overrode={key: given.overrode for key, given in chosen.items()} | dict(sizes.overrode),
        notes=(*notes, *sizes.notes),
        **{key: given.value for key, given in values.items()},
    )


def _counted(launch: Launch) -> str:
    """Where the number of ranks comes from, if nobody asked for one by name."""
    return "python" if launch.launcher == "python" else f"{launch.launcher}: WORLD_SIZE"


def _deepspeed_config(
    file: DeepSpeedFile | None, sizes: BatchSizes, values: Mapping[str, Given], stage: int
) -> dict[str, Any]:
    settled = {
        # DeepSpeed knows no padding: its number is the rows of a step, real and padded. Where gradient_clipping is
        # absent it clips at 1.0 and DDP does not: one number, always written.
        GLOBAL: sizes.train_batch_size + sizes.padding_rows,
        MICRO: sizes.train_micro_batch_size_per_gpu,
        ACCUMULATION: sizes.gradient_accumulation_steps,
        "gradient_clipping": float(values["max_grad_norm"].value),
        "zero_optimization.stage": stage,
    }
    return plain_config(file or DeepSpeedFile("", {}), settled)
