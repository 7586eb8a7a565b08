"""Setups as launchers, files and arguments make them, without a process."""

from pathlib import Path

import pytest

from toolkit.arguments import parse_arguments
from toolkit.errors import UserError
from toolkit.setup import Setup

ROOT = Path(__file__).parents[2]
# What each launcher puts into the environment of rank 0 of 2, as printed by a probe.
TORCHRUN = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "TORCHELASTIC_RUN_ID": "none"}
DEEPSPEED = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "2", "LOCAL_SIZE": "2", "CROSS_RANK": "0", "CROSS_SIZE": "1"}
SIMPLE = {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_USE_CPU": "False", "ACCELERATE_DYNAMO_BACKEND": "NO"}
MULTI = TORCHRUN | {"ACCELERATE_MIXED_PRECISION": "no", "ACCELERATE_DYNAMO_BACKEND": "NO"}
ZERO = MULTI | {"ACCELERATE_USE_DEEPSPEED": "true"}
INLINE = {
    "ACCELERATE_CONFIG_DS_FIELDS": "zero_stage,gradient_clipping,gradient_accumulation_steps,offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "3",
    "ACCELERATE_GRADIENT_CLIPPING": "0.5",
    "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "4",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
}
INLINE_YAML = """distributed_type: DEEPSPEED
num_processes: 2
deepspeed_config:
  zero_stage: 3
  gradient_clipping: 0.5
  gradient_accumulation_steps: 4
  offload_optimizer_device: none
"""


def of_yaml(path, environ, *flags):
    """(environ, parent's command line) of `accelerate launch --config_file path`."""
    return environ, ["python", "/bin/accelerate", "launch", "--config_file", str(path), *flags, "train.py"]


def setup(environ, *argv, parent=(), defaults=None):
    defaults = {"train_batch_size": 64, "learning_rate": 2e-5, **(defaults or {})}
    arguments = parse_arguments(argv, description="test", defaults=defaults)
    arguments.script = "train.py"
    return Setup.from_run(arguments, {"HF_HOME": "/nonexistent", **environ}, list(parent))


def refused(*args, **kwargs):
    with pytest.raises(UserError) as caught:
        setup(*args, **kwargs)
    return caught.value.lines


def zero(stage, **more):
    return {"zero_optimization": {"stage": stage}, **more}
