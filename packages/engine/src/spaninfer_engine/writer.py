"""The thread that turns events into outputs, so that the step loop never waits for text."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from threading import Thread
from time import monotonic

from spaninfer_engine.handle import ResultQueue
from spaninfer_engine.outputs import TextStream
from spaninfer_engine.request import FinishReason
from spaninfer_engine.schedule.choice import Choice, Drawn, Ended, Events
from spaninfer_engine.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


Stop = Callable[[tuple[int, ...], FinishReason], None]
"""Tells the loop that choices need no more tokens, and why; returns at once."""


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
        self._inbox: SimpleQueue[Opened | Events | None] = SimpleQueue()
        self._open: dict[int, _Open] = {}  # by the choice's request id
        self._thread = Thread(target=self._work, name="spaninfer-writer", daemon=True)
        self._thread.start()

    def put(self, message: Opened | Events) -> None:
        """Take in what happened; returns at once."""
        self._inbox.put(message)

    def close(self) -> None:
        """Write what was put before and end the thread; harmless when repeated."""
        self._inbox.put(None)
        self._thread.join()

    def _work(self) -> None:
        while (message := self._inbox.get()) is not None:
            match message:
                case Opened(choices, queue):
                    for choice in choices:
                        stream = TextStream(choice, self._tokenizer)
                        self._open[choice.request_id] = _Open(stream, queue)
                case Events():
                    self._write(message)

    def _write(self, events: Events) -> None:
        for drawn in events.drawn:
            entry = self._open[drawn[0].request_id]
            self._put(entry, drawn)
        for end in events.ended:
            self._put(self._open.pop(end.choice.request_id), end)

    def _put(self, entry: _Open, event: Drawn | Ended) -> None:
        """Put what comes of an event; a failure concerns the text of this choice and no other."""
        if entry.is_closed:
            return
        stream, now = entry.stream, monotonic()
        try:
            output = stream.end(event) if isinstance(event, Ended) else stream.push(*event[1:], now)
        except Exception as error:
            _log.exception("the text of request %d failed", stream.request_id)
            output = stream.fail(error, now)
        if output.finish_reason is not None:
            entry.is_closed = True
            if not isinstance(event, Ended):  # the loop still draws for it
                self._stop((stream.request_id,), output.finish_reason)
        entry.queue.put(output)
