"""A run to be killed at any moment: dropout, an evaluation each epoch of 5 steps, weights of 16 KB times --width.

Each rank tells the one that kills: the file rank-R of the folder ONELOOP_RANKS holds its process id and the group's
port.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import toolkit

FEATURES, BLOCKS, ROWS, BATCH = 512, 4, 40, 8


def tell(folder: Path) -> None:
    """Written under another name first: whoever sees the file reads the whole of it."""
    temporary = folder / f".rank-{os.environ['RANK']}"
    temporary.write_text(f"{os.getpid()} {os.environ['MASTER_PORT']}")
    temporary.rename(folder / temporary.name[1:])


def main() -> None:
    arguments = toolkit.parse_arguments(
        description=__doc__,
        defaults={"train_batch_size": BATCH, "learning_rate": 1e-4, "weight_decay": 0.01, "dropout": 0.1},
        extra=lambda group: group.add_argument("--width", type=int, default=12800),
    )
    setup = toolkit.Setup.from_run(arguments)
    import torch
    from torch import nn

    class Chain(nn.Sequential):
        def pipeline_layers(self) -> list[nn.Module]:
            return list(self)

    def block() -> nn.Module:
        wide = nn.Linear(FEATURES, arguments.width)
        return nn.Sequential(wide, nn.GELU(), nn.Dropout(arguments.dropout), nn.Linear(arguments.width, FEATURES))

    def model() -> nn.Module:
        return Chain(*(block() for _ in range(BLOCKS)), nn.Linear(FEATURES, 2))

    inputs = torch.randn(ROWS + BATCH, FEATURES, generator=torch.Generator().manual_seed(0))
    rows: list[Any] = [(row, int(row[:8].sum() > 0)) for row in inputs]
    engine = toolkit.prepare(model, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)
    tell(Path(os.environ["ONELOOP_RANKS"]))
    toolkit.fit(engine, toolkit.Data(rows[:ROWS], rows[ROWS:]), arguments)


if __name__ == "__main__":
    toolkit.run(main)
