"""Events to outputs: written by the engine loop while a device computes, or by the output thread.

The interpreter runs one thread at a time, so what the output thread writes is taken from the loop,
and while a round lasts, the loop cannot launch a step. So rounds are short, and the thread rests
behind those that leave something. Where a device computes by itself, the loop writes instead, for
as long as it would wait: a thread would take its turn at the next call of the driver, and every
call beside it waited 0.1 ms (H200's host, 2026-11-24). An output costs the same for one token as
for many: what comes for a sequence before its turn is one output. With few requests, every token is
written as it comes.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from threading import Lock, Thread, current_thread
from time import monotonic, sleep, thread_time
from typing import TypeAlias

from spaninfer_engine.errors import as_exception
from spaninfer_engine.output.handle import ResultQueue
from spaninfer_engine.output.relay import TokenBatch, TokenRelay
from spaninfer_engine.output.text_stream import End, TextStream, Token
from spaninfer_engine.request.logprobs import LogprobAt
from spaninfer_engine.request.request import FinishReason, Output
from spaninfer_engine.schedule.sequence import Ended, Events, NewToken, SequenceState
from spaninfer_engine.text.tokenizer import Tokenizer

_log = logging.getLogger(__name__)

# Time of the writer's own, not of waiting for a CPU: on a busy machine it rested 3 times as long as
# it had waited, and streams with it.
ROUND_S = 0.3e-3  # 25 outputs; with all of 256 in a round, steps of 1.5 ms waited 3 ms for it
REST = 3.0  # times as long as the round before: the writer has a quarter of the time, at the most

READ_AT_END = 64  # tokens that wait in front of an end, so that no end takes long

Stop = Callable[[tuple[int, ...], FinishReason], None]
"""Tells the loop that sequences need no more tokens, and why; returns at once."""


@dataclass(frozen=True, slots=True)
class RequestStarted:
    """A request was admitted: the outputs of its sequences go to this queue."""

    seqs: tuple[SequenceState, ...]
    queue: ResultQueue | TokenRelay


@dataclass(frozen=True, slots=True)
class EngineFailed:
    """Nothing more will come: every sequence that has not ended ends with this error."""

    error: Exception


Message: TypeAlias = RequestStarted | Events | EngineFailed
Tokens: TypeAlias = list[Token]


@dataclass(slots=True)
class _Open:
    """A sequence whose last output has not been put, and what its next ones will hold."""

    seq: SequenceState
    stream: TextStream
    queue: ResultQueue
    is_eager: bool  # are its tokens written as they come?
    tokens: Tokens = field(default_factory=list)
    end: Ended | None = None

    @property
    def is_due(self) -> bool:
        """Should its tokens be written now?"""
        return self.is_eager or len(self.tokens) >= READ_AT_END


@dataclass(frozen=True, slots=True)
class _Relayed:
    """A sequence whose text is made elsewhere."""

    seq: SequenceState
    push: Callable[[int, LogprobAt | None], None]
    end: Callable[[Ended], None]
    batch: TokenBatch
    is_eager: bool


class OutputProcessor:
    """Puts outputs into the queues of requests, in the order of the events.

    Every sequence that was opened gets one last output, and nothing behind it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Stop) -> None:
        self._tokenizer, self._stop = tokenizer, stop
        self._inbox: deque[Message] = deque()
        self._wake: SimpleQueue[bool] = SimpleQueue()  # is there more to come?
        self._writing = Lock()  # over the order of what is written, and `_open`
        self._open: dict[int, _Open] = {}  # by the sequence's request id
        self._due: dict[int, _Open] = {}  # those with something to write, in turn
        self._num_eager = 0  # of those open, and of those relayed
        self._is_awaited = False  # does somebody wait for what `write_until` will write?
        self._written_at = 0.0  # by `write_until`
        self._relayed: dict[int, _Relayed] = {}  # by the sequence's request id
        self._batches = Counter[TokenBatch]()  # of these, and how many of them
        self._failure: Exception | None = None  # what ended the thread
        self._thread = Thread(target=self._work, name="spaninfer-writer", daemon=True)
        self._thread.start()

    @property
    def is_own_thread(self) -> bool:
        """True in the output thread."""
        return current_thread() is self._thread

    def put(self, message: Message, *, here: bool = False) -> None:
        """Take in what happened; return at once. With `here`, the caller writes it when it can."""
        self._inbox.append(message)
        if self._is_relayed_alone(message):  # which costs less than a thread's turn
            self.write()
        elif not self._is_urgent(message):
            return
        elif here:
            self._is_awaited = True
        else:
            self._wake.put(True)

    def write(self) -> None:
        """Write everything that is there."""
        self._write(_never)

    def write_until(self, is_over: Callable[[], bool]) -> None:
        """Write what is awaited until the caller has something else to do; at the least as much as
        the output thread would have since the time before.
        """
        if not self._is_awaited:
            return
        begin = monotonic()
        share = min((begin - self._written_at) / (1 + REST), ROUND_S)
        self._is_awaited = self._write(lambda: is_over() and monotonic() - begin > share)
        self._written_at = monotonic()

    def _is_relayed_alone(self, message: Message) -> bool:
        """Is there nothing to make text of?"""
        if self._open:
            return False
        begins = isinstance(message, RequestStarted) and not isinstance(message.queue, ResultQueue)
        return begins or bool(self._relayed)

    def _is_urgent(self, message: Message) -> bool:
        """Does anybody wait for what this message brings? Asked when it is in the inbox.

        A caller that has counted a sequence as eager then looks into the inbox and finds it there.
        """
        match message:
            case RequestStarted(seqs, queue):
                return _is_eager(seqs[0], queue)
            case Events(_, ended) if not ended:
                return self._num_eager > 0 or len(self._inbox) >= READ_AT_END
        return True

    def close(self) -> None:
        """Write what was put before and end the thread; idempotent."""
        self.write()
        self._wake.put(False)
        self._thread.join()

    def check(self) -> None:
        """Raise what ended the output thread, if that has failed."""
        if self._failure is not None:
            raise self._failure

    def _work(self) -> None:
        try:
            while self._wake.get():
                begin = thread_time()
                while self._write(partial(_is_later, begin + ROUND_S)):
                    sleep((thread_time() - begin) * REST)
                    begin = thread_time()
        except BaseException as error:  # our own fault: nothing more is written here
            self._failure = as_exception(error)
            self._stop((), FinishReason.ERROR)  # wakes the loop, which looks with `check`

    def _write(self, is_over: Callable[[], bool]) -> bool:
        """Write what was put, in whichever thread comes first; return whether something is left
        when the round is over.
        """
        with self._writing:
            while self._inbox:
                self._sort(self._inbox.popleft())
            for batch in self._batches:
                batch.send()
            while self._due:
                seq_id = next(iter(self._due))
                self._write_seq(seq_id, self._due.pop(seq_id))
                if is_over():
                    break
            return bool(self._due)

    def _sort(self, message: Message) -> None:
        """Note what a message brings for each sequence; anything after its last output is lost."""
        match message:
            case RequestStarted(seqs, queue):
                for seq in seqs:
                    self._open_seq(seq, queue)
            case Events(new_tokens, ended):
                self._note_tokens(new_tokens)
                for end in ended:
                    self._note_end(end)
            case EngineFailed(error):
                self._fail_all(error)

    def _note_tokens(self, new_tokens: Sequence[NewToken]) -> None:
        for seq, token, logprob in new_tokens:
            if (entry := self._open.get(seq.seq_id)) is not None:
                entry.tokens.append((token, logprob))
                if entry.is_due:
                    self._due[seq.seq_id] = entry
            elif (relayed := self._relayed.get(seq.seq_id)) is not None:
                try:
                    relayed.push(token, logprob)
                except Exception as error:  # it fails alone
                    self._fail_relayed(relayed, error)

    def _fail_all(self, error: Exception) -> None:
        """End every sequence that has begun and not ended."""
        now = monotonic()
        begun = [entry.seq for entry in self._open.values()]
        for seq in (*begun, *(relayed.seq for relayed in [*self._relayed.values()])):
            self._note_end(Ended(seq, FinishReason.ERROR, seq.usage(now), error=error))

    def _open_seq(self, seq: SequenceState, queue: ResultQueue | TokenRelay) -> None:
        is_eager = _is_eager(seq, queue)
        self._num_eager += is_eager
        if isinstance(queue, ResultQueue):
            stream = TextStream(seq, self._tokenizer)
            self._open[seq.seq_id] = _Open(seq, stream, queue, is_eager)
        else:
            relay, batch = queue.sequence(seq), queue.batch
            self._relayed[seq.seq_id] = _Relayed(seq, relay.push, relay.end, batch, is_eager)
            self._batches[batch] += 1

    def _fail_relayed(self, relayed: _Relayed, error: Exception) -> None:
        """End a sequence whose token cannot be handed on."""
        seq = relayed.seq
        _log.error("the token of request %d cannot be handed on", seq.seq_id, exc_info=error)
        self._note_end(Ended(seq, FinishReason.ERROR, seq.usage(monotonic()), error=error))
        self._stop((seq.seq_id,), FinishReason.ERROR)

    def _note_end(self, end: Ended) -> None:
        entry = self._open.get(end.seq.seq_id)
        if entry is not None and entry.end is None:
            entry.end = end
            self._due[end.seq.seq_id] = entry
        relayed = self._relayed.pop(end.seq.seq_id, None)
        if relayed is not None:
            self._num_eager -= relayed.is_eager
            relayed.end(end)
            self._batches[relayed.batch] -= 1
            if not self._batches[relayed.batch]:
                relayed.batch.send()
                del self._batches[relayed.batch]

    def _write_seq(self, seq_id: int, entry: _Open) -> None:
        """Write all there is of a sequence."""
        tokens, entry.tokens = entry.tokens, []
        if tokens and (entry.end is None or entry.seq.request.sampling.stop):
            self._put(seq_id, entry, tokens, None)
            tokens = []
        if entry.end is not None and seq_id in self._open:
            self._put(seq_id, entry, tokens, entry.end)

    def _put(self, seq_id: int, entry: _Open, tokens: Tokens, end: Ended | None) -> None:
        """Put what comes of tokens, an end, or both."""
        output = output_of(seq_id, entry.stream, tokens, end)
        if output.finish_reason is not None:
            del self._open[seq_id]
            self._num_eager -= entry.is_eager
            if end is None:  # the loop still samples for it
                self._stop((seq_id,), output.finish_reason)
        try:
            entry.queue.put(output)
        except Exception:  # of the caller's listener
            _log.exception("the listener of request %d failed", seq_id)


def _never() -> bool:
    return False


def _is_later(time: float) -> bool:
    """Is it later than this by the time of the thread?"""
    return thread_time() > time


def _is_eager(seq: SequenceState, queue: ResultQueue | TokenRelay) -> bool:
    """Are its tokens looked at as they come? Stop strings are looked for at once."""
    return not queue.is_read_at_end or bool(seq.request.sampling.stop)


def output_of(seq_id: int, stream: TextStream, tokens: Sequence[Token], end: End | None) -> Output:
    """Return what comes of tokens and an end; a failure concerns the text of this sequence."""
    now = monotonic()
    try:
        return stream.push(tokens, now) if end is None else stream.end(end, tokens)
    except BaseException as error:  # a panic of the tokenizers library is no Exception
        _log.exception("the text of request %d failed", seq_id)
        return stream.fail(as_exception(error), now)
