"""What the ranks tell each other besides gradients. Each function is collective but `communication`; alone, without a
group, it is free."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from toolkit.errors import UserError


def on_rank_0(work: Callable[[], Any]) -> Any:
    """What `work` returns on rank 0, on every rank; its UserError is raised on all."""
    box: list[Any] = [None]
    if not dist.is_initialized() or dist.get_rank() == 0:
        try:
            box[0] = work()
        except UserError as error:
            box[0] = error
    if dist.is_initialized():
        dist.broadcast_object_list(box, src=0)
    if isinstance(box[0], UserError):
        raise box[0]
    return box[0]


def every_rank(value: Any) -> list[Any]:
    """The value of each rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def gather_rows(rows: Tensor) -> Tensor:
    """The rows [n, columns] of all ranks, one after another, where n may differ."""
    if not dist.is_initialized():
        return rows
    counts = [torch.zeros(1, dtype=torch.int64, device=rows.device) for _ in range(dist.get_world_size())]
    dist.all_gather(counts, torch.tensor([len(rows)], device=rows.device))
    most = int(max(counts))
    padded = torch.cat([rows, rows.new_zeros(most - len(rows), rows.shape[1])])
    parts = [torch.empty_like(padded) for _ in counts]
    dist.all_gather(parts, padded)
    return torch.cat([part[: int(count)] for part, count in zip(parts, counts, strict=True)])


def communication() -> dict[str, dict[str, int]] | None:
    """{operation: {"calls", "bytes"}} on this rank, of a run whose JSON has `comms_logger` enabled; else None."""
    comm = sys.modules.get("deepspeed.comm.comm")  # of an engine that has it
    if comm is None or not comm.comms_logger.enabled:
        return None
    return {
        name: {"calls": sum(row[0] for row in sizes.values()), "bytes": sum(n * row[0] for n, row in sizes.items())}
        for name, sizes in comm.comms_logger.comms_dict.items()
    }
