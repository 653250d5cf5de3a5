"""The server as a process: listens, says where, and serves by API servers or by itself."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from spaninfer_serving.api_server.hub import ApiServers
from spaninfer_serving.api_server.processes import SWITCH_S, ApiServerProcesses
from spaninfer_serving.http.listener import bind, taken, url_of
from spaninfer_serving.observability import access_log
from spaninfer_serving.settings import Settings

if TYPE_CHECKING:
    from spaninfer_engine import Engine


def serve(
    engine: Engine,
    settings: Settings,
    ready: Callable[[str], None],
    listener: socket.socket | None = None,
    processes: ApiServerProcesses | None = None,
) -> None:
    """Serve until SIGINT or SIGTERM, or until the engine is closed or has failed.

    `ready` is called with the base URL once requests are answered. After the signal no connection
    is accepted, running requests get `settings.drain_s` seconds, and the rest is stopped; a second
    signal stops immediately. `listener` and `processes` are results of `bind` and
    `api_server_processes`, if these were called before. Raises ConfigError if the address cannot be
    bound.
    """
    access_log.set_up(settings)
    listener = listener or bind(settings)
    try:
        listener.listen()  # here two servers meet that were bound to one address while they loaded
    except OSError as reason:
        listener.close()
        raise taken(settings, reason) from reason
    sys.setswitchinterval(SWITCH_S)
    url = url_of(listener, settings)
    if settings.api_servers:
        ApiServers(engine, settings, listener, processes).run(lambda: ready(url))
    else:
        from spaninfer_serving.server import Server  # FastAPI with it, which API servers have

        server = Server(engine, settings, lambda: ready(url))
        server.end_with(engine)
        server.run(sockets=[listener])
