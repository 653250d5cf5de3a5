"""LLM and VLM inference that installs with pip and runs."""

from spaninfer_engine import AsyncEngine, Engine, EngineConfig, Placement, SamplingParams

__all__ = ["AsyncEngine", "Engine", "EngineConfig", "Placement", "SamplingParams"]
