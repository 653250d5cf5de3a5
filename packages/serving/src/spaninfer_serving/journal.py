"""What is said about every request: an id, one line in the log, a count of the statuses.

The line goes to the logger `spaninfer_serving.journal` at INFO, so it is off unless asked for.
Neither prompts nor answers nor keys are ever in it.
"""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import Callable
from time import perf_counter

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from spaninfer_serving.guard import answer
from spaninfer_serving.problems import STOPPING, problem_of

log = logging.getLogger(__name__)
ID_HEADER = b"x-request-id"
ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")  # nothing that could forge a line of a log
CUT = 499  # nginx's word for a client that went away before the answer began


class Journal:
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
        status = CUT

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (ID_HEADER, name)]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except asyncio.CancelledError:  # the server stops, and the time to finish is over
            if status == CUT:
                await answer(STOPPING, noted)
        except Exception as error:
            log.exception("request %s failed", name.decode())
            if status != CUT:  # the answer has begun: the connection has to break off
                raise
            await answer(problem_of(error, "prompt"), noted)
        finally:
            self._count(status)
            if log.isEnabledFor(logging.INFO):
                _write(scope, status, perf_counter() - started, name)


def print_lines() -> None:
    """Print the lines on standard error, with the time in front."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def new_id() -> bytes:
    """Return an id for a request that brought none."""
    return f"req-{uuid.uuid4().hex}".encode()


def _id_of(scope: Scope) -> bytes:
    given: bytes = dict(scope["headers"]).get(ID_HEADER, b"")
    return given if ID.fullmatch(given) else new_id()


def _write(scope: Scope, status: int, lasted_s: float, name: bytes) -> None:
    client = scope.get("client") or ("-", 0)
    log.info(
        '%s "%s %s" %d %.1f ms %s',
        client[0],
        scope["method"],
        scope["raw_path"].decode("latin-1"),
        status,
        lasted_s * 1e3,
        name.decode(),
    )
