"""A server in a thread of this process, for programs that are its client as well."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from threading import Event, Thread
from typing import TYPE_CHECKING

from spaninfer_serving.api_server.processes import SWITCH_S
from spaninfer_serving.http.listener import bind, url_of
from spaninfer_serving.server import Server
from spaninfer_serving.settings import Settings

if TYPE_CHECKING:
    from spaninfer_engine import Engine


@contextmanager
def serve_in_thread(engine: Engine, settings: Settings) -> Iterator[str]:
    """Serve inside a `with` block, which receives the base URL; running requests finish after it.

    For notebooks, tests and benchmarks. Requests are answered in this process, whatever
    `settings.api_servers` says. Raises ConfigError if the address cannot be bound.
    """
    settings = replace(settings, api_servers=0)
    listener, started, before = bind(settings), Event(), sys.getswitchinterval()
    listener.listen()
    server = Server(engine, settings, started.set)
    thread = Thread(target=server.run, kwargs={"sockets": [listener]}, name="server")
    sys.setswitchinterval(SWITCH_S)
    thread.start()
    try:
        started.wait()
        yield url_of(listener, settings)
    finally:
        server.should_exit = True
        thread.join()
        sys.setswitchinterval(before)
