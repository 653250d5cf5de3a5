"""The thread that turns events into outputs, so that the step loop never waits for text.

The interpreter runs one thread at a time, so what is written here is taken from the loop. An output
costs the same for one token as for many: after a long round the writer rests, and then writes what
has come meanwhile at once. With few requests, every token is written as it comes. Where the loop
has nothing else to do it writes by itself: waking another thread takes 0.1 to 0.2 ms.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Protocol

from spaninfer_engine.handle import ResultQueue
from spaninfer_engine.outputs import TextStream
from spaninfer_engine.request import FinishReason, TokenLogprob
from spaninfer_engine.schedule.choice import Choice, Ended, Events
from spaninfer_engine.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

LONG_ROUND_S = 0.5e-3  # 40 tokens, one by one
REST = 3.0  # times as long as the round before: the writer has a quarter of the time, at the most


Stop = Callable[[tuple[int, ...], FinishReason], None]
"""Tells the loop that choices need no more tokens, and why; returns at once."""


class Deliver(Protocol):
    """What the loop hands news to, see OutputWriter.put."""

    def __call__(self, message: Opened | Events, *, now: bool = False) -> None:
        """Take in what happened."""
        ...


@dataclass(frozen=True, slots=True)
class Opened:
    """A request was admitted: the outputs of its choices go to this queue."""

    choices: tuple[Choice, ...]
    queue: ResultQueue


@dataclass(slots=True)
class _Open:
    """A choice the loop has not ended yet."""

    stream: TextStream
    queue: ResultQueue
    is_closed: bool = False  # its last output was put: what still comes is dropped


class OutputWriter:
    """Puts outputs into the queues of requests, in the order of the events."""

    def __init__(self, tokenizer: Tokenizer, stop: Stop) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._inbox: deque[Opened | Events] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # is there more to come?
        self._writing = Lock()  # over the order of what is written, and `_open`
        self._open: dict[int, _Open] = {}  # by the choice's request id
        self._thread = Thread(target=self._work, name="spaninfer-writer", daemon=True)
        self._thread.start()

    def put(self, message: Opened | Events, *, now: bool = False) -> None:
        """Take in what happened; return at once, or with `now`, when it has been written."""
        self._inbox.append(message)
        if now:
            self._write_all()
        else:
            self._wake.put(True)

    def close(self) -> None:
        """Write what was put before and end the thread; harmless when repeated."""
        self._wake.put(False)
        self._thread.join()

    def _work(self) -> None:
        while self._wake.get():
            begin = monotonic()
            self._write_all()
            took = monotonic() - begin
            if took > LONG_ROUND_S:
                sleep(took * REST)

    def _write_all(self) -> None:
        """Write all that was put, in whichever thread comes first."""
        with self._writing:
            messages = []
            while self._inbox:
                messages.append(self._inbox.popleft())
            self._write(messages)

    def _write(self, messages: Iterable[Opened | Events]) -> None:
        """Write what messages bring."""
        drawn: dict[int, list[tuple[int, TokenLogprob | None]]] = {}  # by choice, not written yet
        for message in messages:
            match message:
                case Opened(choices, queue):
                    for choice in choices:
                        stream = TextStream(choice, self._tokenizer)
                        self._open[choice.request_id] = _Open(stream, queue)
                case Events():
                    for choice, token, logprob in message.drawn:
                        drawn.setdefault(choice.request_id, []).append((token, logprob))
                    for end in message.ended:
                        request_id = end.choice.request_id
                        if request_id in drawn:
                            self._put(self._open[request_id], drawn.pop(request_id))
                        self._put(self._open.pop(request_id), end)
        for request_id, tokens in drawn.items():
            self._put(self._open[request_id], tokens)

    def _put(self, entry: _Open, event: Sequence[tuple[int, TokenLogprob | None]] | Ended) -> None:
        """Put what comes of tokens or an end; a failure concerns the text of this choice alone."""
        if entry.is_closed:
            return
        stream, now = entry.stream, monotonic()
        try:
            output = stream.end(event) if isinstance(event, Ended) else stream.push(event, now)
        except Exception as error:
            _log.exception("the text of request %d failed", stream.request_id)
            output = stream.fail(error, now)
        if output.finish_reason is not None:
            entry.is_closed = True
            if not isinstance(event, Ended):  # the loop still draws for it
                self._stop((stream.request_id,), output.finish_reason)
        entry.queue.put(output)
