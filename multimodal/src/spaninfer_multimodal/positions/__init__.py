"""Positions of tokens and patches: M-RoPE, the tower's own axes, and its windows."""

from spaninfer_multimodal.positions.mrope import (
    MediaRun,
    Positions,
    TextRun,
    mrope_positions,
    patch_positions,
)
from spaninfer_multimodal.positions.windows import Windows, attention_windows

__all__ = [
    "MediaRun",
    "Positions",
    "TextRun",
    "Windows",
    "attention_windows",
    "mrope_positions",
    "patch_positions",
]
