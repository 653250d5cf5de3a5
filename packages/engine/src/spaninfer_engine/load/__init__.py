"""Bytes to named arrays: every container under Hugging Face names and row order."""

from spaninfer_engine.load.checkpoint import Checkpoint, open_checkpoint
from spaninfer_engine.load.tensors.reader import WeightReader

__all__ = ["Checkpoint", "WeightReader", "open_checkpoint"]
