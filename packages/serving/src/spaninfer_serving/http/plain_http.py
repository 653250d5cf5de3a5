"""Plain requests and their answers, without h11: nearly all that clients send.

h11 reads by rules that allow for everything, which is a quarter of the event loop's time for a
short request. What is read here is a subset of what h11 takes, and means the same; all else, and
all that is refused, is h11's.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, RequestResponseCycle

Headers = list[tuple[bytes, bytes]]


# Visible ASCII and spaces, one line for each field. Quantifiers are possessive: a head that does
# not match is given up at once.
_HEAD = re.compile(
    rb"(GET|POST) (/[!-~]*+) HTTP/1\.1\r\n((?:[-!#$%&'*+.^_`|~0-9A-Za-z]++:[ -~]*+\r\n)++)\r\n"
)
_LENGTH = re.compile(rb"[0-9]{1,18}")

_HEAD_END = re.compile(rb"\n\r?\n")
_AMBIGUOUS = re.compile(rb"(?<!\r)\n|\n[ \t]")

# Fields that change how a message is framed, or what is sent before its answer.
_UNUSUAL = frozenset({b"transfer-encoding", b"expect", b"upgrade"})
_KEEP, _CLOSE = b"keep-alive", b"close"
_BODYLESS = frozenset({204, 304})


class PlainHead(NamedTuple):
    """The head of a plain request."""

    method: str
    target: bytes
    headers: Headers  # names in small letters
    content_length: int
    asks_to_close: bool  # the connection, behind the answer
    end: int  # in the bytes that it was read from

    def scope(self) -> dict[str, Any]:
        """Return what an ASGI scope says of the request alone."""
        raw_path, _, query = self.target.partition(b"?")
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "http_version": "1.1",
            "method": self.method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": query,
            "headers": self.headers,
        }


def plain_head(data: bytes) -> PlainHead | None:
    """Return the head that `data` begins with, None where it is not whole or not plain."""
    found = _HEAD.match(data)
    if found is None:
        return None
    headers = []
    for line in found[3].split(b"\r\n")[:-1]:
        name, _, value = line.partition(b":")
        headers.append((name.lower(), value.strip(b" ")))
    fields = dict(headers)
    is_post = found[1] == b"POST"
    if (
        len(fields) < len(headers)
        or b"host" not in fields
        or not _UNUSUAL.isdisjoint(fields)
        or fields.get(b"connection", _KEEP).lower() not in (_KEEP, _CLOSE)
        or (b"content-length" in fields) is not is_post
    ):
        return None
    length = fields.get(b"content-length", b"0")
    if not _LENGTH.fullmatch(length):
        return None
    return PlainHead(
        method="POST" if is_post else "GET",
        target=found[2],
        headers=headers,
        content_length=int(length),
        asks_to_close=fields.get(b"connection", _KEEP).lower() == _CLOSE,
        end=found.end(),
    )


def has_ambiguous_lines(data: bytes) -> bool:
    """Return whether the head that `data` begins with has a line that proxies read in other ways.

    h11 takes LF alone for the end of a line, and joins a folded line to the one before it. To a
    proxy in front that does neither, a field behind LF, or a folded Transfer-Encoding, is no field:
    the two would disagree where the request ends (RFC 9112, 2.2 and 5.2: both may be refused).
    """
    end = _HEAD_END.search(data)
    return _AMBIGUOUS.search(data, 0, end.end() if end else len(data)) is not None


class PlainCycle(RequestResponseCycle):
    """A plain request while it is answered, and the bytes of its answer.

    A head is kept until the first bytes of its body, if its length is known: a call of the system
    less, and for the client one thing to read instead of two.
    """

    _on_leave: Callable[[], None] | None = None
    _head = b""  # unsent
    _num_left: int | None = None  # bytes of the body; None: it is sent in chunks

    def __init__(self, head: PlainHead, **options: Any) -> None:
        super().__init__(**options)
        self._asks_to_close = head.asks_to_close
        self.keep_alive = not head.asks_to_close
        self.num_awaited = head.content_length  # bytes of the request's body that have not come

    def leave(self) -> None:
        """Note that the client has left."""
        if self._on_leave is not None and not self.response_complete:
            self._on_leave()

    def watch(self, on_leave: Callable[[], None]) -> Callable[[], None]:
        """Have `on_leave` called where the client leaves too early; return what ends that."""
        self._on_leave = on_leave
        self.flow.resume_reading()  # paused by a long body; what is not read is not seen to end
        return self._stop_watching

    def _stop_watching(self) -> None:
        self._on_leave = None

    def receive_nowait(self) -> bytes | None:
        """Return the body if all of it is there and nothing was received of it; else None."""
        if self.num_awaited or self.disconnected:
            return None
        body, self.body = bytes(self.body), bytearray()
        self.message_event.clear()
        return body

    def take(self, data: bytes) -> bytes:
        """Take in what `data` holds of the body; return the rest of it."""
        part, rest = data[: self.num_awaited], data[self.num_awaited :]
        self.num_awaited -= len(part)
        if not self.response_complete:
            self.body += part
            self.more_body = self.num_awaited > 0
            self.message_event.set()
        return rest

    def write_nowait(self, data: bytes) -> bool:
        """Send a piece of the body, if the client reads; return whether it was sent."""
        if self.flow.write_paused or self.disconnected:
            return False
        self._send_body(data, more=True)
        return True

    async def send(self, message: Any) -> None:
        """Send a message of the application; it waits while the client does not read."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        expected = "http.response.body" if self.response_started else "http.response.start"
        if self.response_complete or message["type"] != expected:
            raise RuntimeError(f"the application sent {message['type']} out of turn")
        if self.response_started:
            self._send_body(message.get("body", b""), more=message.get("more_body", False))
        else:
            self._begin(message["status"], message.get("headers", ()))

    def _begin(self, status: int, headers: Headers) -> None:
        self.response_started = True
        self._num_left = 0 if status in _BODYLESS else None
        lines = [b"HTTP/1.1 %d %b\r\n" % (status, STATUS_PHRASES[status])]
        for name, value in (*self.default_headers, *headers):
            field = name.lower()
            if field == b"content-length":
                self._num_left = int(value)
            elif field == b"connection" and value.lower() == _CLOSE:
                self.keep_alive = False
                if self._asks_to_close:  # said below
                    continue
            lines.append(b"%b: %b\r\n" % (name, value))
        if self._num_left is None:
            lines.append(b"Transfer-Encoding: chunked\r\n")
        if self._asks_to_close:
            lines.append(b"Connection: close\r\n")
        head = b"".join((*lines, b"\r\n"))
        if not head.count(b"\r") == head.count(b"\n") == len(lines) + 1:
            raise RuntimeError("a field of an answer's head holds the end of a line")
        if self._num_left is None:
            self.transport.write(head)
        else:
            self._head = head

    def _send_body(self, data: bytes, *, more: bool) -> None:
        if self._num_left is None:
            data = b"%x\r\n%b\r\n" % (len(data), data) if data else b""
            data = data if more else data + b"0\r\n\r\n"
        else:
            self._num_left -= len(data)
            if self._num_left < 0:
                raise RuntimeError("an answer is longer than its head says")
        data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if not more:
            if self._num_left:
                raise RuntimeError("an answer is shorter than its head says")
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()
