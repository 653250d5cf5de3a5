"""The caller's side of a request: a handle to ask and a queue to read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from threading import Condition, Lock
from typing import Protocol

from spaninfer_engine.errors import Unread
from spaninfer_engine.request.logprobs import SampledLogprobs, num_values
from spaninfer_engine.request.request import (
    Completion,
    FinishReason,
    Output,
    Request,
    Status,
    TokenLogprob,
)

# Unread outputs of a choice; beyond that they are merged into one, as at its end. The garbage
# collector looks at each, and a caller who waits for a list of answers would merge them anyway. For
# a long answer the limit grows with it, so that merging takes time in proportion to its length.
_MAX_UNREAD = 64


class ResultQueue:
    """The outputs of a request as they arrive; one reader at a time, in any thread.

    Each element holds everything new of one choice, so a slow reader gets few large ones.
    """

    def __init__(self, num_choices: int, on_finished: Callable[[], None]) -> None:
        self._pending: dict[int, list[Output]] = {}  # by choice, longest waiting first
        self._num_open = num_choices
        self._on_finished = on_finished  # called once, in the engine's thread
        self._is_discarded = False
        self._num_unread = 0  # tokens, and log-probabilities
        self._limit: tuple[int, Callable[[], None]] | None = None
        self._unread: Unread | None = None  # why the rest was dropped
        self._changed = Condition()
        self._num_waiting = 0  # threads
        self._listener: Callable[[], None] | None = None
        self._is_read_at_end = False
        self._has_failed = False

    @property
    def is_finished(self) -> bool:
        """True if every choice has finished."""
        return self._num_open == 0

    def get(self, timeout: float | None = None) -> Output | None:
        """Wait for the next output of any choice; None when everything has been read.

        Raises TimeoutError after `timeout` seconds; Unread if the reader was too slow.
        """
        with self._changed:
            if not self.has_news and not self._wait(lambda: self.has_news, timeout):
                raise TimeoutError(f"nothing new after {timeout} s")
            return self._take()

    def get_nowait(self) -> Output | None:
        """Return the next output; None when everything has been read.

        Raises TimeoutError if there is none yet.
        """
        with self._changed:
            if not self.has_news:
                raise TimeoutError("nothing new yet")
            return self._take()

    def _take(self) -> Output | None:
        """Return what waits longest; to be called with the lock."""
        if self._unread is not None:
            raise self._unread
        if not self._pending:
            return None
        output = merge(self._pending.pop(next(iter(self._pending))))
        self._num_unread -= _weight(output)
        return output

    @property
    def has_news(self) -> bool:
        """Would `get` return, or raise, at once?"""
        return bool(self._pending) or self.is_finished or self._unread is not None

    def __iter__(self) -> Iterator[Output]:
        while (output := self.get()) is not None:
            yield output

    def wait_finished(self, timeout: float | None = None) -> bool:
        """Wait until nothing more will come; False if that takes longer than `timeout` seconds."""
        with self._changed:
            return self._wait(lambda: self.is_finished, timeout)

    def _wait(self, condition: Callable[[], bool], timeout: float | None) -> bool:
        """Wait for a condition; to be called with the lock."""
        self._num_waiting += 1
        try:
            return self._changed.wait_for(condition, timeout)
        finally:
            self._num_waiting -= 1

    def listen(self, listener: Callable[[], None]) -> None:
        """Call `listener`, in the engine's thread, whenever something is due; now, if it is."""
        with self._changed:
            self._listener = listener
            is_due = self.is_due
        if is_due:
            listener()

    def read_at_end(self) -> None:
        """Tell the engine's side that nothing is read before every choice has finished, or one has
        failed: it may put outputs together.
        """
        self._is_read_at_end = True

    @property
    def is_read_at_end(self) -> bool:
        """True after `read_at_end`."""
        return self._is_read_at_end

    @property
    def is_due(self) -> bool:
        """Should its reader read now?"""
        if self._is_read_at_end:
            return self.is_finished or self._has_failed
        return self.has_news

    def limit(self, num_unread: int, stop: Callable[[], None]) -> None:
        """Drop everything and call `stop` when something comes though that many tokens and
        log-probabilities are unread; reading then raises Unread.
        """
        with self._changed:
            self._limit = num_unread, stop

    def discard(self) -> None:
        """Drop what is there and what still comes: it will not be read."""
        with self._changed:
            self._is_discarded = True
            self._pending.clear()

    def put(self, output: Output) -> None:
        """Add what a choice produced; the engine's side."""
        stop = None
        with self._changed:
            if self._limit is not None and self._num_unread > self._limit[0]:
                most, stop = self._limit
                self._limit, self._unread, self._is_discarded = None, Unread(most), True
                self._pending.clear()
            if not self._is_discarded:
                self._num_unread += _weight(output)
                unread = self._pending.setdefault(output.index, [])
                unread.append(output)
                most = max(_MAX_UNREAD, len(unread[0].token_ids) // _MAX_UNREAD)
                if len(unread) >= most or output.finish_reason is not None:
                    unread[:] = [merge(unread)]
            self._num_open -= output.finish_reason is not None
            self._has_failed = self._has_failed or output.finish_reason is FinishReason.ERROR
            if self._num_waiting:
                self._changed.notify_all()
            listener = self._listener if self.is_due else None
        if stop is not None:
            stop()
        if self.is_finished:
            # What stops the request holds what holds this: in such a circle each request's 30
            # objects lay until the garbage collector came, and stopped all for 20 to 60 ms.
            self._limit = None
            self._on_finished()
        if listener is not None:
            listener()


class Progress(Protocol):
    """The progress of one choice, in this process or as far as it is known of another."""

    @property
    def scheduled_s(self) -> float | None:
        """The first time in a step."""
        ...

    @property
    def num_tokens(self) -> int:
        """The number of tokens sampled so far."""
        ...


class RequestHandle:
    """A request that was started."""

    def __init__(
        self,
        request: Request,
        prompt: Sequence[int],
        seqs: Sequence[Progress],
        queue: ResultQueue,
    ) -> None:
        self.request, self.queue = request, queue
        self._prompt, self._seqs = prompt, seqs

    @property
    def id(self) -> int:
        """A number that no other request of the engine has."""
        return self.request.id

    @property
    def prompt_ids(self) -> tuple[int, ...]:
        """The prompt, as it was given."""
        return tuple(self._prompt)

    @property
    def status(self) -> Status:
        """The state of the request."""
        if self.queue.is_finished:
            return Status.FINISHED
        has_begun = any(seq.scheduled_s is not None for seq in self._seqs)
        return Status.RUNNING if has_begun else Status.WAITING

    @property
    def seq_ids(self) -> range:
        """The numbers of its choices."""
        return range(self.id, self.id + self.request.sampling.n)

    @property
    def num_output_tokens(self) -> int:
        """The number of tokens that its choices have sampled so far."""
        return sum(seq.num_tokens for seq in self._seqs)

    def __repr__(self) -> str:
        known = f"prompt of {len(self._prompt)} tokens, n={self.request.sampling.n}"
        return f"<RequestHandle {self.id}: {self.status.value}, {known}>"


class Handles:
    """The handles of an engine's requests that have not finished."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._by_id: dict[int, RequestHandle] = {}

    def add(self, handle: RequestHandle) -> None:
        """Keep the handle of a request, unless that has finished already."""
        with self._lock:
            if not handle.queue.is_finished:
                self._by_id[handle.id] = handle

    def forget(self, request_id: int) -> None:
        """Drop the handle of a request that has finished."""
        with self._lock:
            self._by_id.pop(request_id, None)

    def all(self) -> list[RequestHandle]:
        """Return the handles there are now."""
        with self._lock:
            return list(self._by_id.values())


def _weight(output: Output) -> int:
    """Return how many tokens and log-probabilities an output holds."""
    weight = len(output.token_ids)
    if output.logprobs:
        weight += num_values(output.logprobs)
    if output.prompt_logprobs:
        weight += num_values(output.prompt_logprobs)
    return weight


def merge(outputs: Sequence[Output]) -> Output:
    """Return outputs of one choice, in order, as one."""
    if len(outputs) == 1:
        return outputs[0]
    token_ids: list[int] = []
    texts: list[str] = []
    prompt_logprobs: Sequence[TokenLogprob] = ()
    for output in outputs:
        token_ids += output.token_ids
        texts += _texts(output)
        prompt_logprobs = prompt_logprobs or output.prompt_logprobs
    last = outputs[-1]
    return Output(  # `replace` takes twice as long, of a busy server's every event
        index=last.index,
        token_ids=tuple(token_ids),
        text="".join(texts),
        logprobs=SampledLogprobs.joined([output.logprobs for output in outputs]),
        prompt_logprobs=prompt_logprobs,
        finish_reason=last.finish_reason,
        matched=last.matched,
        error=last.error,
        seed=last.seed,
        usage=last.usage,
        texts=tuple(texts),
    )


def _texts(output: Output) -> tuple[str, ...]:
    """Return the text of each token of an output, and at an end without a token what is left."""
    return output.texts or ((output.text,) if output.token_ids or output.text else ())


def each_token(output: Output) -> Iterator[Output]:
    """Yield an output token by token; what comes once is with the first, the end with the last."""
    texts = output.texts
    if len(texts) < 2:
        yield output
        return
    no_end = replace(output, finish_reason=None, matched=None, error=None, usage=None)
    for at, text in enumerate(texts):
        taken = slice(at, at + 1)
        yield replace(
            output if at == len(texts) - 1 else no_end,
            token_ids=output.token_ids[taken],
            text=text,
            logprobs=output.logprobs[taken],
            prompt_logprobs=() if at else output.prompt_logprobs,
            texts=(),
        )


def complete(handle: RequestHandle) -> list[Completion]:
    """Wait for a request and return its choices in order; raises the error of one that failed."""
    outputs: list[list[Output]] = [[] for _ in handle.seq_ids]
    for output in handle.queue:
        outputs[output.index].append(output)
    wholes = [merge(items) for items in outputs]
    return [_completion(handle.prompt_ids, whole, wholes[0]) for whole in wholes]


def _completion(prompt_ids: tuple[int, ...], whole: Output, first: Output) -> Completion:
    if whole.finish_reason is FinishReason.ERROR:
        assert whole.error is not None
        raise whole.error
    assert whole.finish_reason is not None
    assert whole.usage is not None
    return Completion(
        index=whole.index,
        prompt_ids=prompt_ids,
        token_ids=whole.token_ids,
        text=whole.text,
        logprobs=whole.logprobs,
        prompt_logprobs=first.prompt_logprobs,  # the prompt is computed once, by the first choice
        finish_reason=whole.finish_reason,
        matched=whole.matched,
        seed=whole.seed,
        usage=whole.usage,
    )
