"""A device that computes steps by itself: what the host tells it, and how it answers.

The device remembers requests in rows: tokens, span tables, and how tokens are drawn. A step is
launched with a few numbers per slice; tokens that it draws are kept in the rows, where the next
step finds them, and come to the host later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.step import Rotation, Run

Words = NDArray[np.int32]
Floats = NDArray[np.float32]


MOST_LISTED = 1024
"""Words of a request's lists, and as many biases: 2 MB for 256 requests. OpenAI's API takes 300."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How the device draws a request's tokens; a temperature of 0 takes the likeliest.

    Penalties, n-grams and bad words look at the tokens known: the first `prompt_len` are the
    prompt. `biases` are added to the logits of `bias_ids`; `end_ids` are banned before position
    `end_until`. With `logprobs`, the device reports log-probabilities of the model's logits: of the
    token and of so many likeliest ones.
    """

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int
    prompt_len: int
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram: int = 0
    bias_ids: tuple[int, ...] = ()
    biases: tuple[float, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    end_ids: tuple[int, ...] = ()
    end_until: int = 0
    logprobs: int | None = None

    @property
    def revises(self) -> bool:
        """Are the model's logits changed before a token is drawn?"""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram
            or self.num_listed
        )

    @property
    def num_listed(self) -> int:
        """Words that its lists take in a device's memory; devices have room for MOST_LISTED."""
        words = len(self.bad_words) + 1 + sum(map(len, self.bad_words)) if self.bad_words else 0
        return len(self.bias_ids) + words + len(self.end_ids)


class Columns(Protocol):
    """Numbers of a step's slices, an entry each, in memory that the device reads.

    rows, starts and stops[C], the position that the device keeps a drawn token at or -1, draws[C];
    where the rows of each slice begin, bounds[C + 1]; where its wanted rows begin among those
    whose logits are wanted, wanted[C + 1]: the last rows of the slice.
    """

    @property
    def rows(self) -> Words:
        """[C] where each request is remembered."""
        ...

    @property
    def starts(self) -> Words:
        """[C] the first position."""
        ...

    @property
    def stops(self) -> Words:
        """[C] the position behind the last."""
        ...

    @property
    def draws(self) -> Words:
        """[C] the position that the drawn token is kept at; -1 where the device draws none."""
        ...

    @property
    def bounds(self) -> Words:
        """[C + 1] where the rows of each slice begin in the step."""
        ...

    @property
    def wanted(self) -> Words:
        """[C + 1] where the wanted rows of each slice begin among all wanted ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """How large a step is: its columns say the rest."""

    slices: int
    rows: int
    wanted: int
    max_len: int  # the largest of stops
    num_decodes: int  # leading slices of one row each
    prefills: tuple[Run, ...]  # the others; `request` is the row
    rotations: tuple[Rotation[Floats] | None, ...]  # where the device has no table of its own
    logits: Sequence[int]  # wanted rows whose logits the host will ask for
    revises: bool = False  # does the wish of any request revise logits?
    reports: bool = False  # does the wish of any request ask for log-probabilities?

    @property
    def is_decode(self) -> bool:
        """Has every slice one row, whose logits are wanted?"""
        return self.num_decodes == self.slices == self.wanted


class Reports(NamedTuple):
    """Log-probabilities per wanted row [W]; they mean something where a wish asks for them.

    That of the drawn token, its rank (1 is the likeliest), and the likeliest tokens with theirs,
    [W n], the first of which the wish asks for; -1 where fewer tokens are possible.
    """

    chosen: Floats
    ranks: Words
    top_ids: Words
    top: Floats


class Launched(Protocol):
    """A step under way."""

    def token_ids(self) -> Words:
        """Wait for the step; return the id per wanted row [W].

        It means something where the device draws the slice's token. -1: every token is masked,
        -2: the largest logit is infinite, -3: there is a NaN.
        """
        ...

    def reports(self) -> Reports:
        """Wait for the step; return the reports that the launch asked for."""
        ...

    def logits(self) -> Floats:
        """Wait for the step; return the logits [n V] that the launch asked for."""
        ...


class Device(Protocol):
    """Computes steps in the order of their launches; at most two are under way.

    What is written before one step arrives in any order, so it must not overlap.
    """

    num_rows: int

    def write_tokens(self, row: int, first: int, token_ids: Words) -> None:
        """Have tokens of a row known before the next step, from position `first` on."""
        ...

    def write_spans(self, row: int, group: int, first: int, spans: Words) -> None:
        """Have span numbers in a row's table before the next step, from index `first` on."""
        ...

    def write_wish(self, row: int, wish: Wish) -> None:
        """Have the row's tokens drawn in this way from the next step on."""
        ...

    def columns(self) -> Columns:
        """Return the columns of the next step, to be filled before its launch."""
        ...

    def launch(self, launch: Launch) -> Launched:
        """Begin the step; returns at once.

        Raises NoMemory where the device lacks it. The step does not take place then, and what was
        written before it may be lost; other steps may follow.
        """
        ...

    def use_time(self) -> bool:
        """Make one thing ready that a step may need, while none is under way, in less than 0.1 s;
        return whether there was one.
        """
        ...

    def close(self) -> None:
        """Wait for what is under way and give the memory back; harmless when repeated."""
        ...
