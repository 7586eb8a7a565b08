"""One process, DDP and ZeRO through Accelerate: the loop of its own documentation, one optimizer step a call."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from accelerate import Accelerator, DeepSpeedPlugin, DistributedDataParallelKwargs, InitProcessGroupKwargs
from accelerate.state import AcceleratorState, GradientState, PartialState
from torch import Tensor, nn

from toolkit.data.batch import Batch
from toolkit.engines import group
from toolkit.engines.base import Engine, LossFn, OptimizerFn, StepStats
from toolkit.engines.batches import on_device, take
from toolkit.engines.compiled import compile_forward
from toolkit.engines.scaler import LossScaler
from toolkit.engines.state import Slot, parameter_groups, saved_buffers, zero_scaler, zero_slots
from toolkit.setup import Setup

NORM_ROW = 4096


class AccelerateEngine(Engine):
    """`Accelerator.prepare(model, optimizer)` under the setup's strategy. Loaders and schedulers stay outside:
    a prepared scheduler steps once per process, and a prepared loader shards by process."""

    reads_batches = reads_inputs = True
    eval_chunk = 1

    def __init__(self, model: nn.Module, loss_fn: LossFn, optimizer_fn: OptimizerFn, setup: Setup) -> None:
        super().__init__(setup, model, loss_fn)
        self._linear = torch.nn.functional.linear
        if setup.torch_compile:
            compile_forward(model)
        self.accelerator = _accelerator(setup, model)
        self.device = self.accelerator.device
        self.rank, self.size = self.accelerator.process_index, self.accelerator.num_processes
        optimizer = optimizer_fn(parameter_groups(model.named_parameters()))
        self.model, self.optimizer = self.accelerator.prepare(model, optimizer)
        self._buffers = dict(saved_buffers(model))  # moved to the device, they are other tensors
        self._zero = setup.deepspeed_config is not None
        # Accelerate's wrapper, and under it DeepSpeed's.
        self.torch_optimizer = self.optimizer.optimizer.optimizer if self._zero else self.optimizer.optimizer
        if setup.loss_scale:
            self.scaler = zero_scaler(self.model.optimizer) if self._zero else LossScaler(setup.loss_scale)
        self._set_masters()
        self.obtained = {
            "engine": type(self.model).__name__,
            "stage": self.model.zero_optimization_stage() if self._zero else None,
            "data_parallel_ranks": self.size,
            "pipeline_stages": 1,
            "device": self.device.type,
        }

    def set_lr(self, learning_rate: float) -> None:
        for each in self.optimizer.param_groups:
            each["lr"] = learning_rate

    def train_step(self, batches: Iterable[Batch]) -> StepStats:
        self.model.train()
        total = torch.zeros((), device=self.device)
        loss_scale = float(self.scaler.cur_scale) if self.scaler is not None else None
        skipped = False
        for batch in take(batches, self.setup.gradient_accumulation_steps):
            batch = on_device(batch, self.device)
            with self.accelerator.accumulate(self.model):
                losses = self._losses(self._forward(batch), batch.targets)  # [B]
                loss = (losses * batch.weights).sum() * self._scale(batch)
                # DeepSpeed scales in its backward, and has stepped when it returns from the last.
                self.accelerator.backward(loss if self._zero else loss * (loss_scale or 1.0))
                total += loss.detach()
                if self.accelerator.sync_gradients:
                    grad_norm, skipped = self._clip()
                if not skipped:
                    self.optimizer.step()
                self.optimizer.zero_grad()
        total /= self.setup.gradient_accumulation_steps
        if self.size > 1:
            dist.all_reduce(total)
            total /= self.size
        return self._stepped(total, grad_norm, loss_scale, skipped)

    def _forward(self, batch: Batch) -> Any:
        dtype = None if self._zero else self.setup.autocast_dtype  # DeepSpeed casts by its own section
        with torch.autocast(self.device.type, getattr(torch, dtype)) if dtype else nullcontext():
            return self.model(**batch.inputs) if isinstance(batch.inputs, dict) else self.model(*batch.inputs)

    def _clip(self) -> tuple[Tensor, bool]:
        """The gradient's norm before clipping, and whether it overflowed. DeepSpeed has clipped inside its step, by
        the value in its config, which is the setup's: `clip_grad_norm_` of Accelerate does nothing there."""
        if self._zero:
            norm = torch.as_tensor(self.model.get_global_grad_norm(), device=self.device).float()
            return norm, self.scaler is not None and bool(self.model.optimizer.overflow)
        trained = [p for p in self._parameters.values() if p.grad is not None]
        gradients = [p.grad for p in trained if p.grad is not None]
        if isinstance(self.scaler, LossScaler):
            torch._foreach_div_(gradients, self.scaler.cur_scale)
        norm = total_norm(gradients)
        if isinstance(self.scaler, LossScaler):
            overflow = not bool(norm.isfinite())  # ranks agree: they hold the same averages
            self.scaler.update_scale(overflow)
            if overflow:
                return norm, True
        if self.setup.max_grad_norm:
            torch.nn.utils.clip_grads_with_norm_(trained, self.setup.max_grad_norm, norm)
        return norm, False

    @torch.no_grad()
    def _evaluate_rows(self, batches: Iterable[Batch], count: int) -> Tensor:
        self.model.eval()
        rows = []
        for batch in take(batches, count):
            batch = on_device(batch, self.device)
            rows.append(self._rows(self._forward(batch), batch))
        return torch.cat(rows)

    def owned_buffers(self) -> list[Tensor]:
        return list(self._buffers.values())

    def slots(self) -> Iterator[Slot]:
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        if self._zero:
            yield from zero_slots(self.model.optimizer, names, self.rank)
            return
        writers = self.writers()
        for name in sorted(self._trained):
            p = self._parameters[name]
            yield Slot(name, 0, p.numel(), p, 0, p.dtype, owned=writers[name] == self.rank)

    @torch.no_grad()
    def local(self, name: str) -> Tensor:
        if name in self._buffers:
            return self._buffers[name].detach()
        parameter = self._parameters[name]
        if not hasattr(parameter, "ds_id"):
            return parameter.detach()
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([parameter]):
            return parameter.detach().clone()

    def _full(self, name: str) -> Tensor:
        return self.local(name).cpu().clone()

    def _put(self, name: str, tensor: Tensor) -> None:
        parameter = self._parameters.get(name)
        if not hasattr(parameter, "ds_id"):
            return super()._put(name, tensor)
        from deepspeed.runtime.zero import GatheredParameters

        with GatheredParameters([parameter], modifier_rank=0):
            if self.setup.rank == 0 and parameter is not None:
                parameter.copy_(tensor)

    def _refresh_masters(self) -> None:
        if self._zero:
            self.model.optimizer.refresh_fp32_params()

    def close(self) -> None:
        if self._zero:
            self.model.destroy()
        self.accelerator.free_memory()
        _reset_accelerate()
        # ZeRO-3 replaces it for the whole process, by one that sums a bias's gradient in another order.
        torch.nn.functional.linear = self._linear


def total_norm(gradients: Iterable[Tensor]) -> Tensor:
    """[] float32: the 2-norm of all gradients together, exact to fp32's last digits.

    `clip_grad_norm_` sums squares in fp32, one after another on CPU: for 12 million elements it is off by 5e-4, which
    clips DDP's gradients otherwise than DeepSpeed's, whose sums are fp64. Rows of 4096, then fp64, cost the same time.
    """
    parts = []
    for gradient in gradients:
        flat = gradient.detach().reshape(-1)
        whole = len(flat) // NORM_ROW * NORM_ROW
        parts += [torch.linalg.vector_norm(flat[:whole].view(-1, NORM_ROW), dim=1), flat[whole:].norm().view(1)]
    return torch.cat(parts).double().norm().float()


def _accelerator(setup: Setup, model: nn.Module) -> Accelerator:
    """An Accelerator that does what the setup says, whatever the launcher left in the environment."""
    _reset_accelerate()
    zero = setup.deepspeed_config is not None
    # Accelerate lets these override its arguments; the setup has read them already and is the one that counts.
    for name in [key for key in os.environ if key.startswith("ACCELERATE_")]:
        del os.environ[name]
    os.environ["ACCELERATE_USE_DEEPSPEED"] = str(zero).lower()
    if setup.strategy == "single":  # torchrun with one process: no group, no DDP around the model
        for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"):
            os.environ.pop(name, None)
    plugin = DeepSpeedPlugin(hf_ds_config=_with_buckets(setup.deepspeed_config, model)) if zero else None
    return Accelerator(
        # With cpu=True and DeepSpeed asked for, Accelerate quietly gives DDP; without it and without a backend named,
        # every CPU rank believes that it is alone.
        cpu=group.on_cpu(setup) and not zero,
        deepspeed_plugin=plugin,
        mixed_precision="no",
        gradient_accumulation_steps=setup.gradient_accumulation_steps,
        kwargs_handlers=[
            DistributedDataParallelKwargs(broadcast_buffers=False, gradient_as_bucket_view=True),
            *([InitProcessGroupKwargs(backend=dist.get_backend())] if zero else []),
        ],
    )


def _with_buckets(config: dict[str, Any] | None, model: nn.Module) -> dict[str, Any]:
    """A copy whose ZeRO buckets fit the model: the default of 5e8 elements is 2 GB in fp32, more than ZeRO saves."""
    assert config is not None
    zero = dict(config["zero_optimization"])
    elements = sum(p.numel() for p in model.parameters())
    elements += elements % 2  # ZeRO refuses an odd size of the second one
    for key in ("reduce_bucket_size", "allgather_bucket_size"):
        zero.setdefault(key, min(max(elements, 2), 500_000_000))
    return {**config, "zero_optimization": zero}


def _reset_accelerate() -> None:
    # Accelerate keeps one strategy per process in class state; a second engine (parity, tests) needs a fresh one.
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    PartialState._reset_state()
