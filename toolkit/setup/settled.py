"""`Setup`: everything that decides how a run trains, settled before it starts."""

import os
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from toolkit.setup.batch import ACCUMULATION, GLOBAL, MICRO
from toolkit.setup.launcher import Launch
from toolkit.setup.precision import DTYPES

ZERO_STAGE = {"zero1": 1, "zero2": 2, "zero3": 3, "pipeline": 1, "pipeline_dp": 1}
ZERO_STAGE |= {f"zero{stage}_offload": stage for stage in (1, 2, 3)}
STRATEGIES = ("single", "ddp", *ZERO_STAGE)


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
    optimizer_options: Mapping[str, Any]  # its further numbers, by torch's names: betas and eps, or SGD's two
    lr_scheduler_type: str  # constant | linear | cosine | ..., or the JSON's scheduler.type
    num_warmup_steps: int  # optimizer steps; a ratio's are known in `fit`
    warmup_ratio: float  # of the run's optimizer steps; 0 where num_warmup_steps is given
    label_smoothing_factor: float
    class_weights: Any  # "balanced", a list, {class: weight}, or None
    lr_schedule: Mapping[str, Any]  # type and numbers of --lr_scheduler_kwargs or the JSON's scheduler; {} without
    seed: int
    freeze: Sequence[str] | None  # names of modules or parameters that do not train
    torch_compile: bool
    gradient_checkpointing: bool
    sync_batch_norm: bool
    timeout: float  # seconds
    verbose: bool
    deepspeed_config: dict[str, Any] | None  # None for single and ddp
    config_files: tuple[str, ...] = ()
    origins: Mapping[str, str] = field(default_factory=dict)
    overrode: Mapping[str, str] = field(default_factory=dict)  # what else was said for a name, and does not hold
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
            deepspeed: further keys of DeepSpeed's JSON; those that the other arguments decide are refused. Its `fp16`,
                `bf16` and `scheduler` sections mean what they mean in a file.
            values: max_grad_norm, optimizer, learning_rate, ... as in `VALUES`, whose defaults they replace.
        """
        from toolkit.setup.built import setup_by_hand

        batch = {
            GLOBAL: train_batch_size,
            MICRO: train_micro_batch_size_per_gpu,
            ACCUMULATION: gradient_accumulation_steps,
        }
        return setup_by_hand(
            Launch(launcher, rank, rank if local_rank is None else local_rank, world_size, world_size, use_cpu),
            strategy,
            stages,
            partition,
            batch,
            default_train_batch_size,
            mixed_precision,
            deepspeed or {},
            values,
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

    def title(self) -> str:
        """A few words: strategy, ranks, precision, global batch."""
        precision = "fp32" if self.mixed_precision == "no" else self.mixed_precision
        precision += " weights" if self.weight_dtype != "float32" else ""
        return f"{self.strategy}, {_plural(self.world_size, 'rank')}, {precision}, batch {self.train_batch_size}"

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """{name: {"value": ..., "origin": ..., "overrode": ...}} of every value, for summary.json and `check`.

        The value of `offload` is {"offload_optimizer": device, ...} or None.
        """
        result = {}
        for each in fields(self):
            if each.name not in ("origins", "overrode", "notes"):
                value = getattr(self, each.name)
                value = list(value) if isinstance(value, tuple) else value
                origin, overrode = self.origins.get(each.name, "derived"), self.overrode.get(each.name) or None
                result[each.name] = {"value": value, "origin": origin, "overrode": overrode}
        zero = (self.deepspeed_config or {}).get("zero_optimization", {})
        devices = {name: zero[name]["device"] for name in ("offload_optimizer", "offload_param") if name in zero}
        origin = self.origins.get("offload", "default")
        return result | {"offload": {"value": devices or None, "origin": origin, "overrode": None}}


def _plural(count: int, noun: str) -> str:
    ending = "" if count == 1 else "es" if noun.endswith("ch") else "s"
    return f"{count} {noun}{ending}"
