"""`Setup`: everything that decides how a run trains, settled before it starts."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from toolkit.errors import UserError, fault
from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO, ONE_MICRO_BATCH, Given, settle_batch
from toolkit.setup.checks import build_faults, owned_faults, rank_fault
from toolkit.setup.dsjson import DeepSpeedFile, check_keys, plain_config
from toolkit.setup.launcher import Launch
from toolkit.setup.offload import default_offload, settle_offload
from toolkit.setup.precision import DTYPES, asked_precision, settle_precision

ZERO_STAGE = {"zero1": 1, "zero2": 2, "zero3": 3, "pipeline": 1, "pipeline_dp": 1}
ZERO_STAGE |= {f"zero{stage}_offload": stage for stage in (1, 2, 3)}
STRATEGIES = ("single", "ddp", *ZERO_STAGE)
VALUES: dict[str, Any] = {
    "max_grad_norm": 1.0,
    "optimizer": "adamw",
    "learning_rate": 1e-3,
    "weight_decay": 0.0,
    "momentum": 0.9,
    "lr_scheduler_type": "constant",
    "num_warmup_steps": 0,
    "seed": 42,
    "gradient_checkpointing": False,
    "sync_batch_norm": False,
    "timeout": 120,
    "verbose": False,
}


@dataclass(frozen=True, kw_only=True)
class Setup:
    """Frozen and validated; `origins` says for each name where its value came from, `notes` what must be said.

    `deepspeed_config` goes as it stands to DeepSpeed or Accelerate's plugin; its train_batch_size counts padding rows.
    """

    strategy: str
    launcher: str
    rank: int
    local_rank: int
    world_size: int
    local_world_size: int
    use_cpu: bool
    stages: int
    partition: str
    mixed_precision: str  # no | bf16 | fp16
    weight_dtype: str  # of parameters in the model: float32 where mixed_precision is autocast
    loss_scale: Mapping[str, Any]  # DeepSpeed's fp16 numbers, the same in every setup; empty but in fp16
    train_batch_size: int  # samples of an optimizer step, all ranks
    train_micro_batch_size_per_gpu: int  # rows of a micro-batch on one rank
    gradient_accumulation_steps: int  # micro-batches of a step on one rank
    padding_rows: int  # rows of a step with weight 0, all ranks
    max_grad_norm: float  # 0 is off
    optimizer: str
    learning_rate: float
    weight_decay: float
    momentum: float
    lr_scheduler_type: str
    num_warmup_steps: int  # optimizer steps
    seed: int
    gradient_checkpointing: bool
    sync_batch_norm: bool
    timeout: float  # seconds
    verbose: bool
    deepspeed_config: dict[str, Any] | None  # None for single and ddp
    config_files: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def data_parallel_size(self) -> int:
        return self.world_size // self.stages

    @property
    def autocast_dtype(self) -> str | None:
        """The format that fp32 weights are cast to in the forward pass; None where they are not."""
        return DTYPES[self.mixed_precision] if self.mixed_precision != "no" and self.weight_dtype == "float32" else None

    @property
    def offloads_optimizer(self) -> bool:
        """Whether the optimizer steps in the host's memory."""
        return "offload_optimizer" in (self.deepspeed_config or {}).get("zero_optimization", {})

    @classmethod
    def from_run(
        cls, arguments: Namespace, environ: Mapping[str, str] = os.environ, parent: Sequence[str] | None = None
    ) -> "Setup":
        """The setup of this process, from its launcher, files and arguments (of `parse_arguments`).

        Args:
            parent: command line of the launcher's process, read from /proc where None.

        Raises:
            UserError: one line for each mistake.
        """
        from toolkit.setup.run import setup_from_run

        return setup_from_run(arguments, environ, parent)

    @classmethod
    def build(
        cls,
        *,
        strategy: str,
        world_size: int = 1,
        rank: int = 0,
        local_rank: int | None = None,
        launcher: str = "torchrun",
        use_cpu: bool = False,
        stages: int | None = None,
        partition: str = "parameters",
        train_batch_size: int | None = None,
        train_micro_batch_size_per_gpu: int | None = None,
        gradient_accumulation_steps: int | None = None,
        default_train_batch_size: int = 32,
        mixed_precision: str = "no",
        deepspeed: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> "Setup":
        """A setup without files, through the same checks: many of them can live in one process group.

        Args:
            stages: of a pipeline; all ranks where None.
            default_train_batch_size: yields to the three batch numbers, and is padded where it does not divide.
            deepspeed: further keys of DeepSpeed's JSON; those that the other arguments decide are refused. Its `fp16`
                and `bf16` sections mean what they mean in a file.
            values: max_grad_norm, optimizer, learning_rate, ... as in `VALUES`, whose defaults they replace.
        """
        if strategy not in STRATEGIES:
            raise UserError(fault("strategy", strategy, "unknown", f"one of {', '.join(STRATEGIES)}"))
        unknown = [
            fault(name, value, "unknown", f"one of {', '.join(VALUES)}")
            for name, value in values.items()
            if name not in VALUES
        ]
        if unknown:
            raise UserError(*unknown)
        by_hand = "Setup.build"
        batch = {
            GLOBAL: train_batch_size,
            MICRO: train_micro_batch_size_per_gpu,
            ACCUMULATION: gradient_accumulation_steps,
        }
        given = {key: value for key, value in batch.items() if value is not None}
        file = DeepSpeedFile(by_hand, deepspeed or {})
        settings = {**given, **values, "mixed_precision": mixed_precision}
        faults = build_faults(strategy, world_size, rank, partition, settings) + check_keys(file)
        faults = faults or owned_faults(file, strategy, ZERO_STAGE.get(strategy))
        if faults:
            raise UserError(*faults)
        if stages is None:
            stages = world_size if strategy.startswith("pipeline") else 1
        local = rank if local_rank is None else local_rank
        no_launch, no_precision = Given("no", by_hand), Given(mixed_precision, f"{by_hand}: mixed_precision")
        typed = None if mixed_precision == "no" else no_precision
        precision, faults = asked_precision(typed, no_launch, file, no_precision)
        if faults:
            raise UserError(*faults)
        return settle(
            Launch(launcher, rank, local, world_size, world_size, use_cpu),
            Given(strategy, by_hand),
            Given(stages, by_hand),
            Given(partition, by_hand),
            {key: Given(value, f"{by_hand}: {key}") for key, value in given.items()},
            Given(default_train_batch_size, "default"),
            {name: Given(values.get(name, default), by_hand) for name, default in VALUES.items()},
            file,
            precision=precision,
        )

    def banner(self) -> str:
        """One line: strategy, ranks, precision, the batch's product, and where each came from."""
        split = f"{self.stages} stages, " if self.stages > 1 else ""
        padding = f" (+ {self.padding_rows} rows of padding)" if self.padding_rows else ""
        precision = "fp32" if self.mixed_precision == "no" else self.mixed_precision
        if self.mixed_precision != "no":
            precision += " autocast of fp32 weights" if self.autocast_dtype else " weights"
            precision += f" ({self.origins['mixed_precision']})"
        if self.offloads_optimizer and self.optimizer != "sgd":
            precision += f", {self.optimizer} is DeepSpeedCPUAdam"
        batch = (
            f"{self.train_batch_size}{padding} = {_plural(self.data_parallel_size, 'replica' if split else 'rank')} x "
            f"{_plural(self.train_micro_batch_size_per_gpu, 'sample')} x "
            f"{_plural(self.gradient_accumulation_steps, 'micro-batch')}"
        )
        origins = dict.fromkeys(self.origins[key] for key in (GLOBAL, MICRO, ACCUMULATION))
        given = "; ".join(origin for origin in origins if origin not in ("derived", "default"))
        ranks = f"{split}{_plural(self.world_size, 'rank')} ({self.launcher})"
        return (
            f"{self.strategy} ({self.origins['strategy']}), {ranks}, "
            f"{precision}, {batch} ({given}), clip {self.max_grad_norm:g} ({self.origins['max_grad_norm']})"
        )

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """{name: {"value": ..., "origin": ...}} of every value, for summary.json."""
        result = {}
        for each in fields(self):
            if each.name not in ("origins", "notes"):
                value = getattr(self, each.name)
                value = list(value) if isinstance(value, tuple) else value
                result[each.name] = {"value": value, "origin": self.origins.get(each.name, "derived")}
        return result


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
        UserError: stages that the ranks cannot carry, or batch numbers that do not multiply.
    """
    name, world = strategy.value, launch.world_size
    fault_line = rank_fault(name, stages, world)
    if fault_line:
        raise UserError(fault_line)
    if name.startswith("pipeline"):
        name = "pipeline" if stages.value == world else "pipeline_dp"
    sizes = settle_batch(batch, default_batch, world // stages.value, auto_accumulation=auto_accumulation)
    format, faults = settle_precision(precision, file, name)
    notes = [*notes, *format.notes]
    offload = settle_offload(file, ZERO_STAGE.get(name, 0), stages.value, notes, faults) or default_offload(name)
    if faults:
        raise UserError(*faults)
    config = None
    if name in ZERO_STAGE:
        settled = {
            # DeepSpeed knows no padding: its number is the rows of a step, real and padded. Where gradient_clipping is
            # absent it clips at 1.0 and DDP does not: one number, always written.
            GLOBAL: sizes.train_batch_size + sizes.padding_rows,
            MICRO: sizes.train_micro_batch_size_per_gpu,
            ACCUMULATION: sizes.gradient_accumulation_steps,
            "gradient_clipping": float(values["max_grad_norm"].value),
            "zero_optimization.stage": ZERO_STAGE[name],
        }
        config = plain_config(file or DeepSpeedFile("", {}), settled) | dict(format.sections)
        config["zero_optimization"] |= offload
    origins = {key: given.origin for key, given in values.items()} | dict(sizes.origins)
    origins |= {"strategy": strategy.origin, "stages": stages.origin, "partition": partition.origin}
    origins |= dict.fromkeys(
        ("launcher", "rank", "local_rank", "world_size", "local_world_size", "use_cpu"), "environment"
    )
    origins |= dict.fromkeys(("mixed_precision", "weight_dtype"), precision.origin)
    origins["loss_scale"] = format.loss_scale.origin
    if launch.requested_processes is not None:
        origins["world_size"] = launch.requested_processes.origin
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
        origins=origins,
        notes=(*notes, *sizes.notes),
        **{key: given.value for key, given in values.items()},
    )


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"
