"""LLM inference engine: models as TOML, span cache, continuous batching."""

from spaninfer_engine.aio import AsyncEngine, OutputStream
from spaninfer_engine.cache.pool import SpanState
from spaninfer_engine.cache_map import CacheMap, GroupMap, RunningSequence
from spaninfer_engine.config import Decision, EngineConfig, Resolved
from spaninfer_engine.engine import Engine
from spaninfer_engine.errors import (
    CheckpointError,
    ConfigError,
    EngineClosed,
    EngineError,
    EngineUnavailable,
    InvalidGrammar,
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
    TextTooLong,
    UnknownArchitecture,
    UnsupportedTask,
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
from spaninfer_engine.stats import EngineState, EngineStats, OffloadStats
from spaninfer_engine.structured import StructuredOutput

__all__ = [
    "AsyncEngine",
    "CacheMap",
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
    "GroupMap",
    "InvalidGrammar",
    "InvalidPrompt",
    "InvalidSampling",
    "NoMemory",
    "NoToken",
    "NotBuilt",
    "OffloadStats",
    "Output",
    "OutputStream",
    "Placement",
    "PromptTooLong",
    "QueueFull",
    "RequestError",
    "RequestHandle",
    "Resolved",
    "ResultQueue",
    "RunningSequence",
    "SamplingParams",
    "SpanState",
    "SpecError",
    "Status",
    "StructuredOutput",
    "TemplateError",
    "TextTooLong",
    "TokenLogprob",
    "UnknownArchitecture",
    "UnsupportedTask",
    "Usage",
]
