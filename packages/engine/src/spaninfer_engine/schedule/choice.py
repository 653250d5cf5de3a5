"""One of the n choices of a request, and how far it has come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from sys import maxsize

from spaninfer_engine.cache.prefix import Linker
from spaninfer_engine.cache.table import SpanTable
from spaninfer_engine.plan import Entry, Growth
from spaninfer_engine.request import FinishReason, Request, TokenLogprob, Usage


class Choice:
    """What the scheduler remembers of a choice; only the engine's loop changes it.

        0 ....... sealed ....... done ....... room          done: keys planned to be computed
        | whole spans  |  computed or |  spans taken,       sealed: whole spans with a label
        | with a label |  in flight   |  nothing written    room: tokens that its spans can hold

    `token_ids` are the tokens known; where steps are in flight, `done` runs ahead of them.
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
        "limit",
        "linker",
        "links",
        "logits_from",
        "order",
        "prompt_len",
        "prompt_logprobs",
        "request",
        "request_id",
        "room",
        "rope_len",
        "scheduled_s",
        "sealed",
        "stale_until",
        "tables",
        "target",
        "token_ids",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        limit: int,
        linker: Linker,
        links: Sequence[bytes],
        tables: tuple[SpanTable, ...],
    ) -> None:
        self.request, self.index = request, index
        self.request_id = request.id + index
        self.order = (request.placement.priority, self.request_id)  # smaller runs first
        self.prompt_len = len(request.prompt_ids)
        self.token_ids = list(request.prompt_ids)
        self.end_ids = request.end_ids
        self.limit, self.last = limit, limit - 1  # see policy.Pending
        self.done, self.target = 0, self.prompt_len
        self.rope_len = self.prompt_len
        self.linker, self.links = linker, list(links)
        self.tables, self.room, self.sealed = tables, 0, 0
        self.entered = False  # has the runner heard of it?
        self.is_decoding = False  # is `target` computed, and its result here?
        self.stale_until = 0  # results up to this step belong to keys that were given up
        self.prompt_logprobs: list[TokenLogprob] = []
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
        return len(self.token_ids) - 1

    def rotate_anew(self) -> None:
        """Have the keys, which were given up, computed for the length it has grown to."""
        self.rope_len = self.target
        self.linker = replace(self.linker, rope_len=self.rope_len)
        self.links.clear()

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
            adapter=request.placement.adapter,
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
            output_len=len(self.token_ids) - self.prompt_len,
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
