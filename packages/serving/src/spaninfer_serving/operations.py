"""Operations on a running server: pause, abort, drain, reset."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any

from spaninfer_serving.service import Service
from spaninfer_serving.wire.admin import (
    AbortRequest,
    AbortResponse,
    LogLevel,
    PauseMode,
    PauseState,
    ServerInfo,
)

LOGGERS = ("spaninfer_serving", "spaninfer_engine")


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a service, for the routes of operators."""

    service: Service

    async def pause(self, mode: PauseMode, *, clear_cache: bool) -> PauseState:
        """Hold new requests back; running ones are aborted, waited for, or frozen.

        Returns when none runs any more, or with `keep`, when no more steps are planned.
        """
        self.service.demand("generate")
        self.service.gate.shut()
        if mode == "keep":
            self.service.engine.freeze()
            self.service.is_frozen = True
        if mode == "abort":
            self.service.in_flight.abort_all()
        if mode != "keep":
            await self.service.in_flight.wait_idle()
        if clear_cache:
            self.service.engine.reset_prefix_cache()
        return self.state

    def resume(self) -> PauseState:
        """Let requests in again, and go on with those that were kept; ends a drain as well."""
        self.service.demand("generate")
        self.service.engine.thaw()
        self.service.is_frozen = False
        self.service.gate.open()
        return self.state

    @property
    def state(self) -> PauseState:
        """Return whether the server is paused."""
        return PauseState(is_paused=self.service.gate.is_shut, is_frozen=self.service.is_frozen)

    def abort(self, body: AbortRequest) -> AbortResponse:
        """End requests; their answers keep what they have, with the finish reason `abort`."""
        in_flight = self.service.in_flight
        if body.abort_all:
            return AbortResponse(aborted=in_flight.abort_all())
        return AbortResponse(aborted=[each for each in body.ids if in_flight.abort(each)])

    async def drain(self) -> None:
        """Refuse new requests and wait until none runs any more; `resume` ends it."""
        self.service.gate.close()
        self.service.engine.thaw()
        self.service.is_frozen = False
        await self.service.in_flight.wait_idle()

    def info(self) -> ServerInfo:
        """Return what the server is and does."""
        stats = self.service.engine.stats()
        return ServerInfo(
            version=version("spaninfer-serving"),
            model=self.service.model,
            decided=_plain(asdict(self.service.engine.resolved)),
            state=stats.state.value,
            in_flight=len(self.service.in_flight),
            running=stats.running,
            waiting=stats.waiting,
            uptime_s=stats.uptime_s,
        )


def set_log_level(level: LogLevel) -> None:
    """Set the log level of our packages."""
    for name in LOGGERS:
        logging.getLogger(name).setLevel(level.upper())


def _plain(decided: dict[str, Any]) -> dict[str, Any]:
    """Return numbers, texts and lists of these as they are, and all else as text."""
    return {
        name: value if isinstance(value, str | int | float | list | None) else str(value)
        for name, value in decided.items()
    }
