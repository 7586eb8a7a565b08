"""The engine: one optimizer step as the unit of work, the same for every strategy.

A pipeline has no finer unit than a whole step (DeepSpeed's `forward`, `backward` and `step` raise there), so a loop
written in steps runs unchanged under one process, DDP, ZeRO and pipeline.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from toolkit.data.batch import Batch
from toolkit.engines import group, host_adam, scaler, state
from toolkit.engines.batches import Batches, logits_of
from toolkit.engines.first_step import FirstStep, check_ranks_agree
from toolkit.engines.precision import check_not_16_bit, keep_batch_norm_exact
from toolkit.engines.ranks import gather_rows, on_rank_0
from toolkit.engines.scores import scores_of
from toolkit.engines.state import Slot, Stored, saved_buffers, share_out
from toolkit.errors import UserError, fault
from toolkit.setup import Setup

LossFn = Callable[[Any, Tensor], Tensor]  # (outputs, targets) -> [B] per-sample losses
OptimizerFn = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


class StepStats(NamedTuple):
    """What one optimizer step gives; tensors stay on the device so that a loop need not wait for them."""

    loss: Tensor  # [] float32: mean loss of the global batch, sum(w x loss) / sum(w), the same on every rank
    grad_norm: Tensor  # [] float32: 2-norm of the gradient of that mean before clipping, over all parameters
    skipped: bool = False  # the optimizer did not move (fp16 overflow); `updates` did not advance
    loss_scale: float | None = None  # what the losses were multiplied by; None but in fp16


class Engine(ABC):
    """A model under one strategy. `toolkit.prepare` makes it; both kinds pass one contract test suite."""

    setup: Setup
    rank: int  # data-parallel rank: which share of a global batch this process reads
    size: int  # data-parallel ranks
    device: torch.device
    reads_batches: bool  # False on the middle stages of a pipeline, which pull no batch
    reads_inputs: bool  # False on all its stages but the first
    obtained: dict[str, Any]  # what the libraries really gave: engine class, dtype, ranks, stage
    torch_optimizer: torch.optim.Optimizer  # what steps in the end, below the libraries' wrappers
    scaler: scaler.Scaler | None = None  # of the losses, in fp16
    eval_chunk: int  # batches scored between two looks at whether to go on

    def __init__(self, setup: Setup, model: nn.Module, loss_fn: LossFn) -> None:
        check_not_16_bit(model)
        if cast := setup.weight_dtype != "float32":
            keep_batch_norm_exact(model)
        self.setup = setup
        self.updates = 0  # optimizer steps applied
        self.stuck = 0  # steps skipped one after another at the smallest loss scale
        self._first_step: FirstStep | None = FirstStep(model, group.device(setup), setup.torch_compile)
        self.model_class, self.model_config = type(model).__name__, getattr(model, "config", None)
        self.model_arguments = getattr(model, "arguments", None)
        self._loss_fn = loss_fn
        # A shared tensor stands once, under the first of its names, as in a state dict without duplicates.
        self._shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        held = getattr(torch, setup.weight_dtype)  # DeepSpeed casts frozen ones too
        self._dtypes = {n: held if cast and p.is_floating_point() else p.dtype for n, p in model.named_parameters()}
        self._parameters = dict(model.named_parameters())
        # DeepSpeed gives a cast parameter new storage: these keep the old one until `_set_masters`.
        self._exact = {name: p.detach() for name, p in self._parameters.items()} if cast else {}
        self._trained = {name for name, parameter in self._parameters.items() if parameter.requires_grad}
        self._buffers = dict(saved_buffers(model))
        # Whether a row's result depends on the other rows of its micro-batch.
        self.couples_samples = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())
        if self.couples_samples and setup.padding_rows:
            reason = f"needs {setup.padding_rows} padding rows a step, which would enter BatchNorm's statistics"
            remedy = "choose a batch that divides by ranks and micro-batches, or a norm of single samples"
            raise UserError(fault("train_batch_size", setup.train_batch_size, reason, remedy))

    @abstractmethod
    def set_lr(self, learning_rate: float) -> None:
        """The learning rate of the next step, in every parameter group."""

    @abstractmethod
    def train_step(self, batches: Iterable[Batch]) -> StepStats:
        """Forward, backward, clip, optimizer over exactly `gradient_accumulation_steps` micro-batches.

        Collective: every rank calls it with its own share of the same global batch.
        """

    @abstractmethod
    def _evaluate_rows(self, batches: Iterable[Batch], count: int) -> Tensor:
        """[n, 4] float64 on the device: id, loss, prediction, target of each row of weight 1 this rank scored."""

    @abstractmethod
    def slots(self) -> Iterator[Slot]:
        """Where the optimizer keeps this rank's share of the trained parameters."""

    @abstractmethod
    def local(self, name: str) -> Tensor | None:
        """The whole tensor of that name, where this rank holds it. Collective where `gathers`."""

    @abstractmethod
    def _full(self, name: str) -> Tensor:
        """The whole tensor of that name on the CPU, on every rank. Collective."""

    def _put(self, name: str, tensor: Tensor) -> None:
        """Copy a whole tensor into the one of that name, where this rank holds it."""
        target = self._buffers.get(name, self._parameters.get(name))
        if target is not None:
            target.copy_(tensor)

    def _set_masters(self) -> None:
        """Let the fp32 masters of 16-bit weights start from the model's own weights."""
        if self._exact:
            state.set_masters(self.slots(), self._exact)
            self._exact = {}

    @abstractmethod
    def _refresh_masters(self) -> None:
        """After new weights: the optimizer's own copies of them follow."""

    @abstractmethod
    def owned_buffers(self) -> list[Tensor]:
        """Buffers of the layers this rank holds."""

    def stage_times(self) -> dict[str, Any] | None:
        """How long a pipeline's stages work in a step (see `StageClock.stages`); None without stages. Collective."""
        return None

    def close(self) -> None:  # noqa: B027 - optional: engines without global state need nothing
        """Release what the libraries keep globally, so that another engine may follow in this process."""

    @property
    def gathers(self) -> bool:
        """Whether no rank holds a whole parameter (ZeRO-3)."""
        return any(hasattr(parameter, "ds_id") for parameter in self._parameters.values())

    def evaluate(
        self, batches: Batches, metrics: Sequence[Any] = (), go_on: Callable[[], bool] = lambda: True
    ) -> dict[str, Any] | None:
        """Mean loss and metrics over all samples, each counted once, equal on every rank.

        Args:
            batches: this rank's share (`EvalLoader`): as many on every rank, padded with rows of weight 0.
            metrics: `evaluate.Metric` objects; `compute(predictions=, references=)` runs on rank 0 alone.
            go_on: asked before each few batches, equally often on every rank; False ends it.

        Returns:
            `{"loss": ..., and what the metrics return}`; None where `go_on` ended it.
        """
        self.sync_buffers()
        parts = [torch.zeros(0, 4, dtype=torch.float64, device=self.device)]
        feed = iter(batches)
        for start in range(0, len(batches), self.eval_chunk):
            if not go_on():
                return None
            count = min(self.eval_chunk, len(batches) - start)
            parts.append(self._evaluate_rows(islice(feed, count), count))
        rows = gather_rows(torch.cat(parts))
        rows = rows[rows[:, 0].argsort()]  # by sample id: the same sums and counts for any number of ranks
        return on_rank_0(lambda: scores_of(rows.cpu(), metrics))

    def sync_buffers(self) -> None:
        """Make buffers equal on all data-parallel ranks: the mean, or rank 0's value for integers.

        DDP sends rank 0's buffers before each forward, DeepSpeed sends none: BatchNorm statistics would differ from
        rank to rank, and from setup to setup. Here each rank keeps its own while training, in every setup alike, and
        they are averaged before each evaluation and save.
        """
        if self.size == 1:
            return
        for buffer in self.owned_buffers():
            if buffer.is_floating_point():
                dist.all_reduce(buffer, group=self._data_parallel_group())
                buffer /= self.size
            else:
                dist.broadcast(buffer, group_src=0, group=self._data_parallel_group())

    def layout(self) -> dict[str, tuple[torch.dtype, tuple[int, ...], bool]]:
        """(dtype, shape, whether it is trained) of every parameter and saved buffer, under the model's own names."""
        own = {name: (self._dtypes[name], tuple(shape), name in self._trained) for name, shape in self._shapes.items()}
        return own | {name: (buffer.dtype, tuple(buffer.shape), False) for name, buffer in self._buffers.items()}

    def writers(self) -> dict[str, int]:
        """{name: the rank that writes it into a checkpoint}, evenly shared out."""
        # A trained one brings optimizer state along, Adam's twice its size.
        sizes = {
            name: (3 if own else 1) * t.itemsize * math.prod(shape) for name, (t, shape, own) in self.layout().items()
        }
        return share_out(sizes, self._holders(list(sizes)))

    def _holders(self, names: list[str]) -> dict[str, list[int]]:
        return dict.fromkeys(names, list(range(self.size)))

    def named_state(self) -> Iterator[tuple[str, Tensor]]:
        """(name, tensor) of every parameter and saved buffer, under the model's own names, whole, on the CPU.

        Collective, one tensor at a time; every rank yields the same.
        """
        self.sync_buffers()
        for name in self.layout():
            yield name, self._full(name)

    def restore(self, weights: Iterable[tuple[str, Tensor]], stored: Stored) -> None:
        """Put a checkpoint's weights, buffers and optimizer state into this engine. Collective.

        Raises:
            UserError: state that this setup has no place for.
        """
        self.load_named_state(weights)
        state.restore(self.torch_optimizer, self.slots(), stored)
        host_adam.go_on(self.torch_optimizer)

    @torch.no_grad()
    def load_named_state(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        """Put whole tensors, as `named_state` of any engine gives them, into this one: weights and buffers.

        The optimizer keeps its own state. Collective: every rank passes the same names in the same order.

        Raises:
            ValueError: a name or a shape that the model does not have, or one that is missing.
        """
        missing = {name: shape for name, (_, shape, _) in self.layout().items()}
        for name, tensor in tensors:
            if missing.pop(name, None) != tuple(tensor.shape):
                raise ValueError(f"{name}: {tuple(tensor.shape)} has no place")
            self._put(name, tensor)
        if missing:
            raise ValueError(f"no tensors for {', '.join(missing)}")
        self._refresh_masters()

    def check_first_step(self) -> None:
        """After the first step of this process, once: every parameter trains, in the formats asked for, and every rank
        has the same weights."""
        if self._first_step is None:
            return
        watched, self._first_step = self._first_step, None
        watched.remove()
        watched.check_all_trained(self._parameters)
        self.check_ranks_agree()
        self.obtained |= watched.formats(self.setup, self._parameters.values(), self.owned_buffers())

    def _stepped(self, loss: Tensor, grad_norm: Tensor, loss_scale: float | None, skipped: bool) -> StepStats:
        """Counts a step.

        Raises:
            UserError: too many steps in a row were skipped at the smallest loss scale.
        """
        self.updates += not skipped
        floor = loss_scale is not None and scaler.at_floor(loss_scale, self.setup.loss_scale)
        self.stuck = self.stuck + 1 if skipped and floor else 0
        if self.stuck == scaler.SKIPS_AT_FLOOR:
            reason = f"{self.stuck} steps in a row were skipped: gradients are not finite at loss scale {loss_scale:g}"
            remedy = "look at the data and the learning rate, or use bf16"
            raise UserError(fault("mixed_precision", "fp16", reason, remedy))
        return StepStats(loss, torch.full_like(grad_norm, math.inf) if skipped else grad_norm, skipped, loss_scale)

    def check_ranks_agree(self) -> None:
        """Raise RuntimeError unless all data-parallel ranks hold equal weights. Collective."""
        # ZeRO-3 holds shards: nothing to compare.
        whole = [parameter for parameter in self._parameters.values() if not hasattr(parameter, "ds_id")]
        check_ranks_agree(whole, self.rank, self.size, self._data_parallel_group())

    def _data_parallel_group(self) -> dist.ProcessGroup | None:
        return None  # the default group: every rank is data parallel

    def _losses(self, outputs: Any, targets: Tensor) -> Tensor:
        losses = self._loss_fn(logits_of(outputs), targets)
        if losses.shape != targets.shape[:1]:
            reason = f"must return one loss per sample, shape {tuple(targets.shape[:1])}"
            remedy = "pass reduction='none' and take the mean over all but the first dimension"
            raise UserError(fault("loss_fn", tuple(losses.shape), reason, remedy))
        return losses

    def _rows(self, outputs: Any, batch: Batch) -> Tensor:
        """[n, 4] float64: id, loss, prediction, target of the rows of weight 1; all tensors on the device."""
        logits = logits_of(outputs)
        losses = self._losses(logits, batch.targets)
        classes = logits.dim() == 2 and (logits.shape[1] > 1 or not batch.targets.is_floating_point())
        predictions = logits.argmax(-1) if classes else logits.reshape(len(logits))
        columns = (batch.ids, losses, predictions, batch.targets.reshape(len(losses)))
        return torch.stack([column.detach().double() for column in columns], dim=1)[batch.weights > 0]

    def _scale(self, batch: Batch) -> float:
        """The factor that turns this rank's sum(w x loss) into its share of the global mean.

        Both libraries divide by `gradient_accumulation_steps` and average over data-parallel ranks, which is right
        only when every micro-batch holds as many samples. Multiplying by both and dividing by the global sum of
        weights gives sum(w x loss) / sum(w) whatever the split.
        """
        return self.size * self.setup.gradient_accumulation_steps / batch.total
