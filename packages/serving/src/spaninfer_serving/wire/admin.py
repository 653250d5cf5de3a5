"""Bodies of the routes of operators."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, model_validator

from spaninfer_serving.wire.fields import RequestFields, Strings

PauseMode = Literal["abort", "wait", "keep"]
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
    """The sleep state of the weights: always awake."""

    is_sleeping: Literal[False] = False


class ServerInfo(BaseModel):
    """The configuration and state of the engine; never a key."""

    version: str
    model: str
    decided: dict[str, Any]
    state: str
    in_flight: int
    running: int
    waiting: int
    uptime_s: float
