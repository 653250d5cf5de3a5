"""One of the n choices of a request, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import maxsize

import numpy as np

from spaninfer_engine.cache.prefix import Linker
from spaninfer_engine.cache.table import SpanTable
from spaninfer_engine.logprobs import TokenLogprobs
from spaninfer_engine.plan import Entry, Growth
from spaninfer_engine.request import FinishReason, Request, TokenIds, TokenLogprob, Usage
from spaninfer_engine.schedule.policy import rank


class Choice:
    """What the scheduler remembers of a choice; only the engine's loop changes it.

        0 ....... sealed ....... done ....... room          done: keys planned to be computed
        | whole spans  |  computed or |  spans taken,       sealed: whole spans with a label
        | with a label |  in flight   |  nothing written    room: tokens that its spans can hold

    `output_ids` are the tokens drawn; where steps are in flight, `done` runs ahead of them.
    """

    __slots__ = (
        "cached_len",
        "done",
        "end_ids",
        "ended",
        "entered",
        "first_token_s",
        "followers",
        "index",
        "is_decoding",
        "last",
        "linker",
        "logits_from",
        "max_output",
        "order",
        "output_ids",
        "priority",
        "prompt_len",
        "prompt_parts",
        "request",
        "request_id",
        "room",
        "rope_len",
        "scheduled_s",
        "sealed",
        "stale_until",
        "tables",
        "target",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        limit: int,
        linker: Linker,
        tables: tuple[SpanTable, ...],
    ) -> None:
        self.request, self.index = request, index
        self.request_id = request.id + index
        self.priority = request.placement.priority
        self.order = (rank(self.priority, request.turn_s), self.request_id)  # smaller runs first
        self.prompt_len = len(request.prompt_ids)
        self.output_ids: list[int] = []
        self.end_ids = request.end_ids
        self.max_output, self.last = limit - self.prompt_len, limit - 1  # see policy.Pending
        self.done, self.target = 0, self.prompt_len
        self.rope_len = self.prompt_len
        self.linker = linker
        self.tables, self.room, self.sealed = tables, 0, 0
        self.entered = False  # has the runner heard of it?
        self.is_decoding = False  # is `target` computed, and its result here?
        self.stale_until = 0  # results up to this step belong to keys that were given up
        self.prompt_parts: list[TokenLogprobs] = []  # about the prompt, step by step
        asks = request.sampling.prompt_logprobs is not None and index == 0 and self.prompt_len > 1
        self.logits_from = 0 if asks else maxsize
        self.cached_len = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.ended = False
        self.followers: tuple[Choice, ...] = ()  # enter when this one has computed the prompt

    @property
    def seed(self) -> int:
        """The seed of this choice's draws."""
        return (self.request.seed + self.index) % 2**64

    @property
    def num_computed(self) -> int:
        """Leading positions whose keys are computed and can be relied on, once it decodes."""
        return self.prompt_len + len(self.output_ids) - 1

    def ids(self, start: int, stop: int) -> TokenIds:
        """Return the tokens known of positions [start, stop)."""
        prompt_len = self.prompt_len
        prompt = self.request.prompt_ids[start:stop]
        if stop <= prompt_len:
            return prompt
        drawn = np.array(self.output_ids[max(start - prompt_len, 0) : stop - prompt_len], np.int64)
        return drawn if start >= prompt_len else np.concatenate([prompt, drawn])

    def prompt_logprobs(self) -> Sequence[TokenLogprob]:
        """Return what is known of the log-probabilities of the prompt's tokens, from its second."""
        return TokenLogprobs.joined(self.prompt_parts) if self.prompt_parts else ()

    def rotate_anew(self) -> None:
        """Have the keys, which were given up, computed for the length it has grown to."""
        self.rope_len = self.target
        self.linker = self.linker.anew(self.rope_len)

    def entry(self) -> Entry:
        """Return how the runner hears of this choice."""
        request = self.request
        return Entry(
            request_id=self.request_id,
            token_ids=request.prompt_ids,
            sampling=request.sampling,
            seed=self.seed,
            banned=request.banned,
            end_ids=tuple(sorted(self.end_ids)),
        )

    def growths(self) -> list[Growth]:
        """Return what the runner has not been told of the span tables, once."""
        return [
            Growth(self.request_id, group, *news)
            for group, table in enumerate(self.tables)
            if (news := table.news()) is not None
        ]

    def usage(self, finished_s: float | None) -> Usage:
        """Return the counts and times of this choice, which ends now."""
        return Usage(
            prompt_len=self.prompt_len,
            output_len=len(self.output_ids),
            cached_len=self.cached_len,
            arrived_s=self.request.arrived_s,
            scheduled_s=self.scheduled_s,
            first_token_s=self.first_token_s,
            finished_s=finished_s,
        )


@dataclass(frozen=True, slots=True)
class Ended:
    """A choice that produces nothing more, and the token that came with the end, if one did."""

    choice: Choice
    reason: FinishReason
    usage: Usage
    token: Drawn | None = None
    matched: int | None = None
    error: Exception | None = None


Drawn = tuple[Choice, int, TokenLogprob | None]
"""A choice, the token it drew, and its log-probability where asked."""


@dataclass(frozen=True, slots=True)
class Events:
    """What became of the choices, in order: tokens first, then ends."""

    drawn: list[Drawn]
    ended: list[Ended]
