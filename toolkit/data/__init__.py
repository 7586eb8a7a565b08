"""Data sets, the sampler that composes global batches, and the loaders that shard them."""

from toolkit.data.batch import Batch
from toolkit.data.sources import Data

__all__ = ["Batch", "Data"]
