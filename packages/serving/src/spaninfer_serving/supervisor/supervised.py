"""The supervisor, as the engine's process sees it."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from time import sleep

from spaninfer_serving.http.listener import bind
from spaninfer_serving.settings import Settings
from spaninfer_serving.supervisor.messages import FromEngine, ToEngine, receive, send


class Supervised:
    """The connection of the engine's process to its supervisor, with which it ends (`end_with`)."""

    def __init__(self, control_fd: int) -> None:
        """Connect through a file descriptor of the command line; waits if told to."""
        os.set_inheritable(control_fd, False)
        self._control = socket.socket(fileno=control_fd)
        found = receive(self._control, ToEngine)
        if found is None:
            os._exit(1)
        message, self._listener = found
        self.num_restarts = message.num_restarts
        sleep(message.wait_s)

    def bind(self, settings: Settings) -> socket.socket:
        """Return the socket to listen on: that of earlier processes, if there were any.

        Raises ConfigError if the address cannot be bound.
        """
        certificate, key = (
            None if path is None else str(path.absolute())
            for path in (settings.ssl_certfile, settings.ssl_keyfile)
        )
        self._status = FromEngine(settings.log_format, settings.drain_s, certificate, key)
        if self._listener is not None:
            return self._listener
        listener = bind(settings)
        send(self._control, self._status, listener)
        return listener

    def note_ready(self) -> None:
        """Tell the supervisor that requests are answered."""
        send(self._control, replace(self._status, is_ready=True), None)
