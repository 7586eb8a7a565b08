"""Checkpoints: folders of safetensors and JSON by parameter name, which any setup writes and any other resumes."""

from toolkit.checkpoint.reader import Checkpoint, find, newest_whole

__all__ = ["Checkpoint", "find", "newest_whole"]
