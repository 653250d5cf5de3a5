"""A device that computes steps by itself: what the host tells it, and how it answers.

The device remembers requests in rows: tokens, span tables, and how tokens are drawn. A step is
launched with a few numbers per slice; tokens that it draws are kept in the rows, where the next
step finds them, and come to the host later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.step import Rotation, Run

Words = NDArray[np.int32]
Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """How the device draws a request's tokens; a temperature of 0 takes the likeliest.

    Penalties and n-grams look at the tokens known: the first `prompt_len` are the prompt.
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

    @property
    def revises(self) -> bool:
        """Are logits changed by what was drawn before?"""
        return bool(
            self.repetition_penalty != 1
            or self.presence_penalty
            or self.frequency_penalty
            or self.no_repeat_ngram
        )


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

    @property
    def is_decode(self) -> bool:
        """Has every slice one row, whose logits are wanted?"""
        return self.num_decodes == self.slices == self.wanted


class Launched(Protocol):
    """A step under way."""

    def token_ids(self) -> Words:
        """Wait for the step; return the id per wanted row [W].

        It means something where the device draws the slice's token. -1: every token is masked,
        -2: the largest logit is infinite, -3: there is a NaN.
        """
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
        """Begin the step; returns at once."""
        ...

    def close(self) -> None:
        """Wait for what is under way and give the memory back; harmless when repeated."""
        ...
