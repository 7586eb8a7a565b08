"""Steps that leave no trace: the engine is kept before them, and put back after."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch

from toolkit.checkpoint.resume import load
from toolkit.checkpoint.save import save
from toolkit.engines import Engine
from toolkit.engines.ranks import on_rank_0
from toolkit.errors import UserError, fault


@contextmanager
def put_back(engine: Engine, folder: Path) -> Iterator[None]:
    """Around such steps: weights, buffers, the optimizer's state, updates, the loss scale and the random generators
    are afterwards what they were, kept on the disk meanwhile, as a checkpoint in `folder`. Collective.

    Where an exception ends the steps, nothing is put back; the folder is removed at any rate.

    Raises:
        UserError: the disk has no room for it.
    """
    # A save averages what each rank has for itself, and an optimizer that has not stepped has no state to store.
    buffers = [(buffer, buffer.clone()) for buffer in engine.owned_buffers()]
    stepped = {id(slot.tensor) for slot in engine.slots() if engine.torch_optimizer.state.get(slot.tensor)}
    stuck = engine.stuck
    on_rank_0(lambda: shutil.rmtree(folder, ignore_errors=True))  # of a process that was killed
    try:
        if problem := save(engine, folder):
            reason = f"the weights and the optimizer's state cannot be kept in it meanwhile ({problem})"
            raise UserError(fault("--output_dir", str(folder.parent), reason, "make room for them"))
        _copy(buffers)
        yield
        load(engine, folder)
        _copy(buffers)
        for slot in engine.slots():
            if id(slot.tensor) not in stepped:
                engine.torch_optimizer.state.pop(slot.tensor, None)
        engine.stuck = stuck
        on_rank_0(lambda: None)  # every rank has read its part
    finally:
        if engine.setup.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


@torch.no_grad()
def _copy(buffers: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    for buffer, kept in buffers:
        buffer.copy_(kept)
