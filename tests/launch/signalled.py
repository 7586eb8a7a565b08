"""A run that a signal ends: 20,000 steps of some 40 ms. Each rank leaves rank-N.json in the folder ONELOOP_LEFT names:
its process and its parent's at first, and the exit code and the units of work at the end.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import toolkit
from toolkit import stop

LEFT = Path(os.environ["ONELOOP_LEFT"], f"rank-{os.environ.get('RANK', '0')}.json")


class Rows:
    """64 rows that take 10 ms each."""

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        import torch

        time.sleep(0.01)
        return torch.full((4,), index / 64), index % 2


def main() -> None:
    arguments = toolkit.parse_arguments(description=__doc__, defaults={"train_batch_size": 8, "max_train_steps": 20000})
    setup = toolkit.Setup.from_run(arguments)
    from torch import nn

    class Chain(nn.Sequential):
        def pipeline_layers(self) -> list[nn.Module]:
            return list(self)

    def model_fn() -> Chain:
        return Chain(nn.Linear(4, 4), nn.Linear(4, 2))

    leave(process=os.getpid(), parent=os.getppid())
    engine = toolkit.prepare(model_fn, toolkit.cross_entropy, toolkit.optimizer_from(setup), setup)
    toolkit.fit(engine, toolkit.Data(Rows()), arguments)


def leave(**numbers: int) -> None:
    temporary = LEFT.with_suffix(".tmp")
    temporary.write_text(json.dumps(numbers))
    temporary.replace(LEFT)


if __name__ == "__main__":
    try:
        toolkit.run(main)
    except SystemExit as end:
        leave(code=int(end.code or 0), units=stop.gate.started)
        sys.exit(end.code)
