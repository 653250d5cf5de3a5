"""A Unix socket of one event loop: frames in, frames out from any thread."""

from __future__ import annotations

import asyncio
import logging
import socket
import struct
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from math import inf
from threading import Lock
from typing import Any

from spaninfer_serving.api_server.messages import encoder

log = logging.getLogger(__name__)

_LENGTH = struct.Struct("<Q")
READ_BYTES = 1 << 18
END_S, LOOK_S = 2.0, 0.01  # of a link that is to end: at the latest, and between two looks
FRAMES_AT_ONCE = 64  # in one call of the system, which takes at most 1,024


class Link:
    """Messages to the process at the other end of a socket, and frames from it.

    `take` is called with the frames of each read, `ended` once when the other side is gone, both in
    the loop.
    """

    def __init__(
        self,
        end: socket.socket,
        take: Callable[[list[bytes]], None],
        ended: Callable[[], None],
        most_unsent: int | None = None,
    ) -> None:
        """Take a socket; with more than `most_unsent` bytes waiting, the other side hangs."""
        self._socket, self._take, self._ended = end, take, ended
        self._most_unsent = most_unsent
        self._loop: asyncio.AbstractEventLoop | None = None
        self._received = bytearray()
        self._lock = Lock()  # over what follows, and the order of frames
        self._unsent: deque[memoryview] = deque()
        self._num_unsent = 0  # bytes
        self._is_full = False  # the socket, which is watched then
        self.is_closed = False
        self._ends_s = inf  # when it ends whatever is unsent

    def open(self) -> None:
        """Begin to read, in the running loop."""
        self._socket.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._socket.fileno(), self._read)

    def send(self, message: Any, *, hold: bool = False) -> None:
        """Send a message, now or when the other side reads; lost where that is gone.

        With `hold` it waits for `flush`, or the next message without.
        """
        data = encoder.encode(message)
        frame = memoryview(_LENGTH.pack(len(data)) + data)
        with self._lock:
            if self.is_closed:
                return
            self._unsent.append(frame)
            self._num_unsent += len(frame)
        if not hold:
            self.flush()

    def flush(self) -> None:
        """Send what was held."""
        with self._lock:
            was_full = self._is_full
            if not was_full:
                self._write()
            is_behind = self._is_full and not was_full
        if is_behind:
            self._call(self._wait_writable)
        if self._most_unsent is not None and self._num_unsent > self._most_unsent:
            log.error("a process has not read %d bytes; its link is closed", self._num_unsent)
            self._call(self.close)

    def close(self) -> None:
        """End the link; idempotent. To be called in the loop."""
        with self._lock:
            if self.is_closed:
                return
            self.is_closed = True
            self._unsent.clear()
        assert self._loop is not None, "it was opened"
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_writer(self._socket.fileno())
        self._socket.close()
        self._ended()

    def end_soon(self) -> None:
        """End the link when what was sent is on its way, or after a while; called in the loop."""
        assert self._loop is not None, "it was opened"
        self.flush()
        if not self._num_unsent or self._loop.time() > self._ends_s:
            self.close()
            return
        if self._ends_s == inf:
            self._ends_s = self._loop.time() + END_S
        self._loop.call_later(LOOK_S, self.end_soon)

    def _call(self, function: Callable[[], None]) -> None:
        assert self._loop is not None, "it was opened"
        with suppress(RuntimeError):  # the loop is closed, and the process ends
            self._loop.call_soon_threadsafe(function)

    def _write(self) -> None:
        """Send what the socket takes; to be called with the lock."""
        while self._unsent and not self.is_closed:
            try:
                num = self._socket.sendmsg(list(islice(self._unsent, FRAMES_AT_ONCE)))
            except (BlockingIOError, InterruptedError):
                self._is_full = True
                return
            except OSError:  # reading says that the other side is gone
                self._unsent.clear()
                self._num_unsent = 0
                break
            self._num_unsent -= num
            while self._unsent and num >= len(self._unsent[0]):
                num -= len(self._unsent.popleft())
            if num:
                self._unsent[0] = self._unsent[0][num:]
        self._is_full = False

    def _wait_writable(self) -> None:
        if not self.is_closed:
            assert self._loop is not None, "it was opened"
            self._loop.add_writer(self._socket.fileno(), self._write_more)

    def _write_more(self) -> None:
        with self._lock:
            self._write()
            is_done = not self._is_full
        if is_done:
            assert self._loop is not None, "it was opened"
            self._loop.remove_writer(self._socket.fileno())

    def _read(self) -> None:
        try:
            data = self._socket.recv(READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        received = self._received
        received += data
        at, frames = 0, []
        while len(received) - at >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, at)
            end = at + _LENGTH.size + length
            if end > len(received):
                break
            frames.append(bytes(received[at + _LENGTH.size : end]))
            at = end
        del received[:at]
        self._take(frames)


def receive_frame(end: socket.socket) -> bytes:
    """Wait for one frame on a blocking socket; EOFError where the other side is gone."""
    (length,) = _LENGTH.unpack(_receive(end, _LENGTH.size))
    return _receive(end, length)


def _receive(end: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        piece = end.recv(count - len(data))
        if not piece:
            raise EOFError("the engine's process is gone")
        data += piece
    return bytes(data)
