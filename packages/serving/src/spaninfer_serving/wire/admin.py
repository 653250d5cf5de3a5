"""Bodies of the routes of operators."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, model_validator

from spaninfer_serving.wire.fields import RequestFields, Strings

PauseMode = Literal["abort", "wait", "keep"]
SleepMode = Literal["refuse", "wait", "abort"]
LogLevel = Literal["debug", "info", "warning", "error"]


class AbortRequest(RequestFields):
    """The body of POST /abort_requests: ids of requests, as in `x-request-id`; or all."""

    request_ids: Annotated[Strings, Field(max_length=10_000)] = Field(default_factory=list)
    rid: str | None = None  # one id, by SGLang's name
    abort_all: bool = False

    @model_validator(mode="after")
    def _check_some(self) -> AbortRequest:
        if not (self.ids or self.abort_all):
            raise ValueError("needs request_ids, or abort_all as true")
        return self

    @property
    def ids(self) -> list[str]:
        """Return the ids, however they were given."""
        return [*self.request_ids, *([] if self.rid is None else [self.rid])]


class AbortResponse(BaseModel):
    """The requests that were ended; the others had ended, or never were."""

    aborted: list[str]


class PauseState(BaseModel):
    """The state of a pause: requests held back, and steps frozen."""

    is_paused: bool
    is_frozen: bool


class Done(BaseModel):
    """It is done."""

    status: Literal["ok"] = "ok"


class ProfileWritten(BaseModel):
    """The name of a profile's file, in the folder of --profile-dir."""

    file: str


class LogLevelRequest(RequestFields):
    """The body of POST /log_level."""

    level: LogLevel


class Version(BaseModel):
    """The version of the server."""

    version: str


class WorldSize(BaseModel):
    """The number of processes that compute the model."""

    world_size: Literal[1] = 1


class Sleeping(BaseModel):
    """The sleep state of the engine, and where its weights are: at every level of sleep on disk."""

    is_sleeping: bool
    weights: Literal["in memory", "on disk"]

    @classmethod
    def of(cls, *, is_sleeping: bool) -> Sleeping:
        """Return the state of an engine."""
        return cls(is_sleeping=is_sleeping, weights="on disk" if is_sleeping else "in memory")


class MemoryTags(RequestFields):
    """The body of POST /release_memory_occupation and /resume_memory_occupation: whatever the tags
    are, everything goes and comes.
    """

    tags: Annotated[list[Literal["weights", "kv_cache", "cuda_graph"]], Field(max_length=3)] = (
        Field(default_factory=list)
    )


class UpdateWeightsRequest(RequestFields):
    """The body of POST /update_weights_from_disk."""

    not_supported: ClassVar = {
        "flush_cache": (None, True),  # always: what is cached is of other weights
        "is_async": (None, False),
        "keep_pause": (None, False),
        "load_format": (None, "auto", "safetensors"),
        "recapture_cuda_graph": (None, True, False),  # they always are
        "token_step": (None, 0),
        "torch_empty_cache": (None, True, False),
    }

    model_path: Annotated[str, Field(min_length=1, max_length=4096)]
    abort_all_requests: bool = False
    weight_version: Annotated[str, Field(max_length=256)] | None = None


class WeightsUpdated(BaseModel):
    """The weights have been exchanged; that many requests ran, and were waited for or ended."""

    success: Literal[True] = True
    message: str
    num_paused_requests: int
    weight_version: str


class WeightVersion(BaseModel):
    """The version of the weights: of the last update that gave one; `default` before."""

    weight_version: str


class ServerInfo(BaseModel):
    """The configuration and state of the engine; never a key."""

    version: str
    model: str
    weight_version: str
    decided: dict[str, Any]
    state: str
    in_flight: int
    running: int
    waiting: int
    uptime_s: float
