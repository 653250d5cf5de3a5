"""The thread that turns events into outputs, so that the step loop never waits for text.

The interpreter runs one thread at a time, so what is written here is taken from the loop, and while
a round lasts, the loop cannot launch a step. So rounds are short, and the writer rests behind those
that leave something. An output costs the same for one token as for many: what comes for a choice
before its turn is one output. With few requests, every token is written as it comes. Where the loop
has nothing else to do it writes by itself: waking another thread takes 0.1 to 0.2 ms.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue
from sys import maxsize
from threading import Lock, Thread
from time import monotonic, sleep
from typing import TypeAlias

from spaninfer_engine.errors import as_exception
from spaninfer_engine.handle import ResultQueue
from spaninfer_engine.outputs import TextStream
from spaninfer_engine.request import FinishReason, Output, TokenLogprob
from spaninfer_engine.schedule.choice import Choice, Ended, Events
from spaninfer_engine.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

ROUND_S = 0.3e-3  # 25 outputs; with all of 256 in a round, steps of 1.5 ms waited 3 ms for it
REST = 3.0  # times as long as the round before: the writer has a quarter of the time, at the most

Stop = Callable[[tuple[int, ...], FinishReason], None]
"""Tells the loop that choices need no more tokens, and why; returns at once."""


@dataclass(frozen=True, slots=True)
class Opened:
    """A request was admitted: the outputs of its choices go to this queue."""

    choices: tuple[Choice, ...]
    queue: ResultQueue


@dataclass(frozen=True, slots=True)
class Failed:
    """Nothing more will come: every choice that has not ended ends with this error."""

    error: Exception


Message: TypeAlias = Opened | Events | Failed
Tokens: TypeAlias = list[tuple[int, TokenLogprob | None]]


@dataclass(slots=True)
class _Open:
    """A choice whose last output has not been put, and what its next ones will hold."""

    choice: Choice
    stream: TextStream
    queue: ResultQueue
    tokens: Tokens = field(default_factory=list)
    end: Ended | None = None


class OutputWriter:
    """Puts outputs into the queues of requests, in the order of the events.

    Every choice that was opened gets one last output, and nothing behind it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Stop) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._inbox: deque[Message] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # is there more to come?
        self._writing = Lock()  # over the order of what is written, and `_open`
        self._open: dict[int, _Open] = {}  # by the choice's request id
        self._due: dict[int, _Open] = {}  # those with something to write, in turn
        self._thread = Thread(target=self._work, name="spaninfer-writer", daemon=True)
        self._thread.start()

    def put(self, message: Message, *, now: bool = False) -> None:
        """Take in what happened; return at once, or with `now`, when it has been written."""
        self._inbox.append(message)
        if now:
            self._write(maxsize)
        else:
            self._wake.put(True)

    def close(self) -> None:
        """Write what was put before and end the thread; harmless when repeated."""
        self._write(maxsize)
        self._wake.put(False)
        self._thread.join()

    def _work(self) -> None:
        while self._wake.get():
            begin = monotonic()
            while self._write(begin + ROUND_S):
                sleep((monotonic() - begin) * REST)
                begin = monotonic()

    def _write(self, until: float) -> bool:
        """Write what was put, in whichever thread comes first; return whether something is left
        after a round that ends at the time `until`.
        """
        with self._writing:
            while self._inbox:
                self._sort(self._inbox.popleft())
            while self._due:
                request_id = next(iter(self._due))
                self._write_choice(request_id, self._due.pop(request_id))
                if monotonic() > until:
                    break
            return bool(self._due)

    def _sort(self, message: Message) -> None:
        """Note what a message brings for each choice; what comes behind its last output is lost."""
        match message:
            case Opened(choices, queue):
                for choice in choices:
                    stream = TextStream(choice, self._tokenizer)
                    self._open[choice.request_id] = _Open(choice, stream, queue)
            case Events(drawn, ended):
                for choice, token, logprob in drawn:
                    if (entry := self._open.get(choice.request_id)) is not None:
                        entry.tokens.append((token, logprob))
                        self._due[choice.request_id] = entry
                for end in ended:
                    self._note_end(end)
            case Failed(error):
                now = monotonic()
                for entry in self._open.values():
                    usage = entry.choice.usage(now)
                    self._note_end(Ended(entry.choice, FinishReason.ERROR, usage, error=error))

    def _note_end(self, end: Ended) -> None:
        entry = self._open.get(end.choice.request_id)
        if entry is not None and entry.end is None:
            entry.end = end
            self._due[end.choice.request_id] = entry

    def _write_choice(self, request_id: int, entry: _Open) -> None:
        """Write all there is of a choice."""
        tokens, entry.tokens = entry.tokens, []
        if tokens:
            self._put(request_id, entry, tokens)
        if entry.end is not None and request_id in self._open:
            self._put(request_id, entry, entry.end)

    def _put(self, request_id: int, entry: _Open, event: Tokens | Ended) -> None:
        """Put what comes of tokens or an end."""
        output = _output(request_id, entry.stream, event)
        if output.finish_reason is not None:
            del self._open[request_id]
            if not isinstance(event, Ended):  # the loop still draws for it
                self._stop((request_id,), output.finish_reason)
        try:
            entry.queue.put(output)
        except Exception:  # of the caller's, who is told when something has come
            _log.exception("the listener of request %d failed", request_id)


def _output(request_id: int, stream: TextStream, event: Tokens | Ended) -> Output:
    """Return what comes of tokens or an end; a failure concerns the text of this choice alone."""
    now = monotonic()
    try:
        return stream.end(event) if isinstance(event, Ended) else stream.push(event, now)
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        _log.exception("the text of request %d failed", request_id)
        return stream.fail(as_exception(error), now)
