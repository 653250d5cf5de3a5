"""Which steps are captured as graphs, and how a step is padded to one. Pure.

A captured step has room for so many decodes, then so many prompts, whose rows share a number:

    slices   decodes | padding | prompts | empty ones
    rows     one each, padding included  | prompts' rows | padding
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from operator import sub
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.ops.device import Columns, Launch
from spaninfer_engine.ops.step import Run
from spaninfer_engine.plan import BESIDE_DECODES

Number = TypeVar("Number", np.int32, np.float32)

MOST_DECODES = 256  # larger steps take milliseconds, in which the host is done long ago
PROMPTS = (1, 16)
# Products of 7B take as long for 1000 rows as for 1024, whose tiles they fill in part.
PROMPT_ROWS = (32, *range(64, 1024, 64), *range(1024, 2048, 128), 2048, 2560, 3072)
# Alone, prompts are what is missing behind whole spans, multiples of 32 rows: 416 of them take 294
# us a layer, 448 take 303 (7B, H200, 2026-11-22).
_ALONE_ROWS = tuple(sorted({*PROMPT_ROWS, *range(288, 512, 64)}))
_STARTED = (64,)  # decodes beside prompts, and the most: forms of others come when there is time

# Launching the operators of a layer one by one takes the host so long (H200's host, 0.5B: 4.5 ms
# for 24 layers, 2026-11-21), and a GPU like that computes so many operations meanwhile.
_LAYER_S = 190e-6
_OPERATIONS_PER_S = 500e12
_ALONE = 1024


@dataclass(frozen=True, slots=True)
class Form:
    """How large a captured step is: the decodes it has room for, the prompts and all their rows.

    Where it `revises` logits, it holds what penalties need besides.
    """

    decodes: int
    prompts: int = 0
    prompt_rows: int = 0
    revises: bool = False

    @property
    def num_rows(self) -> int:
        """Rows that a step of this form computes."""
        return self.decodes + self.prompt_rows

    def launch(self, num_rotations: int) -> Launch:
        """Return the launch that is captured; what its slices are is read from the columns."""
        return Launch(
            slices=self.decodes + self.prompts,
            rows=self.num_rows,
            wanted=self.decodes + self.prompts,
            max_len=0,
            num_decodes=self.decodes,
            prefills=(Run(0, 0, 0, 0, 0),) * self.prompts,
            rotations=(None,) * num_rotations,
            logits=(),
            revises=self.revises,
        )


class Forms:
    """The forms for steps of up to `requests` slices; with prompts alone, of up to so many rows."""

    def __init__(self, requests: int, most_prompt_rows: int) -> None:
        most = min(requests, MOST_DECODES)
        self._decodes = _sizes(most)
        self._started = (*(n for n in _STARTED if n < most), most)
        self._beside_prompts = (0, *(n for n in (16, 64, 128, 192) if n < most), most)
        self._alone = tuple(rows for rows in _ALONE_ROWS if rows <= most_prompt_rows)
        self._beside = tuple(rows for rows in PROMPT_ROWS if rows <= BESIDE_DECODES)
        if not self._alone:
            self._beside = ()

    @cached_property
    def at_start(self) -> tuple[Form, ...]:
        """The forms that an engine under load needs, and the largest of all; most rows first."""
        forms = [
            *(Form(count) for count in self._decodes),
            *(Form(n, PROMPTS[-1], rows) for n in self._started for rows in self._beside),
            *(Form(0, PROMPTS[-1], rows) for rows in self._alone[-1:]),
        ]
        return tuple(sorted(forms, key=lambda form: form.num_rows, reverse=True))

    @cached_property
    def others(self) -> tuple[Form, ...]:
        """All other forms that revise nothing."""
        few, many = PROMPTS[0], PROMPTS[-1]
        forms = [
            Form(decodes, prompts, rows)
            for decodes, prompts in ((0, few), *((n, many) for n in self._beside_prompts))
            for rows in (self._beside if decodes else self._alone)
        ]
        return tuple(form for form in forms if form not in self.at_start)

    def find(self, launch: Launch, columns: Columns) -> Form | None:
        """Return the smallest form that a step fits into; None if there is none."""
        if launch.is_decode:
            decodes = _least(launch.slices, self._decodes)
            return None if decodes is None else Form(decodes, revises=launch.revises)
        decodes = _least(launch.num_decodes, self._beside_prompts)
        rooms = PROMPTS[-1:] if decodes else PROMPTS  # empty ones are lost among many rows
        prompts = _least(launch.slices - launch.num_decodes, rooms)
        sizes = self._beside if decodes else self._alone
        rows = _least(launch.rows - launch.num_decodes, sizes)
        if decodes is None or prompts is None or rows is None:
            return None
        if not _is_plain(launch, columns):
            return None
        return Form(decodes, prompts, rows, launch.revises)

    def stand_ins(self, form: Form) -> tuple[Form, ...]:
        """Return the forms of the start that serve a step of this form as well, smallest first."""
        rows = _least(form.prompt_rows, self._beside)
        if not form.prompts or rows is None:
            return ()
        return tuple(
            replace(form, decodes=n, prompts=PROMPTS[-1], prompt_rows=rows)
            for n in self._started
            if n >= form.decodes
        )


def most_prompt_rows(layers: int, parameters: int) -> int:
    """Return how many rows of prompts alone a form may have.

    As many as a model computes while the host would launch its layers one by one, and 1024: those
    gain 0.3 to 1 ms of 12 to 25 (7B, H200, 2026-11-21), 2048 lost 2 of 46 and 4000 1 of 84.

    >>> most_prompt_rows(24, 494_000_000), most_prompt_rows(28, 7_600_000_000)
    (2307, 1024)
    """
    rows = int(layers * _LAYER_S * _OPERATIONS_PER_S / (2 * parameters))
    return max(rows, _ALONE)


def pad(columns: Columns, launch: Launch, form: Form) -> Gap:
    """Rewrite the columns of a step as those of the form that it fits into; return the gap."""
    first, last = launch.num_decodes, launch.slices
    shift = form.decodes - first
    begin, end, stop = form.decodes, last + shift, form.decodes + form.prompts
    for column in (columns.rows, columns.starts, columns.stops, columns.draws):
        column[begin:end] = column[first:last].copy()
    for bounds in (columns.bounds, columns.wanted):
        bounds[begin : end + 1] = bounds[first : last + 1] + shift
        bounds[first:begin] = np.arange(first, begin)
        bounds[end + 1 : stop + 1] = bounds[end]
    for part in (slice(first, begin), slice(end, stop)):
        columns.rows[part] = columns.draws[part] = -1
        columns.starts[part] = columns.stops[part] = 0
    return Gap(first, shift)


@dataclass(frozen=True, slots=True)
class Gap:
    """Wanted rows from number `first` on lie `shift` rows later in the step that was padded."""

    first: int = 0
    shift: int = 0

    def place(self, rows: Sequence[int]) -> list[int]:
        """Return where wanted rows lie."""
        return [row + self.shift if row >= self.first else row for row in rows]

    def close(self, numbers: NDArray[Number]) -> NDArray[Number]:
        """Return numbers of all wanted rows without those between."""
        if not self.shift:
            return numbers
        return np.concatenate([numbers[: self.first], numbers[self.first + self.shift :]])


def _is_plain(launch: Launch, columns: Columns) -> bool:
    """Is one row of every decode wanted and at most one of every prompt, and are there no angles
    of the host's?
    """
    bounds = columns.wanted[: launch.slices + 1].tolist()
    wanted = list(map(sub, bounds[1:], bounds))
    are_few = all(number == 1 for number in wanted[: launch.num_decodes]) and max(wanted) <= 1
    return are_few and not any(launch.rotations)


def _least(number: int, sizes: Sequence[int]) -> int | None:
    """Return the first size, ascending, that is at least `number`; None if there is none."""
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None


def _sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of decodes that are captured, ascending, up to `most`.

    1, 2, 4, then multiples of 8 to 64, of 16 to 128 and of 32 beyond: padding adds at most a
    quarter of the rows from 64 on, where rows begin to cost time.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, MOST_DECODES + 1, 32)]
    return (*(size for size in sizes if size < most), most)
