"""DeepSpeed's own checkpoints: ZeRO's partitions, and universal ones."""

from __future__ import annotations

import math
import re
from itertools import accumulate
from pathlib import Path
from typing import Any

from torch import Tensor

from toolkit.foreign.files import COPY, Found, Shape, class_of, load, refuse
from toolkit.foreign.whole import unsharded

STATES = "*_states.pt"  # every file's name ends so
UNNAMED = re.compile(r"layer_|expp_|.*mp_rank_(?!00_)")


def deepspeed(folder: Path) -> Found:
    if odd := sorted(path.name for path in folder.glob(STATES) if UNNAMED.match(path.name)):
        reason = f"{odd[0]} is of a pipeline, of experts or of tensor parallelism, which do not keep the model's names"
        refuse(folder, reason, "save from a run without them")
    third = any(folder.glob("zero_pp_rank_*_model_states.pt"))
    name = "zero_pp_rank_{}_mp_rank_00_model_states.pt" if third else "mp_rank_00_model_states.pt"
    head = load(folder / name.format(0))
    found = Found("DeepSpeed without ZeRO", head["global_steps"], head["global_steps"] - head["skipped_steps"])
    module, size = head["module"], head["dp_world_size"]
    if head["param_shapes"] is None:
        return unsharded(found, module, head["optimizer"] or {}, set(head["buffer_names"]), in_order=True)
    groups = [{name: tuple(shape) for name, shape in group.items()} for group in head["param_shapes"]]
    sharded = {name for group in groups for name in group} | set(head["shared_params"])
    for each, tensor in module.items():
        if tensor.numel() and each not in sharded:  # frozen, or a buffer; stage 3 leaves a size of zero of frozen ones
            found.weights[each] = (tensor.shape, [tensor.reshape(-1)])
    frozen = (head["frozen_param_shapes"] or {}).items()
    cut = {each: tuple(shape) for each, shape in frozen if each not in found.weights and math.prod(shape)}
    parts = [load(folder / name.format(rank))["frozen_param_fragments"] for rank in range(size if cut else 0)]
    for each, shape in cut.items():
        held = _held(0, math.prod(shape), [0] * size, third=True)
        found.weights[each] = (shape, [part[each][piece] for part, piece in zip(parts, held, strict=True)])
    if (folder / "zero").is_dir():
        _universal(found, folder / "zero", groups, head["ds_config"])
    else:
        _zero(found, folder, groups, size)
    found.alone = "" if found.states else "as it has no optimizer state"
    return found


def _zero(found: Found, folder: Path, groups: list[dict[str, Shape]], size: int) -> None:
    """Of each group of parameters every rank has one flat partition, of the masters and of each state."""
    prefix = "bf16_" if any(folder.glob("bf16_*")) else ""
    paths = [folder / f"{prefix}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(size)]
    shards = [load(path)["optimizer_state_dict"] for path in paths]
    third = "fp32_flat_groups" in shards[0]
    masters = [shard["fp32_flat_groups" if third else "single_partition_of_fp32_groups"] for shard in shards]
    bases = [shard["optimizer_state_dict" if third else "base_optimizer_state"] for shard in shards]
    found.kind = f"DeepSpeed ZeRO-{'3' if third else '1 or 2'}, ranks: {size}"
    found.optimizer = class_of(bases[0])
    # `elastic_checkpoint` leaves a list of states, one a group.
    states = [dict(enumerate(base)) if isinstance(base, list) else base["state"] for base in bases]
    for number, group in enumerate(groups):
        lengths = [len(flat[number]) for flat in masters]
        paddings = shards[0].get("param_alignment_paddings", [[]] * len(groups))[number] or [0] * len(group)
        offset = 0
        for (name, shape), padding in zip(group.items(), paddings, strict=True):
            held = _held(offset, math.prod(shape), lengths, third)
            offset += -(-math.prod(shape) // size) if third else math.prod(shape) + padding
            found.weights[name] = (shape, [flat[number][piece] for flat, piece in zip(masters, held, strict=True)])
            for state, value in states[0].get(number, {}).items():
                values = [each[number][state] for each in states]
                if state == "step" and len(set(map(float, values))) > 1:
                    refuse(folder, "its shards are of different steps", COPY)
                if isinstance(value, Tensor) and value.dim():
                    values = [flat[piece] for flat, piece in zip(values, held, strict=True)]
                found.add(name, state, values)


def _held(offset: int, numel: int, lengths: list[int], third: bool) -> list[slice]:
    """What of a parameter each rank's partition, `lengths` long, holds."""
    if third:  # each parameter is cut evenly, its last part padded; `offset` counts within every partition
        share = -(-numel // len(lengths))
        return [slice(offset, offset + max(0, min(share, numel - rank * share))) for rank in range(len(lengths))]
    # The group is cut evenly, wherever in a parameter that falls; `offset` counts through all partitions.
    bounds = zip(accumulate(lengths, initial=0), lengths, strict=False)
    return [slice(*(min(max(at - start, 0), length) for at in (offset, offset + numel))) for start, length in bounds]


def _universal(found: Found, folder: Path, groups: list[dict[str, Shape]], config: dict[str, Any]) -> None:
    """What ds_to_universal makes: a folder a parameter, a file for its master and for each state."""
    if config["zero_optimization"].get("round_robin_gradients"):
        reason = "comes from round_robin_gradients, with which DeepSpeed mixes parameters up as it converts"
        refuse(folder, reason, "import the checkpoint that it was made from")
    found.kind = "DeepSpeed universal"
    common = load(folder / "optimizer_state.pt")
    found.optimizer = class_of(common)
    files = {path.name for group in groups for name in group for path in (folder / name).glob("*.pt")} | {"fp32.pt"}
    for number, group in enumerate(groups):
        for name, shape in group.items():
            values = {file.removesuffix(".pt"): load(folder / name / file) for file in sorted(files)}
            if "optimizer_state_dict" in common:  # of stage 3, for which it writes no step.pt
                values["step"] = common["optimizer_state_dict"]["state"][number]["step"]
            for state, value in values.items():
                value = value["param"] if isinstance(value, dict) else value
                if state == "fp32":
                    found.weights[name] = (shape, [value.reshape(-1)])
                else:
                    found.add(name, state, [value.reshape(-1) if isinstance(value, Tensor) else value])
