"""The program of an API server."""

from __future__ import annotations

import gc
import mmap
import socket
import sys
import warnings
from collections.abc import Callable

from spaninfer_engine import Resolved
from spaninfer_engine.serving import Frontend, GcFreeze, open_front

from spaninfer_serving.api_server.link import receive_frame
from spaninfer_serving.api_server.messages import Configure, Ready, from_engine
from spaninfer_serving.api_server.processes import SWITCH_S
from spaninfer_serving.api_server.records import typed, typed_config
from spaninfer_serving.api_server.remote import RemoteClient
from spaninfer_serving.observability import access_log
from spaninfer_serving.observability.figures import Figures
from spaninfer_serving.server import Server
from spaninfer_serving.settings import Settings


class ApiServer(Server):
    """A server whose engine is another process, at an address that several have."""

    def __init__(
        self,
        client: RemoteClient,
        settings: Settings,
        figures: Figures,
        opened: Callable[[], None],
    ) -> None:
        """`opened` is called when the link to the engine is watched."""
        super().__init__(client, settings, self._begin, figures)
        self._client, self._opened = client, opened

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Open the link to the engine, and then the address."""
        self._figures.num_connections = 0
        self._client.link.open()
        self._opened()
        await super().startup(sockets)

    def _begin(self) -> None:
        # Full collections took 30 to 70 ms every 10 s under attack: what is here stays.
        gc.collect()
        self._gc_freeze = GcFreeze()
        self._client.link.send(Ready())


def main(listener_fd: int, link_fd: int, figures_fd: int, opened: Callable[[], None]) -> None:
    """Answer requests until the engine's process says so, or is gone; calls `opened` when this
    notices its end by itself.
    """
    sys.setswitchinterval(SWITCH_S)  # threads parse here
    end = socket.socket(fileno=link_fd)
    try:
        asked = from_engine.decode(receive_frame(end))
    except (EOFError, ConnectionResetError):
        return  # there was no engine after all
    assert isinstance(asked, Configure), "it comes first"
    settings = typed(asked.settings, Settings)
    access_log.set_up(settings)
    warnings.simplefilter("ignore")  # the engine's process has said the same
    resolved = typed(asked.resolved, Resolved)
    front = Frontend(open_front(typed_config(asked.config), resolved, asked.context))
    listener = socket.socket(fileno=listener_fd)
    client = RemoteClient(front, end, lambda: server.drain())
    figures = Figures(mmap.mmap(figures_fd, 0), asked.row)
    server = ApiServer(client, settings, figures, opened)
    server.run(sockets=[listener])
