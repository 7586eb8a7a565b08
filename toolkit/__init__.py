"""oneloop: one training loop for single, DDP, ZeRO and pipeline, chosen by an Accelerate YAML or a DeepSpeed JSON.

    arguments = toolkit.parse_arguments(...)
    setup = toolkit.Setup.from_run(arguments)
    engine = toolkit.prepare(model_fn, loss_fn, toolkit.optimizer_from(setup), setup)
    toolkit.fit(engine, data, arguments, metrics)

Names are imported when used: a refused run should not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from toolkit.errors import UserError
from toolkit.version import __version__

if TYPE_CHECKING:
    from toolkit.arguments import parse_arguments
    from toolkit.checkpoint.resume import load
    from toolkit.checkpoint.save import save
    from toolkit.data import Data
    from toolkit.engines import Engine, prepare
    from toolkit.launch import run, say
    from toolkit.loop import fit
    from toolkit.models import cross_entropy
    from toolkit.optim import lr_at, optimizer_from
    from toolkit.range_test import find_learning_rate
    from toolkit.setup import Setup

_HOMES = {
    "Data": "toolkit.data",
    "Engine": "toolkit.engines",
    "Setup": "toolkit.setup",
    "cross_entropy": "toolkit.models",
    "find_learning_rate": "toolkit.range_test",
    "fit": "toolkit.loop",
    "load": "toolkit.checkpoint.resume",
    "lr_at": "toolkit.optim",
    "optimizer_from": "toolkit.optim",
    "parse_arguments": "toolkit.arguments",
    "prepare": "toolkit.engines",
    "run": "toolkit.launch",
    "save": "toolkit.checkpoint.save",
    "say": "toolkit.launch",
}

__all__ = [
    "Data",
    "Engine",
    "Setup",
    "UserError",
    "__version__",
    "cross_entropy",
    "find_learning_rate",
    "fit",
    "load",
    "lr_at",
    "optimizer_from",
    "parse_arguments",
    "prepare",
    "run",
    "save",
    "say",
]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'toolkit' has no attribute {name!r}")
