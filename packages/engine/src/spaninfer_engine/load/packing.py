"""What is settled about an engine whose weights were packed before: its backend and its codes."""

from __future__ import annotations

from dataclasses import dataclass, replace

from spaninfer_engine.config import EngineConfig, Quantize
from spaninfer_engine.errors import ConfigError

WAY_OUT = "use the checkpoint that was converted"


@dataclass(frozen=True, slots=True)
class Packing:
    """What `convert` made of the weights of products.

    quantize  what they are rounded to, or None: numbers as they are stored
    group     channels of codes that share a scale; None is a whole row
    """

    quantize: Quantize | None
    group: int | None

    def __str__(self) -> str:
        """Return it in words."""
        if self.quantize is None:
            return "numbers as they were stored"
        if self.quantize == "bfloat16":
            return "bfloat16"
        return f"{self.quantize} with a scale per " + (
            "row" if self.group is None else f"{self.group} channels"
        )


def as_packed(asked: EngineConfig, packing: Packing) -> EngineConfig:
    """Return what was asked with what the files settle; ConfigError where the two differ."""
    if asked.backend not in (None, "cpu"):
        raise ConfigError(
            f"{asked.model} holds weights packed for backend cpu, and backend {asked.backend} was "
            f"asked for; {WAY_OUT}"
        )
    if asked.device not in (None, "cpu"):
        raise ConfigError(
            f"{asked.model} holds weights packed for backend cpu, and device {asked.device} was "
            f"asked for; {WAY_OUT}"
        )
    wanted = Packing(asked.quantize, asked.quantize_group)
    if wanted not in (Packing(None, None), packing):
        raise ConfigError(
            f"{asked.model} holds weights packed as {packing}, and other codes were asked for; "
            f"leave quantize and quantize_group out, or {WAY_OUT}"
        )
    return replace(asked, backend="cpu", quantize=packing.quantize, quantize_group=packing.group)
