"""A run that ends badly on purpose. ONELOOP_FAIL is "HOW RANK FILE": in step 3 that rank raises, is killed or stopped,
once, and FILE then holds the time; "layers" gives a model that is too short for a pipeline, "scalar" a wrong loss.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import toolkit

HOW, RANK, FILE = os.environ["ONELOOP_FAIL"].split()
SHARE = 4  # rows of a step on one of 2 ranks


class Rows:
    """64 rows; the chosen rank fails on the first row of its third step."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        import torch

        self.read += 1
        if self.read == 2 * SHARE + 1 and os.environ["RANK"] == RANK and not Path(FILE).exists():
            Path(FILE).write_text(repr(time.time()))
            if HOW == "raise":
                raise ValueError("bad sample 17")
            if HOW in ("kill", "stop"):
                os.kill(os.getpid(), signal.SIGKILL if HOW == "kill" else signal.SIGSTOP)
        return torch.ones(4), index % 2


def main() -> None:
    arguments = toolkit.parse_arguments(description=__doc__, defaults={"train_batch_size": 8, "max_train_steps": 6})
    setup = toolkit.Setup.from_run(arguments)
    from torch import nn

    class Chain(nn.Sequential):
        def pipeline_layers(self) -> list[nn.Module]:
            return list(self)

    layers = [nn.Linear(4, 2)] if HOW == "layers" else [nn.Linear(4, 4), nn.Linear(4, 2)]
    loss_fn = (lambda outputs, targets: outputs.mean()) if HOW == "scalar" else toolkit.cross_entropy
    engine = toolkit.prepare(lambda: Chain(*layers), loss_fn, toolkit.optimizer_from(setup), setup)
    toolkit.fit(engine, toolkit.Data(Rows()), arguments)


if __name__ == "__main__":
    toolkit.run(main)
