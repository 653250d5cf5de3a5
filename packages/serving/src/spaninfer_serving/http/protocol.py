"""HTTP/1.1 by uvicorn, with limits to what one connection may cost: time, memory, bytes."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from http import HTTPStatus
from typing import Any
from weakref import ref

import h11
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from spaninfer_serving.http.connection_slots import ConnectionSlots
from spaninfer_serving.http.plain_http import PlainCycle, PlainHead, has_ambiguous_lines, plain_head
from spaninfer_serving.observability.access_log import ID_HEADER, new_id
from spaninfer_serving.wire.errors import Problem

HEAD_S = 20.0  # for the head of a request; nginx allows 60, gunicorn 30

# A client that is still sending does not read. So that it sees an answer that came before the end
# of its body, the rest is read and thrown away, up to this much and for as long as a head may take.
DISCARD_BYTES = 1 << 28

# A client has to take some of its answer now and then: half a kilobyte a second, on average.
STALL_S = 30.0
PROGRESS_BYTES = 1 << 14

_BYTES = re.compile(
    r"bytearray\(b('.*'|\".*\")\)"
)  # in what h11 says: a quotation, as it writes it


class BoundedProtocol(H11Protocol):
    """A connection that is closed when its client keeps the server waiting.

    uvicorn limits the silence between requests only: a client that sends one byte a minute, that
    owes the rest of a body, or that does not read its answer would hold its connection for ever.
    (The body of a request that is being answered is the guard's business.)
    """

    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _num_unread = 0  # bytes of answers in the transport's buffer, when the timer was set
    _num_discarded = 0  # bytes of a body that came behind its answer

    def __init__(
        self, *arguments: Any, places: ConnectionSlots, first: bytes = b"", **options: Any
    ) -> None:
        """`first` has been read of the connection already."""
        super().__init__(*arguments, **options)
        self._places, self._first = places, first

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request, if there is a place for this connection."""
        super().connection_made(transport)
        self.flow = _Flow(transport, self)
        self._wait_for_head()
        self._note_turn()
        self._places.make_room(len(self.connections))
        if self._first:  # not here: asyncio begins to read behind this, even if that was paused
            self.loop.call_soon(self._take_first)

    def _take_first(self) -> None:
        if self._first and not self.transport.is_closing():
            self.data_received(b"")

    def data_received(self, data: bytes) -> None:
        """Take in bytes, and see whether they brought the head to an end."""
        if self._first:
            data, self._first = self._first + data, b""
        if self._is_answered and self._owes_body:
            self._num_discarded += len(data)
            if self._num_discarded > DISCARD_BYTES:
                self.transport.abort()
                return
        data = self._take_plain(data)
        if data:
            super().data_received(data)
        if self._is_answered:
            self._wait_for_head()
        else:
            self._stop_waiting()
        self._note_turn()

    def handle_events(self) -> None:
        """Take in what h11 has, unless a plain request is in front of it."""
        if not self._is_answered and isinstance(self.cycle, PlainCycle):
            self.flow.pause_reading()
        elif self.conn.their_state is h11.IDLE and has_ambiguous_lines(self.conn.trailing_data[0]):
            self._refuse(400, "a line of the head ends without CR LF, or is folded")
        else:
            super().handle_events()

    def _take_plain(self, data: bytes) -> bytes:
        """Take in what belongs to a plain request, one under way or a new one; return the rest."""
        if isinstance(self.cycle, PlainCycle) and self.cycle.num_awaited:
            data = self._take_body(self.cycle, data)
        is_between = self._is_answered and self.conn.their_state is h11.IDLE
        if not is_between or not data or self._has_more:
            return data
        head = plain_head(data)
        if head is None:
            return data
        self._unset_keepalive_if_required()
        return self._take_body(self._begin(head), data[head.end :])

    def _take_body(self, cycle: PlainCycle, data: bytes) -> bytes:
        rest = cycle.take(data)
        if len(cycle.body) > HIGH_WATER_LIMIT:
            self.flow.pause_reading()
        return rest

    def _begin(self, head: PlainHead) -> PlainCycle:
        """Have a plain request answered."""
        self.scope = {
            **head.scope(),  # type: ignore[typeddict-item]
            "asgi": {"version": self.asgi_version, "spec_version": "2.3"},
            "server": self.server,
            "client": self.client,
            "scheme": self.scheme,
            "state": self.app_state.copy(),
        }
        self.cycle = cycle = PlainCycle(
            head,
            scope=self.scope,
            conn=self.conn,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            on_response=self.on_response_complete,
        )
        task = self.loop.create_task(cycle.run_asgi(self.app))
        task.add_done_callback(self.tasks.discard)
        self.tasks.add(task)
        return cycle

    def on_response_complete(self) -> None:
        """Turn to what the client has sent meanwhile, and see to it that it reads the answer."""
        cycle = self.cycle
        cycle.body = bytearray()  # what came after the route had enough
        self._num_discarded = 0
        super().on_response_complete()
        if isinstance(cycle, PlainCycle) and self._has_more and not self.transport.is_closing():
            self.handle_events()
        self.flow.resume_reading()  # the beginning of a head may have been all that was there
        if self._is_answered and (self._owes_body or self._has_more):
            self._wait_for_head()
        self._stop_watching()
        self._watch_reader()
        self._note_turn()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is answered."""
        super().pause_writing()
        self._watch_reader()
        self._note_turn()

    def resume_writing(self) -> None:
        """Note that the client has read most of what there was."""
        super().resume_writing()
        self._stop_watching()
        if self._is_answered:
            self._watch_reader()
        self._note_turn()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget about time, and leave the place to others."""
        self._stop_waiting()
        super().connection_lost(exc)
        if isinstance(self.cycle, PlainCycle):
            self.cycle.leave()
        self._stop_watching()
        self._places.waiting.pop(self, None)

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """Refuse what is no HTTP, with the reason that h11 gave; called while that is handled."""
        fault = sys.exception()
        self._refuse(getattr(fault, "error_status_hint", 400), _BYTES.sub(r"\1", str(fault)))

    def _refuse(self, status: int, reason: str) -> None:
        """End the connection, with an answer if none is under way."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and not self.transport.is_closing():
            problem = Problem(status, f"this is no request in HTTP/1.1: {reason}", code="bad_http")
            self.transport.write(_whole(problem))
        self.transport.close()

    @property
    def _is_answered(self) -> bool:
        """Return True if every request received has been answered."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def _owes_body(self) -> bool:
        if isinstance(self.cycle, PlainCycle) and self.cycle.num_awaited:
            return True
        return self.conn.their_state is h11.SEND_BODY

    @property
    def _has_more(self) -> bool:
        """Return True if bytes lie there that belong to no request yet."""
        return bool(self.conn.trailing_data[0])

    @property
    def has_next(self) -> bool:
        """Return True if another request lies behind one that is being answered."""
        is_plain = isinstance(self.cycle, PlainCycle) and not self.cycle.response_complete
        return (is_plain or self.conn.their_state is h11.DONE) and self._has_more

    def _wait_for_head(self) -> None:
        if self._head_timer is None:
            self._head_timer = self.loop.call_later(HEAD_S, self.transport.close)

    def give_way(self) -> None:
        """Close a connection that waits for its client: others need its place."""
        self._places.waiting.pop(self, None)
        self.transport.abort()

    def _note_turn(self) -> None:
        """Note whose turn it is: the client's to send or to read, or ours."""
        if self._is_answered or self.cycle.more_body or self.flow.write_paused:
            self._places.waiting.setdefault(self, None)
        else:
            self._places.waiting.pop(self, None)

    def _stop_waiting(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _watch_reader(self) -> None:
        self._num_unread = self.transport.get_write_buffer_size()
        if self._stall_timer is None and self._num_unread:
            self._stall_timer = self.loop.call_later(STALL_S, self._check_reader)

    def _check_reader(self) -> None:
        """Break off with a client that has hardly read; its request then ends as if it had left."""
        self._stall_timer = None
        before, now = self._num_unread, self.transport.get_write_buffer_size()
        is_final = self.flow.write_paused or self._is_answered  # nothing was added meanwhile
        if is_final and now and before - now < PROGRESS_BYTES:
            self.transport.abort()
        else:
            self._watch_reader()

    def _stop_watching(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


class _Flow(FlowControl):
    """Flow control by which nothing piles up behind a request that is being answered.

    Reading goes on as long as nothing comes, so that a client's leaving is noticed. uvicorn pauses
    it when something does, but resumes whenever the app asks for more of the body, of which there
    is none: four connections that sent request after request took 2 GB in 20 s.
    """

    def __init__(self, transport: asyncio.Transport, connection: BoundedProtocol) -> None:
        super().__init__(transport)
        self._connection = ref(connection)  # which holds this

    def resume_reading(self) -> None:
        """Read on, unless another request lies there already."""
        connection = self._connection()
        if connection is not None and not connection.has_next:
            super().resume_reading()


def _whole(problem: Problem) -> bytes:
    """Return a refusal as it travels, for a connection that ends with it."""
    body = json.dumps(problem.body()).encode()
    head = (
        f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\n"
        f"content-type: application/json\r\ncontent-length: {len(body)}\r\n"
        f"connection: close\r\n{ID_HEADER.decode()}: {new_id().decode()}\r\n\r\n"
    )
    return head.encode() + body
