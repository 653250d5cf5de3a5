"""A sequence: one of the n choices of a request, and its progress."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from sys import maxsize

import numpy as np

from spaninfer_engine.cache.prefix import SpanHasher
from spaninfer_engine.cache.state_table import StateTable
from spaninfer_engine.cache.table import SpanTable
from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.media import MediaRun
from spaninfer_engine.request.request import (
    FinishReason,
    Request,
    SamplingParams,
    TokenIds,
    TokenLogprob,
    Usage,
)
from spaninfer_engine.schedule.policy import sort_key
from spaninfer_engine.step.plan import NewSequence, Slice, TableUpdate


class SequenceState:
    """The state of one sequence (a choice of the API); only the engine's loop changes it.

        0 .... published ... scheduled .. capacity   num_published_spans: whole spans with a hash
        | whole spans | computed or | spans taken,   num_scheduled: positions planned or computed
        | with a hash | in flight   | not written    capacity: tokens that its spans can hold

    `output_ids` are the tokens sampled; with steps in flight, `num_scheduled` runs ahead of them.
    """

    __slots__ = (
        "cached_len",
        "capacity",
        "client",
        "discard_until_step",
        "encoded_until",
        "end_ids",
        "ended",
        "first_token_s",
        "followers",
        "hasher",
        "index",
        "is_decoding",
        "is_known_to_runner",
        "logits_from",
        "max_output",
        "max_pos",
        "media_runs",
        "num_published_spans",
        "num_scheduled",
        "order",
        "output_ids",
        "prefill_end",
        "priority",
        "prompt_len",
        "prompt_parts",
        "request",
        "rope_seq_len",
        "scheduled_s",
        "seq_id",
        "tables",
        "uncut",
    )

    def __init__(
        self,
        request: Request,
        index: int,
        *,
        limit: int,
        hasher: SpanHasher,
        tables: tuple[SpanTable | StateTable, ...],
    ) -> None:
        self.request, self.index = request, index
        self.seq_id = request.id + index
        self.priority, self.client = request.placement.priority, request.placement.client
        # smaller runs first
        self.order = (sort_key(self.priority, request.fair_start_s), self.seq_id)
        self.prompt_len = len(request.prompt_ids)
        self.output_ids: list[int] = []
        self.end_ids = request.end_ids
        self.max_output, self.max_pos = limit - self.prompt_len, limit - 1  # see policy.Schedulable
        self.num_scheduled, self.prefill_end = 0, self.prompt_len
        self.rope_seq_len = self.prompt_len
        media = request.media
        self.media_runs: tuple[MediaRun, ...] = () if media is None else media.runs()
        together = media is not None and media.bidirectional
        runs = self.media_runs if together else ()
        self.uncut: Sequence[tuple[int, int]] = [(run.start, run.stop) for run in runs]
        self.encoded_until = maxsize  # the first position whose media are not encoded
        self.hasher = hasher
        self.tables, self.capacity, self.num_published_spans = tables, 0, 0
        self.is_known_to_runner = False  # was it sent to the runner?
        self.is_decoding = False  # is `prefill_end` reached, and the result here?
        self.discard_until_step = 0  # results up to this step belong to keys that were given up
        self.prompt_parts: list[TokenLogprobs] = []  # about the prompt, step by step
        asks = request.sampling.prompt_logprobs is not None and index == 0 and self.prompt_len > 1
        self.logits_from = 0 if asks else maxsize
        self.cached_len = 0
        self.scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.ended = False
        self.followers: tuple[
            SequenceState, ...
        ] = ()  # enter when this one has computed the prompt

    @property
    def seed(self) -> int:
        """The seed of this sequence's samples."""
        return (self.request.seed + self.index) % 2**64

    @property
    def reports_prompt(self) -> bool:
        """True while log-probabilities of its prompt are requested and not here yet."""
        return self.logits_from != maxsize

    @property
    def sampling(self) -> SamplingParams:
        """The parameters of its request."""
        return self.request.sampling

    @property
    def num_tokens(self) -> int:
        """The number of tokens sampled so far."""
        return len(self.output_ids)

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
        new_tokens = np.array(
            self.output_ids[max(start - prompt_len, 0) : stop - prompt_len], np.int64
        )
        return new_tokens if start >= prompt_len else np.concatenate([prompt, new_tokens])

    def prompt_logprobs(self) -> Sequence[TokenLogprob]:
        """Return what is known of the log-probabilities of the prompt's tokens, from its second."""
        return TokenLogprobs.joined(self.prompt_parts) if self.prompt_parts else ()

    def take_prompt_logprobs(self, part: Slice, entries: TokenLogprobs | None) -> None:
        """Keep the log-probabilities that a slice of the prompt brought, if it had some to bring:
        they begin behind its `logits_from`.
        """
        if not self.reports_prompt:
            return
        num_known = self.logits_from
        if entries is not None:  # after a preemption some come twice
            self.prompt_parts.append(entries[num_known - part.logits_from :])
            num_known += len(self.prompt_parts[-1])
        self.logits_from = maxsize if num_known >= self.prompt_len - 1 else num_known

    def reset_rope(self) -> None:
        """Recompute the keys, whose spans were released, for the current length."""
        self.rope_seq_len = self.prefill_end
        self.hasher = self.hasher.with_rope_seq_len(self.rope_seq_len)

    def new_sequence(self) -> NewSequence:
        """Return the message that introduces this sequence to the runner."""
        request = self.request
        return NewSequence(
            seq_id=self.seq_id,
            token_ids=request.prompt_ids,
            sampling=request.sampling,
            seed=self.seed,
            banned=request.banned,
            end_ids=tuple(sorted(self.end_ids)),
            grammar=request.grammar,
            media=request.media,
        )

    def table_updates(self) -> list[TableUpdate]:
        """Return the changes of the span tables that were not sent to the runner yet, once."""
        return [
            TableUpdate(self.seq_id, group, *update)
            for group, table in enumerate(self.tables)
            if (update := table.take_update()) is not None
        ]

    def usage(self, finished_s: float | None) -> Usage:
        """Return the counts and times of this sequence, which ends now."""
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
    """A sequence that produces nothing more, and the token that came with the end, if one did."""

    seq: SequenceState
    reason: FinishReason
    usage: Usage
    token: NewToken | None = None
    matched: int | None = None
    error: Exception | None = None


NewToken = tuple[SequenceState, int, LogprobAt | None]
"""A sequence, the token sampled for it, and its log-probability where asked."""


@dataclass(frozen=True, slots=True)
class Events:
    """Changes of sequences since the last call, in order: tokens first, then ends."""

    new_tokens: list[NewToken]
    ended: list[Ended]
