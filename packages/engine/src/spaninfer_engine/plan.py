"""What one step of the engine will do. The scheduler writes it; the runner reads it.

The runner keeps the tokens of every request it was told about, so a plan names positions, not
ids: a position below the prompt's length holds an id that came with `Entry`, a later one the
token that an earlier step drew. A plan can therefore be written before the step in front of it
has finished. Everything here is plain data: it can be printed, sent to other ranks and replayed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_engine.logprobs import TokenLogprobs
from spaninfer_engine.request import SamplingParams, TokenIds, TokenLogprob


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """How steps are cut for a device: constants of a backend, measured on its hardware."""

    step_tokens: int  # of one step, where nothing else is asked for
    mixed_prompt_tokens: int  # of prompts in a step that has decodes
    prompt_logits: int  # positions of prompts whose logits one step computes
    prompt_tile: int = 1  # tokens of prompts beside many decodes come in multiples of so many
    pause_tokens: int = 0  # of prompts for which decodes wait when many requests begin; 0: never


class Slice(NamedTuple):
    """The positions [start, stop) of one request that one step computes.

    A tuple, not a dataclass: 256 of them are made every step (0.25 µs each instead of 0.9).
    """

    request_id: int
    start: int
    stop: int
    logits_from: int  # logits are wanted for positions [logits_from, stop)
    draws: bool  # is the token at position `stop` drawn from the last row?
    rope_len: int = 0  # where frequencies depend on length: the request's, when its keys began

    @property
    def num_tokens(self) -> int:
        """Length of the slice."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True)
class Entry:
    """A request that the runner hears of for the first time."""

    request_id: int
    token_ids: TokenIds  # the prompt
    sampling: SamplingParams
    seed: int
    banned: tuple[tuple[int, ...], ...] = ()  # bad words as token ids
    end_ids: tuple[int, ...] = ()  # masked until min_tokens


class Growth(NamedTuple):
    """Span numbers that a request's table of one cache group holds from index `first` on."""

    request_id: int
    group: int
    first: int
    spans: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Slices in batch order, decodes first, and what changed since the last plan.

    There is at least one slice.
    """

    number: int
    slices: tuple[Slice, ...]
    entered: tuple[Entry, ...] = ()
    grown: tuple[Growth, ...] = ()
    left: tuple[int, ...] = ()  # requests whose state the runner may forget before this step

    @property
    def num_tokens(self) -> int:
        """Tokens in the whole step."""
        return sum(part.stop - part.start for part in self.slices)


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step produced, in the order of the plan's slices.

    `tokens[i]` is the token that slice i drew, or None if it draws none. The logprobs hold an
    entry only for requests that asked; prompt log-probabilities come for the slice's positions
    that have logits, each about the token that follows.
    """

    number: int
    tokens: tuple[int | None, ...]
    logprobs: dict[int, TokenLogprob]  # by request id
    prompt_logprobs: dict[int, TokenLogprobs]  # by request id
    failed: dict[int, Exception]  # requests at fault: NaN logits, a grammar that ran dry

    @classmethod
    def of_none(cls, plan: StepPlan, error: Exception) -> StepResult:
        """Return the result of a step that was not computed: all its requests fail."""
        failed = {part.request_id: error for part in plan.slices}
        return cls(plan.number, (None,) * len(plan.slices), {}, {}, failed)
