"""DeepSpeed's pipeline behind the same interface: the model's own layers, cut into stages, ZeRO-1 beside it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import deepspeed
import torch
import torch.distributed as dist
from deepspeed.pipe import PipelineModule
from deepspeed.utils import groups
from torch import Tensor, nn

from toolkit.data.batch import Batch
from toolkit.engines.base import Engine, LossFn, OptimizerFn, StepStats
from toolkit.engines.batches import take
from toolkit.engines.ranks import every_rank
from toolkit.engines.stage_clock import StageClock
from toolkit.engines.state import Slot, parameter_groups, saved_buffers, zero_scaler, zero_slots
from toolkit.errors import UserError, fault
from toolkit.launch import say
from toolkit.setup import Setup


class PipelineEngine(Engine):
    """`deepspeed.initialize` on a `PipelineModule` made of `model.pipeline_layers()`.

    The layers are the model's own modules, so each parameter keeps its name by identity; one that two stages share
    (tied embeddings) is kept equal on both.
    """

    def __init__(self, model: nn.Module, loss_fn: LossFn, optimizer_fn: OptimizerFn, setup: Setup) -> None:
        super().__init__(setup, model, loss_fn)
        layers = _layers(model, setup)
        module = _Stages(
            layers=layers,
            num_stages=setup.stages,
            loss_fn=self._stage_loss,
            partition_method=setup.partition,
            # Sequence lengths change from micro-batch to micro-batch; without this gloo aborts the process.
            dynamic_shape=True,
        )
        titles = [_title(layer, self._parameters) for layer in layers]
        # The module's list would keep the other stages' layers alive.
        module._layer_specs = [None] * len(layers)
        own = {id(parameter) for parameter in module.parameters()}
        mine = {name: p for name, p in self._parameters.items() if id(p) in own}
        optimizer = _stage_optimizer(optimizer_fn, mine, module, setup, titles)
        self.engine, *_ = deepspeed.initialize(
            model=module, optimizer=optimizer, config=dict(setup.deepspeed_config or {})
        )
        self._buffers = dict(saved_buffers(model))  # moved to the device, they are other tensors
        _one_norm(self.engine.optimizer)
        self.torch_optimizer = self.engine.optimizer.optimizer
        self.scaler = zero_scaler(self.engine.optimizer) if setup.loss_scale else None
        self._held = self._held_by_rank(mine, module)
        self._parameters = mine
        # A pipeline that is scored a few batches at a time fills and drains each time: enough of them to hide that.
        self.eval_chunk = 8 * setup.stages
        self.device = self.engine.device
        self.rank, self.size = self.engine.grid.get_data_parallel_id(), self.engine.grid.data_parallel_size
        self._set_masters()
        self._clock = StageClock(self.engine, self.device)
        self.reads_inputs = self.engine.is_first_stage()
        self.reads_batches = self.reads_inputs or self.engine.is_last_stage()
        self.layer_ranges = [(module.parts[i], module.parts[i + 1]) for i in range(setup.stages)]
        say("layers: " + ", ".join(f"stage {n} {a}-{b - 1}" for n, (a, b) in enumerate(self.layer_ranges)))
        self._scored: list[Tensor] = []
        self.obtained = {
            "engine": type(self.engine).__name__,
            "stage": self.engine.zero_optimization_stage(),
            "data_parallel_ranks": self.size,
            "pipeline_stages": self.engine.num_stages,
            "layers": [f"{first}-{stop - 1}" for first, stop in self.layer_ranges],
            "device": self.device.type,
        }

    def set_lr(self, learning_rate: float) -> None:
        for group in self.engine.optimizer.param_groups:
            group["lr"] = learning_rate

    def train_step(self, batches: Iterable[Batch]) -> StepStats:
        count = self.setup.gradient_accumulation_steps
        feed = (self._feed(batch, self._scale(batch)) for batch in take(batches, count))
        loss_scale = float(self.scaler.cur_scale) if self.scaler is not None else None
        self._clock.begin()
        loss = self.engine.train_batch(feed)  # middle stages pull nothing
        grad_norm = torch.as_tensor(self.engine.get_global_grad_norm(), device=self.device).float()
        skipped = self.scaler is not None and bool(self.engine.optimizer.overflow)
        return self._stepped(loss, grad_norm, loss_scale, skipped)

    def stage_times(self) -> dict[str, Any] | None:
        return self._clock.stages(self.engine.stage_id)

    def _evaluate_rows(self, batches: Iterable[Batch], count: int) -> Tensor:
        """The last stage scores: `eval_batch` hands out the last micro-batch's logits only, so the loss function,
        which sees every micro-batch, collects the rows."""
        self._scored = [torch.zeros(0, 4, dtype=torch.float64, device=self.device)]
        feed = (self._feed(batch, 1.0) for batch in batches) if self.reads_batches else iter(())
        self.engine.eval_batch(feed, num_micro_batches=count, bcast_loss=False)
        return torch.cat(self._scored)

    def _feed(self, batch: Batch, scale: float) -> tuple[Any, tuple[Tensor, Tensor, Tensor]]:
        """What a pipeline reads: (inputs of the first layer, labels of the last)."""
        inputs = tuple(batch.inputs.values()) if isinstance(batch.inputs, dict) else tuple(batch.inputs)
        first: Any = inputs[0] if len(inputs) == 1 else inputs
        return first, (batch.targets, batch.weights * scale, batch.ids)

    def _stage_loss(self, outputs: Any, labels: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        targets, weights, ids = labels
        if not self.engine.module.training:
            rows = self._rows(outputs, Batch((), targets, weights, 0.0, ids))
            self._scored.append(rows)
            return rows[:, 1].sum().float()
        return (self._losses(outputs, targets) * weights).sum()

    def _data_parallel_group(self) -> dist.ProcessGroup | None:
        return self.engine.grid.get_data_parallel_group()

    def owned_buffers(self) -> list[Tensor]:
        own = {id(buffer) for buffer in self.engine.module.buffers()}
        return [buffer for buffer in self._buffers.values() if id(buffer) in own]

    def _held_by_rank(self, mine: dict[str, nn.Parameter], module: PipelineModule) -> list[set[str]]:
        """Names of the tensors that each global rank holds."""
        buffers = {id(buffer) for buffer in module.buffers()}
        return every_rank({*mine, *(name for name, buffer in self._buffers.items() if id(buffer) in buffers)})

    def _holders(self, names: list[str]) -> dict[str, list[int]]:
        return {name: [rank for rank, held in enumerate(self._held) if name in held] for name in names}

    def slots(self) -> Iterator[Slot]:
        names = {id(parameter): name for name, parameter in self._parameters.items()}
        return zero_slots(self.engine.optimizer, names, self.rank)

    def local(self, name: str) -> Tensor | None:
        held = self._buffers if name in self._buffers else self._parameters
        return held[name].detach() if name in self._held[self.setup.rank] else None

    def _full(self, name: str) -> Tensor:
        tensor = self.local(name)
        if tensor is None:
            dtype, shape, _ = self.layout()[name]
            tensor = torch.empty(shape, dtype=dtype, device=self.device)
        tensor = tensor.clone()
        dist.broadcast(tensor, src=self._holders([name])[name][0])
        return tensor.cpu()

    def _refresh_masters(self) -> None:
        self.engine.optimizer.refresh_fp32_params()

    def close(self) -> None:
        self.engine.destroy()
        # DeepSpeed keeps the grid in a global: a ZeRO engine made later in this process would shard over it.
        groups.mpu = None


class _Stages(PipelineModule):
    """A PipelineModule that finds shared parameters by identity, where DeepSpeed asks for a TiedLayerSpec."""

    def _index_tied_modules(self) -> dict[str, dict[str, Any]]:
        """Communication of each parameter that lies on several stages. Collective: groups are made in one order."""
        comms: dict[str, dict[str, Any]] = {}
        for number, (parameter, stages) in enumerate(self._shared()):
            for replica in range(self._grid.data_parallel_size):
                ranks = [self._grid.stage_to_global(stage_id=stage, data=replica) for stage in stages]
                group = deepspeed.comm.new_group(ranks=ranks)
                if self.global_rank not in ranks:
                    continue
                holder = nn.Module()
                holder.register_parameter("weight", parameter)
                key = f"shared{number}"
                self.tied_modules[key] = holder
                comms[key] = {"ranks": ranks, "group": group, "weight_attr": ["weight"], "module": holder}
                # The gradient norm counts it once.
                parameter.ds_pipe_replicated = self.global_rank != ranks[0]
        return comms

    def _shared(self) -> Iterator[tuple[Any, list[int]]]:
        stages: dict[int, set[int]] = {}
        parameters: dict[int, nn.Parameter] = {}
        for index, layer in enumerate(self._layer_specs):
            for parameter in layer.parameters():
                if not parameter.requires_grad:  # it has no gradient to sum
                    continue
                stages.setdefault(id(parameter), set()).add(self.stage_owner(index))
                parameters[id(parameter)] = parameter
        return ((parameters[key], sorted(held)) for key, held in stages.items() if len(held) > 1)


def _one_norm(zero: Any) -> None:
    """Let the gradient norm take one sum over the stages, where DeepSpeed takes one for each parameter group.

    A stage whose parameters all decay has one group, its neighbour two: they would wait for each other for ever.
    """

    def scaled_global_norm(norm_type: int = 2) -> Any:
        groups = range(len(zero.bit16_groups))
        gradients = [gradient for i in groups for gradient in zero.averaged_gradients[i]]
        parameters = [parameter for i in groups for parameter in zero.params_in_partition[i]]
        return zero.get_grad_norm_direct(gradients, parameters, norm_type)

    zero.scaled_global_norm = scaled_global_norm


def _layers(model: nn.Module, setup: Setup) -> list[nn.Module]:
    kind = type(model).__name__
    if not callable(getattr(model, "pipeline_layers", None)):
        raise UserError(
            fault(
                "model",
                kind,
                "has no pipeline_layers() method, so a pipeline cannot cut it",
                "return its submodules in order from pipeline_layers(), or take a setup without pipeline",
            )
        )
    layers = list(model.pipeline_layers())  # type: ignore[operator]
    where = f"{setup.origins.get('stages', 'pipeline.stages')}"
    if len(layers) < setup.stages:
        raise UserError(
            fault(where, setup.stages, f"{kind} has {len(layers)} layers, fewer than stages", "use fewer stages")
        )
    kinds = [type(layer).__name__ for layer in layers]
    _, typed, pattern = setup.partition.partition("type:")
    if typed and not any(re.search(pattern, name, re.IGNORECASE) for name in kinds):
        origin = setup.origins.get("partition", "pipeline.partition")
        reason = f"no layer's class matches; {kind} has {', '.join(dict.fromkeys(kinds))}"
        raise UserError(fault(origin, setup.partition, reason, "write one of these, uniform or parameters"))
    reached = {id(tensor) for layer in layers for tensor in (*layer.parameters(), *layer.buffers())}
    left_out = [
        name for name, tensor in (*model.named_parameters(), *saved_buffers(model)) if id(tensor) not in reached
    ]
    if left_out:
        raise UserError(
            fault("model", kind, f"pipeline_layers() leaves out {', '.join(left_out)}", "name every layer once")
        )
    return layers


def _title(layer: nn.Module, parameters: dict[str, nn.Parameter]) -> str:
    """A layer's class, and what the names of its parameters have in common."""
    own = {id(parameter) for parameter in layer.parameters()}
    shared = os.path.commonprefix([name for name, parameter in parameters.items() if id(parameter) in own])
    return f"{type(layer).__name__} {shared.rpartition('.')[0]}".rstrip()


def _stage_optimizer(
    optimizer_fn: OptimizerFn, mine: dict[str, nn.Parameter], module: PipelineModule, setup: Setup, titles: list[str]
) -> torch.optim.Optimizer:
    """An optimizer over this stage's parameters; a stage that trains none is refused on every rank alike."""
    trains = every_rank(sum(p.requires_grad for p in mine.values()))
    idle = [module._grid._topo.get_coord(rank).pipe for rank, count in enumerate(trains) if count == 0]
    if idle:
        first, stop = module.parts[idle[0]], module.parts[idle[0] + 1]
        held = ", ".join(titles[first:stop])
        frozen = f" beside {setup.origins['freeze']} {', '.join(setup.freeze)}" if setup.freeze else ""
        raise UserError(
            fault(
                setup.origins.get("partition", "pipeline.partition"),
                setup.partition,
                f"stage {idle[0]} (layers {first}-{stop - 1}: {held}) has no parameter to train{frozen}",
                'cut by "parameters", which counts those that train, or use fewer stages',
            )
        )
    return optimizer_fn(parameter_groups(mine.items()))
