"""LLM and VLM inference that installs with pip and runs."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from spaninfer_engine import AsyncEngine, Engine, EngineConfig, Placement, SamplingParams

__all__ = ["AsyncEngine", "Engine", "EngineConfig", "Placement", "SamplingParams"]


def __getattr__(name: str) -> object:
    """Import the engine when something of it is asked for: the command line says when it does."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import spaninfer_engine

    return getattr(spaninfer_engine, name)
