"""The plan of one step, written by the scheduler and read by the runner, and its result.

The runner keeps the tokens of every sequence that has entered, so a plan names positions, not
ids: a position below the prompt's length holds an id that came with `NewSequence`, a later one the
token that an earlier step sampled. A plan can therefore be written before the step in front of it
has finished. Everything here is data that can be printed, kept and replayed, and sent to other
processes, but for the mask function and the compiled grammar of a `NewSequence`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_engine.request.logprobs import LogprobAt, TokenLogprobs
from spaninfer_engine.request.media import PromptMedia, TowerInput
from spaninfer_engine.request.request import Grammar, SamplingParams, TokenIds


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """Limits on the size of steps: constants of a backend, measured on its hardware."""

    step_tokens: int  # of one step, where nothing else is requested
    mixed_prompt_tokens: int  # of prompts in a step that has decodes
    prompt_logits: int  # positions of prompts whose logits one step computes
    prompt_tile: int = 1  # tokens of prompts beside many decodes come in multiples of this many
    pause_tokens: int = 0  # of prompts for which decodes wait when many requests begin; 0: never
    lone_prompt_tokens: int = 0  # of prompts in a step without decodes; 0: all of `step_tokens`
    short_tokens: int = 0  # longer answers and prompts wait their turn beside others'; 0: never
    text_tokens: int = 0  # of an encoder's step; 0: as many as `step_tokens`
    texts: int = 0  # that an encoder's step may have, however few requests may run

    @property
    def largest_step(self) -> int:
        """The most tokens of prompts that one step computes."""
        return max(self.step_tokens, self.pause_tokens)


class Slice(NamedTuple):
    """The positions [start, stop) of one sequence that one step computes.

    A tuple, not a dataclass: 256 of them are made every step (0.25 µs each instead of 0.9).
    """

    seq_id: int
    start: int
    stop: int
    logits_from: int  # logits are computed for positions [logits_from, stop)
    samples: bool  # is the token at position `stop` sampled from the last row?
    rope_seq_len: int = 0  # where frequencies depend on length: the request's, when its keys began

    @property
    def num_tokens(self) -> int:
        """Length of the slice."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class NewSequence:
    """A sequence that is new to the runner."""

    seq_id: int
    token_ids: TokenIds  # the prompt
    sampling: SamplingParams
    seed: int
    banned: tuple[tuple[int, ...], ...] = ()  # bad words as token ids
    end_ids: tuple[int, ...] = ()  # masked until min_tokens
    grammar: Grammar | None = None
    second_from: int | None = None  # of a pair of texts: the position where the second one begins
    media: PromptMedia | None = None

    @property
    def early_end_ids(self) -> tuple[int, ...]:
        """The end ids that samplers mask until min_tokens; a grammar's matcher does it itself."""
        return () if self.grammar is not None else self.end_ids


class TableUpdate(NamedTuple):
    """Span numbers of a sequence's table in one cache group, from index `first` on."""

    seq_id: int
    group: int
    first: int
    spans: tuple[int, ...]


class SpanCopy(NamedTuple):
    """A copy of one span's content between the KV cache and a slot of host memory."""

    group: int
    span: int
    slot: int
    to_host: bool  # else from the slot into the span


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Slices in batch order, decodes first, and what changed since the last plan.

    There is at least one slice.
    """

    number: int
    slices: tuple[Slice, ...]
    new_sequences: tuple[NewSequence, ...] = ()
    table_updates: tuple[TableUpdate, ...] = ()
    finished: tuple[int, ...] = ()  # ids of sequences that the runner may forget before this step
    dropped_encodings: tuple[bytes, ...] = ()  # digests; their memory is needed
    encode: tuple[
        TowerInput, ...
    ] = ()  # media that towers begin to see before the step, and whose rows stay
    encode_steps: int = 0  # that share what towers see, this one included; 0: they see nothing

    @property
    def num_tokens(self) -> int:
        """Tokens in the whole step."""
        return sum(part.stop - part.start for part in self.slices)


@dataclass(frozen=True, slots=True)
class StepResult:
    """The results of a step, in the order of the plan's slices.

    `tokens[i]` is the token that slice i sampled, or None if it samples none. The logprobs hold an
    entry only for requests that asked; prompt log-probabilities come for the slice's positions
    that have logits, each about the token that follows.
    """

    number: int
    tokens: tuple[int | None, ...]
    logprobs: dict[int, LogprobAt]  # by sequence id
    prompt_logprobs: dict[int, TokenLogprobs]  # by request id
    failed: dict[int, Exception]  # requests at fault: NaN logits, a grammar that ran dry
    failed_encodings: frozenset[bytes] = frozenset()  # digests of media that towers failed on

    @classmethod
    def of_none(
        cls, plan: StepPlan, error: Exception, failed_encodings: frozenset[bytes] = frozenset()
    ) -> StepResult:
        """Return the result of a step that was not computed: all its requests fail."""
        failed = {part.seq_id: error for part in plan.slices}
        nothing = (None,) * len(plan.slices)
        return cls(plan.number, nothing, {}, {}, failed, failed_encodings)
