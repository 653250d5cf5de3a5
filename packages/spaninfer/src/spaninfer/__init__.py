"""LLM and VLM inference that installs with pip and runs."""

TYPE_CHECKING = False  # typing's, without its import: a program imports this before all else
if TYPE_CHECKING:
    from spaninfer_engine import (
        AsyncEngine,
        CacheMap,
        CheckpointError,
        Completion,
        ConfigError,
        Decision,
        Engine,
        EngineAsleep,
        EngineClosed,
        EngineConfig,
        EngineError,
        EngineState,
        EngineStats,
        EngineUnavailable,
        FinishReason,
        GroupMap,
        InvalidGrammar,
        InvalidMask,
        InvalidMedia,
        InvalidPrompt,
        InvalidSampling,
        NoMemory,
        NotBuilt,
        NoToken,
        OffloadStats,
        Output,
        OutputStream,
        Placement,
        PromptTooLong,
        QueueFull,
        RequestError,
        RequestHandle,
        Resolved,
        ResultQueue,
        RunningSequence,
        SamplingParams,
        SpanState,
        SpecError,
        Status,
        StepTimeout,
        StructuredOutput,
        TemplateError,
        TextTooLong,
        TokenLogprob,
        UnknownArchitecture,
        Unread,
        UnsupportedTask,
        Usage,
        WeightsTimeout,
        WrongThread,
    )
    from spaninfer_engine.tools import convert

    __version__: str

__all__ = [
    "AsyncEngine",
    "CacheMap",
    "CheckpointError",
    "Completion",
    "ConfigError",
    "Decision",
    "Engine",
    "EngineAsleep",
    "EngineClosed",
    "EngineConfig",
    "EngineError",
    "EngineState",
    "EngineStats",
    "EngineUnavailable",
    "FinishReason",
    "GroupMap",
    "InvalidGrammar",
    "InvalidMask",
    "InvalidMedia",
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
    "StepTimeout",
    "StructuredOutput",
    "TemplateError",
    "TextTooLong",
    "TokenLogprob",
    "UnknownArchitecture",
    "Unread",
    "UnsupportedTask",
    "Usage",
    "WeightsTimeout",
    "WrongThread",
    "__version__",
    "convert",
]


def __getattr__(name: str) -> object:
    """Import the engine when something of it is used: the command line says when it does."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name == "__version__":
        from importlib.metadata import version  # takes as long as Python itself does to start

        return version("spaninfer")
    from importlib import import_module

    home = "spaninfer_engine.tools" if name == "convert" else "spaninfer_engine"
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    """Return what is offered, before it is imported."""
    return sorted({*globals(), *__all__})
