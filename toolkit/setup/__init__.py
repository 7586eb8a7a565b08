"""Launcher, Accelerate YAML, DeepSpeed JSON and arguments become one frozen `Setup`, each value with its origin.

Nothing here imports torch, accelerate, deepspeed or transformers: a refusal comes before anything heavy is loaded.
"""

from toolkit.setup.batch import BatchSizes, Given, settle_batch
from toolkit.setup.device import choose_device
from toolkit.setup.settled import STRATEGIES, Setup

__all__ = ["STRATEGIES", "BatchSizes", "Given", "Setup", "choose_device", "settle_batch"]
