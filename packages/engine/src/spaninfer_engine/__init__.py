"""LLM inference engine: models as TOML, span cache, continuous batching."""

from spaninfer_engine.aio import AsyncEngine, OutputStream
from spaninfer_engine.config import Decision, EngineConfig, Resolved
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import (
    CheckpointError,
    ConfigError,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    InvalidPrompt,
    InvalidSampling,
    NoMemory,
    NotBuilt,
    NoToken,
    PromptTooLong,
    QueueFull,
    RequestError,
    SpecError,
    TemplateError,
    UnknownArchitecture,
)
from spaninfer_engine.handle import RequestHandle, ResultQueue
from spaninfer_engine.request import (
    Completion,
    FinishReason,
    Output,
    Placement,
    SamplingParams,
    Status,
    TokenLogprob,
    Usage,
)
from spaninfer_engine.stats import EngineState, EngineStats

__all__ = [
    "AsyncEngine",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Decision",
    "Engine",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineState",
    "EngineStats",
    "EngineUnavailable",
    "FinishReason",
    "InvalidPrompt",
    "InvalidSampling",
    "NoMemory",
    "NoToken",
    "NotBuilt",
    "Output",
    "OutputStream",
    "Placement",
    "PromptTooLong",
    "QueueFull",
    "RequestError",
    "RequestHandle",
    "Resolved",
    "ResultQueue",
    "SamplingParams",
    "SpecError",
    "Status",
    "TemplateError",
    "TokenLogprob",
    "UnknownArchitecture",
    "Usage",
]
