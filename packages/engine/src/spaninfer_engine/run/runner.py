"""A runner computes what a plan says: it keeps the requests' tokens, runs the program, has tokens
drawn, and remembers them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Generic, Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.closing import Closing
from spaninfer_engine.errors import NoMemory
from spaninfer_engine.ops.step import A, SpanCache
from spaninfer_engine.ops.table import Ops
from spaninfer_engine.plan import Entry, Slice, StepPlan, StepResult
from spaninfer_engine.request import SamplingParams, TokenLogprob
from spaninfer_engine.run.claim import Bound
from spaninfer_engine.run.inputs import build
from spaninfer_engine.run.requests import Requests
from spaninfer_engine.run.rotary import Rotary
from spaninfer_engine.spec.nodes import Decoder, ropes

Logits = NDArray[np.float32]
TokenIds = NDArray[np.int32]

_log = logging.getLogger(__name__)


class Draws(Protocol):
    """What draws tokens from logits (run.sample.Sampler); knows every request that entered."""

    def enter(self, entry: Entry) -> None:
        """Remember how a request wants its tokens."""
        ...

    def leave(self, request_id: int) -> None:
        """Forget a request."""
        ...

    def draw(
        self,
        logits: Logits,
        requests: Sequence[int],
        positions: Sequence[int],
        tokens: Sequence[TokenIds],
    ) -> tuple[list[int], dict[int, TokenLogprob], dict[int, Exception]]:
        """Return a token per row of logits[R V], log-probabilities and failures by request id.

        Row i is about position `positions[i]` of request `requests[i]`, whose tokens before that
        position are `tokens[i]`. The token of a request that failed means nothing.
        """
        ...

    def prompt_logprobs(
        self, request_id: int, logits: Logits, next_ids: TokenIds
    ) -> tuple[TokenLogprob, ...]:
        """Return the log-probability of next_ids[i] under logits[i] of logits[rows V]."""
        ...


@dataclass(frozen=True, slots=True)
class _Held(Generic[A]):
    """What takes memory: the program with its weights, the spans, what a backend keeps of steps."""

    bound: Bound[A]
    ops: Ops[A]
    caches: tuple[SpanCache[A], ...]


class Runner(Closing, Generic[A]):
    """Runs plans on one backend, each while its outcome is waited for; owns weights and spans."""

    lookahead = 0

    def __init__(
        self,
        bound: Bound[A],
        ops: Ops[A],
        sampler: Draws,
        decoder: Decoder,
        *,
        span_len: int,
        num_spans: Sequence[int],
        max_len: int,
        max_running: int,
    ) -> None:
        self._sampler = sampler
        self._rotaries = tuple(Rotary(rope) for rope in ropes(decoder))
        self._requests = Requests(
            len(decoder.groups), max_len=max_len, span_len=span_len, num_rows=max_running
        )
        caches = tuple(
            ops.cache(group, count, span_len)
            for group, count in zip(decoder.groups, num_spans, strict=True)
        )
        self._held: _Held[A] | None = _Held(bound, ops, caches)

    def rehearse(self) -> None:
        """Compute a step of one token for nobody: what a first step compiles is compiled now.

        Steps with media call the same kernels. The token's keys and values are written to the first
        span, which is nobody's yet.
        """
        num_groups = len(self._requests.tables)
        requests = Requests(num_groups, max_len=1, span_len=self._requests.span_len, num_rows=1)
        requests.enter(Entry(0, np.zeros(1, np.int32), SamplingParams(), seed=0))
        self._logits([Slice(0, start=0, stop=1, logits_from=0, draws=False, rope_len=1)], requests)

    def start(self, plan: StepPlan) -> Callable[[], StepResult]:
        """Return what computes the plan's slices when it is called."""
        return partial(self.run, plan)

    def run(self, plan: StepPlan) -> StepResult:
        """Compute the plan's slices; return what was drawn.

        Where there is no memory for that, each of its requests fails.
        """
        assert self._held is not None, "the runner is closed"
        ops = self._held.ops
        self._update(plan)
        try:
            logits = self._logits(plan.slices, self._requests)
        except ops.memory_errors as error:
            _log.warning("%r in a step of %d tokens", error, plan.num_tokens)
        else:
            return self._draw(plan, logits)
        # Not where the error is at hand: it would be kept with this one, and with it the tensors.
        return StepResult.of_none(plan, NoMemory(plan.num_tokens, ops.available_bytes()))

    def use_time(self) -> bool:
        """Everything is ready from the start."""
        return False

    def close(self) -> None:
        """Give weights and spans back; harmless when repeated."""
        self._held = None

    def _logits(self, slices: Sequence[Slice], requests: Requests) -> Logits:
        """Compute slices; return the logits [W V] of the rows that they want."""
        assert self._held is not None, "the runner is closed"
        bound, ops, caches = self._held.bound, self._held.ops, self._held.caches
        return ops.to_host(bound.run(build(slices, requests, self._rotaries, ops, caches)))

    def _update(self, plan: StepPlan) -> None:
        for request_id in plan.left:
            self._requests.leave(request_id)
            self._sampler.leave(request_id)
        for entry in plan.entered:
            self._requests.enter(entry)
            self._sampler.enter(entry)
        for growth in plan.grown:
            self._requests.grow(growth)

    def _draw(self, plan: StepPlan, logits: Logits) -> StepResult:
        """Have the last row of every drawing slice drawn; the rows before it are about prompts."""
        drawing: list[Slice] = []
        rows: list[int] = []  # of logits, for each of `drawing`
        prompt_logprobs = {}
        row = 0
        for part in plan.slices:
            request_id, _, stop, logits_from, draws, _ = part
            last = row + stop - logits_from - draws
            if last > row:
                prompt_logprobs[request_id] = self._about_prompt(part, logits[row:last])
            if draws:
                drawing.append(part)
                rows.append(last)
            row = last + draws
        chosen = logits if len(rows) == len(logits) else logits[rows]
        tokens, logprobs, failed = self._draw_rows(drawing, chosen)
        drawn = (tokens.get(part.request_id) for part in plan.slices)
        return StepResult(plan.number, tuple(drawn), logprobs, prompt_logprobs, failed)

    def _draw_rows(
        self, drawing: Sequence[Slice], logits: Logits
    ) -> tuple[dict[int, int], dict[int, TokenLogprob], dict[int, Exception]]:
        """Draw a token per slice, and write it where later steps find it."""
        if not drawing:
            return {}, {}, {}
        ids, _, stops, *_ = zip(*drawing, strict=True)
        known = self._requests.known(ids, stops)
        tokens, logprobs, failed = self._sampler.draw(logits, ids, stops, known)
        self._requests.write(ids, stops, tokens)
        drawn = {
            request_id: token
            for request_id, token in zip(ids, tokens, strict=True)
            if request_id not in failed
        }
        return drawn, logprobs, failed

    def _about_prompt(self, part: Slice, logits: Logits) -> tuple[TokenLogprob, ...]:
        """Return what the sampler says of the tokens that follow positions with logits."""
        first = part.logits_from + 1
        (tokens,) = self._requests.known([part.request_id], [first + len(logits)])
        return self._sampler.prompt_logprobs(part.request_id, logits, tokens[first:])
