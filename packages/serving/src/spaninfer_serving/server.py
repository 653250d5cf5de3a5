"""A server of one event loop: takes connections, answers them by the app, drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import math
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Thread
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn
from fastapi import FastAPI
from spaninfer_engine import RequestError
from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from spaninfer_serving.app import create_app
from spaninfer_serving.engine.client import EngineClient
from spaninfer_serving.http import connection_slots
from spaninfer_serving.http.acceptor import Acceptor, Entrance
from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.http.protocol import BoundedProtocol
from spaninfer_serving.jobs.service import Service
from spaninfer_serving.observability.figures import Figures
from spaninfer_serving.settings import Settings
from spaninfer_serving.tls import tls_context

if TYPE_CHECKING:
    from spaninfer_engine import Engine

log = logging.getLogger(__name__)

# Clients keep a connection for their next request, load balancers for 60 s; a request that is
# sent while the server closes the connection gets no answer. So the server keeps it longest.
IDLE_S = 75

_IS_WINDOWS = sys.platform == "win32"  # whose event loop does not watch sockets: it accepts itself

FAILED_S = 2  # until a server ends whose engine has failed: its clients have their errors
QUEUE = 2048  # connections that the system holds until they are accepted


class Server(uvicorn.Server):
    """uvicorn around the app of an engine; calls `started` when it answers requests."""

    def __init__(
        self,
        engine: Engine | EngineClient,
        settings: Settings,
        started: Callable[[], None],
        figures: Figures | None = None,
    ) -> None:
        local_only = not settings.needs_key and not settings.no_auth
        self._figures = figures or Figures.own()
        self._app = create_app(engine, settings, local_only=local_only, figures=self._figures)
        self._slots = connection_slots.provide()
        super().__init__(_config(self._app, settings, self._slots))
        self._service: Service = self._app.state.service
        self.acceptors: list[Acceptor] = []
        self._announce = started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections from listeners, and say so."""
        await run_in_threadpool(self._use_once)
        await super().startup(sockets if _IS_WINDOWS else [])
        if self.started:
            for listener in sockets or ():
                listener.listen(QUEUE)  # on Windows, asyncio has said less: what it accepts at once
                if not _IS_WINDOWS:
                    self._accept_from(listener)
            self._announce()

    def _accept_from(self, listener: socket.socket) -> None:
        entrance = Entrance(
            make=self._protocol,
            client_of=self._service.settings.client_of_first,
            num_inside=lambda: len(self.server_state.connections),
            slots=self._slots,
            tls=self.config.ssl,
        )
        acceptor = Acceptor(listener, entrance, self._figures)
        acceptor.open()
        self.acceptors.append(acceptor)

    def _protocol(self, first: bytes) -> asyncio.Protocol:
        """Return the protocol of a connection of which something has been read."""
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            first=first,
        )
        return made

    async def on_tick(self, counter: int) -> bool:
        """Note how many connections there are, ten times a second."""
        self._figures.num_connections = sum(each.num_connections for each in self.acceptors)
        return await super().on_tick(counter)

    def _use_once(self) -> None:
        """Import now what is imported on first use: later there may be no file descriptor left.

        Called in a thread, which imports anyio's as well: without that, 1,014 of 1,200 streams
        failed.
        """
        self._app.openapi()
        with suppress(RequestError):  # no template, or no tokenizer
            self._service.engine.encode_chat([{"role": "user", "content": ""}])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests that run finish for a while, and end the others."""
        # Behind an answer that is whole, its task is among them until the event loop's next turn.
        running = sum(not task.done() for task in self.server_state.tasks)
        if running and not self.force_exit:
            log.warning(
                "stopping: requests still running: %d; they may take %g seconds, "
                "a second signal (Ctrl-C) stops them now",
                running,
                self._service.settings.drain_s,
            )
        for acceptor in self.acceptors:
            await acceptor.close()
        await super().shutdown(sockets)
        await run_in_threadpool(self._service.close)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        """Drain at the first signal, and stop at the second."""
        self.drain()

    def end_with(self, engine: Engine) -> None:
        """End when an engine is over; what it has answered is sent first, if it is read soon."""

        def watch() -> None:
            engine.wait_over()
            self.config.timeout_graceful_shutdown = FAILED_S
            self._service.draining = self.should_exit = True

        Thread(target=watch, name="engine-watch", daemon=True).start()

    def drain(self) -> None:
        """Finish what runs and end; called a second time, at once."""
        # uvicorn would raise the signal again in the end, so that the process dies of it: here
        # the caller still has an engine to close, and a drained server has done its work.
        self._service.draining = True
        self.force_exit = self.should_exit
        self.should_exit = True


def _config(app: FastAPI, settings: Settings, slots: ConnectionSlots) -> uvicorn.Config:
    config = uvicorn.Config(
        _called_directly(app),
        log_level="error",  # every bad request would be a warning
        http=partial(BoundedProtocol, places=slots),  # type: ignore[arg-type]
        ws="none",
        backlog=connection_slots.ACCEPTED_AT_ONCE,
        timeout_keep_alive=IDLE_S,
        timeout_graceful_shutdown=math.ceil(settings.drain_s),
        server_header=False,
        lifespan="off",  # the app has none; left on, a second signal would be logged as its failure
    )
    config.load()
    if settings.ssl_certfile is not None:  # uvicorn's own would choose ciphers of TLS 1.0
        config.ssl = tls_context(settings.ssl_certfile, settings.ssl_keyfile)
    return config


def _called_directly(app: FastAPI) -> ASGIApp:
    """Return what an app calls, without the two layers of its own around that: 3 % of the event
    loop's time for a short request.
    """
    stack = app.middleware_stack
    assert stack is not None, "create_app has put it together"

    async def called(scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = app
        await stack(scope, receive, send)

    return called
