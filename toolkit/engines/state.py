"""The optimizer's state by parameter name: where each piece of it lies, whatever strategy cut it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from toolkit.errors import Place, UserError, fault
from toolkit.setup import Setup


class Slot(NamedTuple):
    """Elements [start, stop) of a flattened parameter lie at `offset` of a tensor that the torch optimizer steps."""

    name: str
    start: int
    stop: int
    tensor: Tensor  # the parameter itself, or ZeRO's flat fp32 partition: the masters of many parameters
    offset: int
    dtype: torch.dtype  # of the parameter
    owned: bool = True  # this rank writes it; another holds the same where False

    def of(self, tensor: Tensor) -> Tensor:
        """The piece in a tensor of the same layout: [stop - start]."""
        return tensor.reshape(-1)[self.offset : self.offset + self.stop - self.start]


class Stored(Protocol):
    """What is read of a checkpoint."""

    def states(self, name: str) -> list[str]: ...

    def optimizer(self, name: str, state: str, start: int, stop: int) -> Tensor: ...

    def value(self, name: str) -> Tensor: ...

    def updates_of(self, name: str) -> float | None: ...


def zero_slots(optimizer: Any, names: Mapping[int, str], rank: int) -> Iterator[Slot]:
    """Where DeepSpeed's ZeRO (1, 2, 3, a pipeline's) keeps the parameters, `names` by id, on data-parallel `rank`."""
    if hasattr(optimizer, "fp32_partitioned_groups_flat"):  # stage 3: each parameter is cut evenly over the ranks
        for parameter in (p for params in optimizer.fp16_groups for p in params):
            flat, offset, size = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start, stop = rank * size, min((rank + 1) * size, parameter.ds_numel)
            if start < stop:
                tensor = optimizer.fp32_partitioned_groups_flat[flat]
                yield Slot(names[id(parameter)], start, stop, tensor, offset, parameter.dtype)
        return
    # DeepSpeed's own mapping (`_hp_mapping`) takes the order before round_robin_gradients has changed it.
    for number, tensor in enumerate(optimizer.single_partition_of_fp32_groups):
        begin, end = rank * tensor.numel(), (rank + 1) * tensor.numel()  # of this rank's partition
        placed = zip(
            optimizer.round_robin_bit16_groups[number], optimizer.round_robin_bit16_offsets[number], strict=True
        )
        for parameter, at in placed:
            first, stop = max(at, begin), min(at + parameter.numel(), end)
            if first < stop:  # some of it falls into the partition
                # A parameter that two stages of a pipeline share is written by the first.
                owned = not getattr(parameter, "ds_pipe_replicated", False)
                place = (first - at, stop - at, tensor, first - begin)
                yield Slot(names[id(parameter)], *place, parameter.dtype, owned)


def zero_scaler(optimizer: Any) -> Any:
    """The loss scaler of DeepSpeed's ZeRO. It raises at its smallest scale in some stages and goes on for ever in
    others: here an engine counts, in all alike."""
    optimizer.loss_scaler.raise_error_at_min_scale = False
    return optimizer.loss_scaler


def pieces(optimizer: torch.optim.Optimizer, slots: Iterable[Slot]) -> Iterator[tuple[str, Tensor]]:
    """(key, live view) of the state that this rank writes: `NAME/STATE/START` [n], and `NAME/step` [] once."""
    for slot in slots:
        if not slot.owned:
            continue
        if slot.dtype != torch.float32 and slot.tensor.dtype == torch.float32:
            yield f"{slot.name}/master/{slot.start}", slot.of(slot.tensor)
        for state, value in optimizer.state.get(slot.tensor, {}).items():
            if state == "step":
                if slot.start == 0:
                    yield f"{slot.name}/step", torch.as_tensor(value, dtype=torch.float32)
            elif isinstance(value, Tensor):
                yield f"{slot.name}/{state}/{slot.start}", slot.of(value)


def check_elementwise(optimizer_fn: Callable[..., torch.optim.Optimizer], sharded: bool, device: torch.device) -> None:
    """Raise UserError if the optimizer looks at more than one number of a parameter at a time.

    ZeRO (`sharded`) cuts parameters into flat partitions: there it would be another algorithm, and a different one for
    each number of ranks. State that is not one number for each of a parameter has no place in a checkpoint that every
    setup reads. Found by two steps on six numbers, as a matrix and cut into vectors.
    """
    whole, optimizer = _stepped(optimizer_fn, [(2, 3)], device)
    kind, remedy = type(optimizer).__name__, "use one that works element by element: SGD, Adam, AdamW, Lion"
    for parameter, states in optimizer.state.items():
        for state, value in states.items():
            if state != "step" and isinstance(value, Tensor) and value.shape != parameter.shape:
                reason = (
                    f"keeps {state} of shape {tuple(value.shape)} for a parameter of shape {tuple(parameter.shape)}"
                )
                raise UserError(fault("optimizer", kind, reason, remedy))
    if sharded:
        try:
            same = torch.allclose(_stepped(optimizer_fn, [(2,), (4,)], device)[0], whole, rtol=1e-5)
        except (ValueError, RuntimeError):  # it takes no vectors
            same = False
        if not same:
            remedy += ", or a setup that keeps layers whole: single, ddp"
            raise UserError(fault("optimizer", kind, "is another algorithm on ZeRO's flat partitions", remedy))


def _stepped(
    optimizer_fn: Callable[..., torch.optim.Optimizer], shapes: list[tuple[int, ...]], device: torch.device
) -> tuple[Tensor, torch.optim.Optimizer]:
    """Six numbers in parameters of these shapes, after two steps, [6]; and the optimizer."""
    sizes = [math.prod(shape) for shape in shapes]
    cut = zip(torch.linspace(0.1, 1, 6).split(sizes), shapes, strict=True)
    parameters = [nn.Parameter(values.reshape(shape).to(device)) for values, shape in cut]
    optimizer = optimizer_fn([{"params": parameters}])
    for step in range(2):
        # Each number's gradient changes: to a constant factor on all steps of a parameter Adam is blind.
        gradients = torch.linspace(-1, 2, 6).roll(step).split(sizes)
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient.reshape(parameter.shape).to(device)
        optimizer.step()
    return torch.cat([parameter.detach().reshape(-1) for parameter in parameters]), optimizer


@torch.no_grad()
def restore(optimizer: torch.optim.Optimizer, slots: Iterable[Slot], stored: Stored) -> None:
    """Give the optimizer the stored state without a step of its own, which would decay weights and count.

    Raises:
        UserError: parameters that ZeRO steps together were stepped unequally often.
    """
    of_tensor: dict[int, list[Slot]] = {}
    for slot in slots:
        of_tensor.setdefault(id(slot.tensor), []).append(slot)
    for together in of_tensor.values():
        tensor = together[0].tensor
        counts: dict[float | None, str] = {}
        state: dict[str, Any] = {}
        for slot in together:
            counts[stored.updates_of(slot.name)] = slot.name
            if slot.dtype != tensor.dtype:  # a master of 16-bit weights, which the loaded ones have only rounded
                slot.of(tensor).copy_(stored.value(slot.name).reshape(-1)[slot.start : slot.stop])
            for name in stored.states(slot.name):
                whole = state.setdefault(name, _zeros(tensor))
                slot.of(whole).copy_(stored.optimizer(slot.name, name, slot.start, slot.stop))
        if len(counts) > 1:
            told = ", ".join(f"{name} {'never' if n is None else f'{n:g} times'}" for n, name in counts.items())
            reason = "were stepped unequally often, and this setup steps them as one"
            raise UserError(fault("checkpoint", told, reason, "resume in ddp or one process"))
        (count,) = counts
        if count is not None:
            state["step"] = _step_of(optimizer, count, tensor)
        if state:
            optimizer.state[tensor] = state


def _step_of(optimizer: torch.optim.Optimizer, count: float, tensor: Tensor) -> Any:
    """The number of steps in the form that this optimizer counts in."""
    if hasattr(optimizer, "ds_opt_adam"):
        return int(count)
    fused = optimizer.defaults.get("fused") or optimizer.defaults.get("capturable")
    # As torch's own load_state_dict has it: beside the parameter for fused kernels, on the CPU else.
    return torch.tensor(count, dtype=torch.float32, device=tensor.device if fused else "cpu")


def optimizer_kind(optimizer: torch.optim.Optimizer) -> str:
    """Its class's name, DeepSpeed's own Adam under the name of the algorithm."""
    if hasattr(optimizer, "ds_opt_adam"):
        return "AdamW" if getattr(optimizer, "adam_w_mode", True) else "Adam"
    return type(optimizer).__name__


def check_own_optimizer(optimizer: torch.optim.Optimizer, setup: Setup) -> None:
    """An optimizer that the script built itself must be the one that a file names: one of the two would be ignored.

    Raises:
        UserError: one line for each difference.
    """
    kind = optimizer_kind(optimizer)
    here: dict[str, Any] = {"optimizer": kind.lower()}
    built = {name: list(each) if isinstance(each, tuple) else each for name, each in optimizer.defaults.items()}
    for param, name in (("lr", "learning_rate"), ("weight_decay", "weight_decay"), ("momentum", "momentum")):
        here[name] = built.get(param, getattr(setup, name))
    here["optimizer_options"] = {name: built.get(name) for name in setup.optimizer_options}
    faults = []
    for name, value in here.items():
        where, asked = setup.origins.get(name), getattr(setup, name)
        # A schedule's rate replaces the optimizer's in each step.
        if isinstance(where, Place) and where.key.startswith("optimizer.") and value != asked:
            remedy = "make them equal, or build it with toolkit.optimizer_from(setup)"
            faults.append(fault(where, asked, f"the script's own optimizer, {kind}, has {value}", remedy))
            if name == "optimizer":
                break
    if faults:
        raise UserError(*faults)


@torch.no_grad()
def set_masters(slots: Iterable[Slot], weights: Mapping[str, Tensor]) -> None:
    """Copy whole fp32 weights into the masters of 16-bit ones.

    DeepSpeed clones them from the rounded weights. There a small step changes nothing: weights that stand in the
    middle of a rounding interval have to leave it first. A small BERT's loss was off by 5e-2 so, at a learning rate of
    3e-5, and is by 4e-3 now.
    """
    for slot in slots:
        slot.of(slot.tensor).copy_(weights[slot.name].reshape(-1)[slot.start : slot.stop])


def share_out(sizes: Mapping[str, int], holders: Mapping[str, list[int]]) -> dict[str, int]:
    """{name: rank that writes it}: of the ranks that hold it, the one with the least to write so far; what one rank
    alone holds first, then the largest."""
    load: dict[int, int] = {}
    writers = {}
    for name in sorted(sizes, key=lambda each: (len(holders[each]) > 1, -sizes[each], each)):
        writer = min(holders[name], key=lambda rank: (load.get(rank, 0), rank))
        load[writer] = load.get(writer, 0) + sizes[name]
        writers[name] = writer
    return writers


def parameter_groups(named: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Two groups for an optimizer: matrices and kernels decay; biases, norms and scalars do not."""
    trainable = [parameter for _, parameter in named if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.dim() > 1]},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def saved_buffers(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """(name, buffer) of those that a state dict holds."""
    saved = model.state_dict(keep_vars=True)
    return ((name, buffer) for name, buffer in model.named_buffers() if name in saved)


def _zeros(tensor: Tensor) -> Tensor:
    return torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
