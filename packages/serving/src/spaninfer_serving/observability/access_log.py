"""The access log: an id and a line for each request, and a count of statuses.

The line goes to the logger `spaninfer_serving.access_log` at INFO.
Neither prompts nor answers nor keys are ever in it.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from spaninfer_engine import Output, SamplingParams
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spaninfer_serving.error_mapping import STOPPING, problem_of, send_problem
from spaninfer_serving.ids import new_hex
from spaninfer_serving.observability.json_log import REQUEST_ID, JsonFormatter
from spaninfer_serving.settings import Settings

log = logging.getLogger("spaninfer_serving.access_log")  # a name that operators configure
ID_HEADER = b"x-request-id"
ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")  # nothing that could forge a line of a log
ADDRESS = re.compile(r"[\w.:%-]{1,64}", re.ASCII)  # with the zone of IPv6
CLIENT_CLOSED_REQUEST = 499  # nginx's word for a client that went away before the answer began


@dataclass(slots=True)
class Tally:
    """A request by its id, and the tokens of its answers that have ended."""

    request_id: str
    prompt_tokens: int = 0
    output_tokens: int = 0
    asked: SamplingParams | None = None  # of a request that generates
    is_chat: bool = False
    reasons: list[str] = field(default_factory=list)  # why its answers ended
    queued_s: float | None = None  # of its first answer
    first_token_s: float | None = None

    def add(self, output: Output) -> None:
        """Count the last output of a choice; the choices of a prompt share its tokens."""
        assert output.usage is not None
        if output.index == 0:
            self.prompt_tokens += output.usage.prompt_len
        self.output_tokens += output.usage.output_len
        if output.finish_reason is not None:
            self.reasons.append(output.finish_reason.value)
        usage = output.usage
        if self.queued_s is None and usage.scheduled_s is not None:
            self.queued_s = usage.scheduled_s - usage.arrived_s
        if self.first_token_s is None and usage.first_token_s is not None:
            self.first_token_s = usage.first_token_s - usage.arrived_s

    def described(self, lasted_s: float) -> str:
        """Return it in words, with the rate over the whole request; empty if nothing ended."""
        if not self.prompt_tokens:
            return ""
        if self.asked is None:  # vectors, scores and labels
            return (
                f"texts {_tokens(self.prompt_tokens)}, {self.prompt_tokens / lasted_s:.1f} tok/s "
            )
        rate = self.output_tokens / lasted_s
        output = _tokens(self.output_tokens)
        return f"prompt {self.prompt_tokens}, output {output}, {rate:.1f} tok/s "


def _tokens(count: int) -> str:
    return "1 token" if count == 1 else f"{count} tokens"


class AccessLog:
    """ASGI middleware around everything else.

    It gives each answer an id, the client's own where it sent one; and it answers what failed.
    """

    def __init__(self, app: ASGIApp, count: Callable[[int], None]) -> None:
        self._app, self._count = app, count

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and note what became of it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        name = _id_of(scope)
        started = perf_counter()
        status = CLIENT_CLOSED_REQUEST
        tally = scope.setdefault("state", {})["tally"] = Tally(name.decode())
        REQUEST_ID.set(tally.request_id)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (ID_HEADER, name)]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:  # the server stops, and the time to finish is over
            if status == CLIENT_CLOSED_REQUEST:
                await send_problem(STOPPING, noted)
        except Exception as error:
            log.exception("request %s failed", name.decode())
            if (
                status != CLIENT_CLOSED_REQUEST
            ):  # the answer has begun: the connection has to break off
                raise
            await send_problem(problem_of(error, "prompt"), noted)
        finally:
            self._count(status)
            if log.isEnabledFor(logging.INFO):
                _write(scope, status, perf_counter() - started, tally, name)


def set_up(settings: Settings) -> None:
    """Print what the settings want to be logged."""
    if settings.log_requests:
        print_lines(as_json=settings.log_format == "json")
    if settings.log_format == "json":
        print_json()


def print_lines(*, as_json: bool = False) -> None:
    """Print the lines on standard error, with the time in front; or as JSON."""
    handler = logging.StreamHandler()
    lines = JsonFormatter() if as_json else logging.Formatter("%(asctime)s %(message)s")
    handler.setFormatter(lines)
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def print_json() -> None:
    """Print all that our packages log as JSON on standard error; the access log apart."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter())
    for name in ("spaninfer_serving", "spaninfer_engine"):
        logger = logging.getLogger(name)
        logger.addHandler(handler)
        logger.propagate = False


def new_id() -> bytes:
    """Return an id for a request that brought none."""
    return f"req-{new_hex()}".encode()


def _id_of(scope: Scope) -> bytes:
    given: bytes = dict(scope["headers"]).get(ID_HEADER, b"")
    return given if ID.fullmatch(given) else new_id()


def _address_of(scope: Scope) -> str:
    """Return the address of a client; "-" where X-Forwarded-For, which uvicorn believes of this
    machine, holds something else.
    """
    host, _ = scope.get("client") or ("-", 0)
    return host if ADDRESS.fullmatch(host) else "-"


def _write(scope: Scope, status: int, lasted_s: float, tally: Tally, name: bytes) -> None:
    address = _address_of(scope)
    log.info(
        '%s "%s %s" %d %.1f ms %s%s',
        address,
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        status,
        lasted_s * 1e3,
        tally.described(lasted_s),
        name.decode(),
        extra={
            "fields": {
                "request_id": tally.request_id,
                "client": address,
                "method": scope["method"],
                "path": scope["path"],
                "status": status,
                "seconds": round(lasted_s, 6),
                "prompt_tokens": tally.prompt_tokens,
                "output_tokens": tally.output_tokens,
            }
        },
    )
