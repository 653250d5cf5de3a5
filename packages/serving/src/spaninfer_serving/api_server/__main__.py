"""The program of an API server: `python -m spaninfer_serving.api_server LISTENER LINK FIGURES`,
each the number of an open file.
"""

from __future__ import annotations

import asyncio
import gc
import mmap
import socket
import sys
import warnings

from spaninfer_engine.config import Resolved
from spaninfer_engine.frontend import Frontend
from spaninfer_engine.startup.front import open_front

from spaninfer_serving import access_log
from spaninfer_serving.api_server.acceptor import Acceptor
from spaninfer_serving.api_server.link import receive_frame
from spaninfer_serving.api_server.messages import Configure, Ready, from_engine
from spaninfer_serving.api_server.records import typed, typed_config
from spaninfer_serving.api_server.remote import RemoteClient
from spaninfer_serving.figures import Figures
from spaninfer_serving.server import QUEUE, Server
from spaninfer_serving.settings import Settings


class ApiServer(Server):
    """A server whose engine is another process, at an address that several have."""

    def __init__(
        self, client: RemoteClient, settings: Settings, figures: Figures, listener: socket.socket
    ) -> None:
        super().__init__(client, settings, self._begin, figures)
        self._client, self._figures, self._listener = client, figures, listener
        self._acceptor = Acceptor(listener, self._protocol, figures)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:  # noqa: ARG002
        """Open the link to the engine, and then the address."""
        self._figures.num_connections = 0
        self._client.link.open()
        await super().startup([])  # no listener of asyncio's

    def _begin(self) -> None:
        self._listener.listen(QUEUE)
        self._acceptor.open()
        self._client.link.send(Ready())

    def _protocol(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def on_tick(self, counter: int) -> bool:
        """Note how many connections there are, ten times a second."""
        self._figures.num_connections = len(self.server_state.connections)
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Leave the address, and end as any server does."""
        self._acceptor.close()
        self._listener.close()
        await super().shutdown(sockets)


def main(listener_fd: int, link_fd: int, figures_fd: int) -> None:
    """Answer requests until the engine's process says so, or is gone."""
    end = socket.socket(fileno=link_fd)
    asked = from_engine.decode(receive_frame(end))
    assert isinstance(asked, Configure), "it comes first"
    settings = typed(asked.settings, Settings)
    access_log.set_up(settings)
    warnings.simplefilter("ignore")  # the engine's process has said the same
    resolved = typed(asked.resolved, Resolved)
    front = Frontend(open_front(typed_config(asked.config), resolved, asked.context))
    listener = socket.socket(fileno=listener_fd)
    client = RemoteClient(front, end, lambda: server.drain())
    figures = Figures(mmap.mmap(figures_fd, 0), asked.row)
    server = ApiServer(client, settings, figures, listener)
    gc.collect()
    gc.freeze()  # what is here stays: full collections need not look at it again
    server.run(sockets=[])


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
