"""Shapes of steps that are captured as CUDA graphs, and how a step is padded to one. Pure.

A captured step has room for some decodes, then for some prompts, whose tokens share a number:

    slices   decodes | padding | prompts | empty ones
    tokens   one each, padding included  | prompts' tokens | padding
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from spaninfer_engine.backends.cuda.graphs.sampling import PLAIN, SamplingLaunches
from spaninfer_engine.step.batch import Batch

Number = TypeVar("Number", np.int32, np.float32)

MAX_DECODES = 256  # larger steps take milliseconds, in which the host is done long ago
PROMPTS = (1, 16)  # rooms for prompts; more of them have the next, which are captured for few sizes
_MANY_PROMPTS = (64, 256)
# GEMMs of 7B take as long for 1000 rows as for 1024, whose tiles they fill in part.
PROMPT_TOKENS = (32, *range(64, 1024, 64), *range(1024, 2048, 128), 2048, 2560, 3072)
# Of steps with log-probabilities of prompts. Launched one by one they take the host 4 to 8 ms, in
# which a GPU computes 2048 tokens of 0.5B.
_OPEN_TOKENS = tuple(range(512, 2049, 512))
# Alone, prompts are what is missing behind whole spans, multiples of 32 rows: 416 of them take 294
# us a layer, 448 take 303 (7B, H200, 2026-11-22).
_ALONE_TOKENS = tuple(sorted({*PROMPT_TOKENS, *range(288, 512, 64)}))
_STARTED = (64,)  # decodes beside prompts, and the most: graphs of others come when there is time
# Where every client asks for a few tokens, a step has up to 200 short prompts; launched one by one,
# its operators were a quarter of such a request's time in the engine (H200, 0.5B, 2026-11-24).
_MANY_TOKENS = (128, 256, 384, 512, 768, 1024, 1536, 2048)
_MANY_TOKENS_STARTED = (512, 2048)

# Launching the operators of a layer one by one takes the host so long (H200's host, 0.5B: 4.5 ms
# for 24 layers, 2026-11-21), and a GPU like that computes this many operations meanwhile.
_LAYER_S = 190e-6
_OPERATIONS_PER_S = 500e12
_ALONE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class StepShape:
    """Sizes of a step's arrays, and its sampling; None where other launches sample."""

    num_slices: int
    num_tokens: int
    num_logits: int
    num_decodes: int  # leading slices of one token
    sampling: SamplingLaunches | None = PLAIN

    @classmethod
    def of(cls, batch: Batch, sampling: SamplingLaunches | None) -> StepShape:
        """Return the shape of a batch as it is."""
        return cls(
            num_slices=batch.num_slices,
            num_tokens=batch.num_tokens,
            num_logits=batch.num_logits,
            num_decodes=batch.num_decodes,
            sampling=sampling,
        )


@dataclass(frozen=True, slots=True)
class GraphShape:
    """The shape of a captured step: room for decodes, for prompts, and for all their tokens.

    The graph ends with `sampling`; where that is None, with the logits. An open one (`is_open`)
    stops behind the attention of the last layer, since the rest is computed for tokens with logits
    only: any number of tokens may have them.
    """

    decodes: int
    prompts: int = 0
    prompt_tokens: int = 0
    sampling: SamplingLaunches | None = PLAIN
    is_open: bool = False

    @classmethod
    def open(cls, decodes: int, prompt_tokens: int) -> Self:
        """Return the shape of steps that want logits of many tokens of their prompts."""
        return cls(decodes, PROMPTS[-1], prompt_tokens, sampling=None, is_open=True)

    @property
    def num_tokens(self) -> int:
        """Tokens that a step of this shape computes."""
        return self.decodes + self.prompt_tokens

    @property
    def step(self) -> StepShape:
        """The step that is captured; every slice has logits for one token."""
        return StepShape(
            num_slices=self.decodes + self.prompts,
            num_tokens=self.num_tokens,
            num_logits=self.decodes + self.prompts,
            num_decodes=self.decodes,
            sampling=self.sampling,
        )


class GraphShapes:
    """The shapes for steps of up to `requests` slices.

    Prompts alone have up to `max_prompt_tokens`, beside decodes up to `mixed_prompt_tokens`; more
    than 16 of them, or any with logits of many tokens, up to `many_prompt_tokens` of these.
    """

    def __init__(
        self,
        requests: int,
        max_prompt_tokens: int,
        mixed_prompt_tokens: int,
        many_prompt_tokens: int = 0,
    ) -> None:
        most = min(requests, MAX_DECODES)
        self._decodes = _sizes(most)
        self._started = (*(n for n in _STARTED if n < most), most)
        self._beside_prompts = (0, *(n for n in (16, 64, 128, 192) if n < most), most)
        self._alone = tuple(tokens for tokens in _ALONE_TOKENS if tokens <= max_prompt_tokens)
        self._beside = tuple(tokens for tokens in PROMPT_TOKENS if tokens <= mixed_prompt_tokens)
        if not self._alone:
            self._beside = ()
        self._many = _many_prompts(requests)
        sizes = tuple(tokens for tokens in self._beside if tokens <= many_prompt_tokens)
        self._of_many = tuple(tokens for tokens in sizes if tokens in _MANY_TOKENS)
        self._of_many_started = tuple(
            tokens for tokens in _MANY_TOKENS_STARTED if tokens in self._of_many
        )
        self._open = tuple(tokens for tokens in sizes if tokens in _OPEN_TOKENS)

    @cached_property
    def at_start(self) -> tuple[GraphShape, ...]:
        """The shapes that an engine under load needs, and the largest; most tokens first."""
        shapes = [
            *(GraphShape(count) for count in self._decodes),
            *(GraphShape(n, PROMPTS[-1], tokens) for n in self._started for tokens in self._beside),
            *(GraphShape(0, PROMPTS[-1], tokens) for tokens in self._alone[-1:]),
            *(
                GraphShape(n, most, tokens)
                for n in self._started
                for most in self._many[-1:]
                for tokens in self._of_many_started
            ),
        ]
        return tuple(
            sorted(shapes, key=lambda shape: (shape.num_tokens, shape.prompts), reverse=True)
        )

    @cached_property
    def others(self) -> tuple[GraphShape, ...]:
        """All other shapes with plain sampling."""
        few, many = PROMPTS[0], PROMPTS[-1]
        shapes = [
            GraphShape(decodes, prompts, tokens)
            for decodes, prompts in ((0, few), *((n, many) for n in self._beside_prompts))
            for tokens in (self._beside if decodes else self._alone)
        ]
        shapes += [
            GraphShape(decodes, prompts, tokens)
            for prompts in self._many
            for decodes in self._beside_prompts
            for tokens in self._of_many
        ]
        return tuple(shape for shape in shapes if shape not in self.at_start)

    def find(
        self, batch: Batch, sampling: SamplingLaunches | None, *, host_angles: bool = False
    ) -> GraphShape | None:
        """Return the smallest shape that a batch fits into; None if there is none.

        `sampling` is None where tokens wait for masks. Prompts are captured with plain sampling
        alone: their steps take longer than the host.
        `host_angles`: rotations come from the host, which captured prompts have no room for.
        """
        if batch.is_decode:
            decodes = _least(batch.num_slices, self._decodes)
            return None if decodes is None else GraphShape(decodes, sampling=sampling)
        if host_angles or not _has_logits_of_decodes(batch):
            return None
        if not _has_single_logits(batch):
            return self._find_open(batch)
        decodes = _least(batch.num_decodes, self._beside_prompts)
        few = PROMPTS[-1:] if decodes else PROMPTS  # empty ones are lost among many tokens
        prompts = _least(batch.num_slices - batch.num_decodes, (*few, *self._many))
        tokens = _least(batch.num_tokens - batch.num_decodes, self._sizes(decodes, prompts))
        if decodes is None or prompts is None or tokens is None:
            return None
        return GraphShape(decodes, prompts, tokens)

    def _find_open(self, batch: Batch) -> GraphShape | None:
        """Return the smallest open shape that a batch fits into; None if there is none."""
        decodes = _least(batch.num_decodes, self._started)
        tokens = _least(batch.num_tokens - batch.num_decodes, self._open)
        if batch.num_slices - batch.num_decodes > PROMPTS[-1] or decodes is None or tokens is None:
            return None
        return GraphShape.open(decodes, tokens)

    def fallbacks(self, shape: GraphShape) -> tuple[GraphShape, ...]:
        """Return the shapes of the start that serve steps of this one as well, smallest first."""
        is_many = shape.prompts > PROMPTS[-1]
        tokens = _least(shape.prompt_tokens, self._of_many_started if is_many else self._beside)
        if not shape.prompts or tokens is None:
            return ()
        prompts = self._many[-1] if is_many else PROMPTS[-1]
        return tuple(GraphShape(n, prompts, tokens) for n in self._started if n >= shape.decodes)

    def _sizes(self, decodes: int | None, prompts: int | None) -> tuple[int, ...]:
        """Return the numbers of tokens that so many prompts beside so many decodes may share."""
        if prompts is not None and prompts > PROMPTS[-1]:
            return self._of_many
        return self._beside if decodes else self._alone


def max_prompts(requests: int) -> int:
    """Return the most prompts that a captured step has room for.

    >>> max_prompts(8), max_prompts(100), max_prompts(1000)
    (16, 100, 256)
    """
    return max(PROMPTS[-1:] + _many_prompts(requests))


def _many_prompts(requests: int) -> tuple[int, ...]:
    """Return the rooms for more prompts than `PROMPTS` has, of up to that many requests."""
    most = min(requests, _MANY_PROMPTS[-1])
    if most <= PROMPTS[-1]:
        return ()
    return (*(room for room in _MANY_PROMPTS if room < most), most)


def max_prompt_tokens(layers: int, parameters: int) -> int:
    """Return how many tokens a captured step of prompts alone may have.

    As many as a model computes while the host would launch its layers one by one, and 1024: those
    gain 0.3 to 1 ms of 12 to 25 (7B, H200, 2026-11-21), 2048 lost 2 of 46 and 4000 1 of 84.

    >>> max_prompt_tokens(24, 494_000_000), max_prompt_tokens(28, 7_600_000_000)
    (2307, 1024)
    """
    return max(launched_tokens(layers, parameters), _ALONE)


def launched_tokens(layers: int, parameters: int) -> int:
    """Return how many tokens a model computes while the host launches its layers one by one.

    >>> launched_tokens(24, 494_000_000), launched_tokens(28, 7_600_000_000)
    (2307, 175)
    """
    return int(layers * _LAYER_S * _OPERATIONS_PER_S / (2 * parameters))


class Columns(Protocol):
    """Numbers of a step's slices in memory that the device reads, see kernels_cuda.inputs."""

    @property
    def table_rows(self) -> NDArray[np.int32]:
        """[C] row of the sequence in device memory; -1 pads."""
        ...

    @property
    def starts(self) -> NDArray[np.int32]:
        """[C] first position."""
        ...

    @property
    def stops(self) -> NDArray[np.int32]:
        """[C] position behind the last."""
        ...

    @property
    def sample_positions(self) -> NDArray[np.int32]:
        """[C] position of the sampled token; -1 where none is sampled."""
        ...

    @property
    def position_deltas(self) -> NDArray[np.int32]:
        """[C] what position embeddings see ahead of the position."""
        ...

    @property
    def query_start_loc(self) -> NDArray[np.int32]:
        """[C + 1] where the tokens of each slice begin."""
        ...

    @property
    def logit_start_loc(self) -> NDArray[np.int32]:
        """[C + 1] where the logits of each slice begin."""
        ...


def write_columns(
    columns: Columns,
    batch: Batch,
    rows: Sequence[int],
    deltas: NDArray[np.int32],
    shape: GraphShape | None,
) -> Padding:
    """Write a batch as columns, padded to the shape that it fits into; return the padding.

    `rows` are those of the batch's sequences in device memory, `deltas`[R] what position embeddings
    see ahead of positions.
    """
    first, last = batch.num_decodes, batch.num_slices
    begin, end = first, last
    if shape is not None:
        begin, end = shape.decodes, shape.decodes + last - first
    parts = [(slice(end), slice(last))]
    if begin > first:
        parts = [(slice(first), slice(first)), (slice(begin, end), slice(first, last))]
    positions = batch.stops
    if batch.num_device_samples < last:
        positions = np.where(batch.samples_on_device, batch.stops, -1)
    for column, values in (
        (columns.table_rows, np.array(rows, np.int32)),
        (columns.starts, batch.starts),
        (columns.stops, batch.stops),
        (columns.sample_positions, positions),
        (columns.position_deltas, deltas),
    ):
        for to, taken in parts:
            column[to] = values[taken]
    shift = begin - first
    for loc, values in (
        (columns.query_start_loc, batch.query_start_loc),
        (columns.logit_start_loc, batch.logit_start_loc),
    ):
        loc[:first] = values[:first]
        loc[begin : end + 1] = values[first:] + shift
    if shape is not None:
        _write_padding(columns, first, begin)
        _write_empty(columns, end, shape.decodes + shape.prompts)
    return Padding(first, shift)


def _write_padding(columns: Columns, begin: int, end: int) -> None:
    """Write decodes that pad in [begin, end)."""
    if begin < end:
        for loc in (columns.query_start_loc, columns.logit_start_loc):
            loc[begin:end] = np.arange(begin, end)
        _write_nobody(columns, slice(begin, end))


def _write_empty(columns: Columns, begin: int, end: int) -> None:
    """Write empty slices in [begin, end)."""
    if begin < end:
        for loc in (columns.query_start_loc, columns.logit_start_loc):
            loc[begin + 1 : end + 1] = loc[begin]
        _write_nobody(columns, slice(begin, end))


def _write_nobody(columns: Columns, part: slice) -> None:
    columns.table_rows[part] = columns.sample_positions[part] = -1
    columns.starts[part] = columns.stops[part] = columns.position_deltas[part] = 0


@dataclass(frozen=True, slots=True)
class Padding:
    """Logits from number `first` on lie `shift` rows later in the step that was padded."""

    first: int = 0
    shift: int = 0

    def place(self, rows: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return where rows of logits lie."""
        if not self.shift:
            return rows
        return np.where(rows >= self.first, rows + self.shift, rows)

    def remove(self, numbers: NDArray[Number]) -> NDArray[Number]:
        """Return numbers of all rows without those of the padding."""
        if not self.shift:
            return numbers
        return np.concatenate([numbers[: self.first], numbers[self.first + self.shift :]])


def _has_logits_of_decodes(batch: Batch) -> bool:
    """Return True if every decode has logits."""
    return int(batch.logit_start_loc[batch.num_decodes]) == batch.num_decodes  # each 1 at the most


def _has_single_logits(batch: Batch) -> bool:
    """Return True if every slice has logits of at most one token."""
    return not batch.has_reported or bool(np.diff(batch.logit_start_loc).max() <= 1)


def _least(number: int, sizes: Sequence[int]) -> int | None:
    """Return the first size, ascending, that is at least `number`; None if there is none."""
    index = bisect_left(sizes, number)
    return sizes[index] if index < len(sizes) else None


def _sizes(most: int) -> tuple[int, ...]:
    """Return the numbers of decodes that are captured, ascending, up to `most`.

    1, 2, 4, then multiples of 8 to 64, of 16 to 128 and of 32 beyond: padding adds at most a
    quarter of the rows from 64 on, where rows begin to cost time.
    """
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 128, 16), *range(128, MAX_DECODES + 1, 32)]
    return (*(size for size in sizes if size < most), most)
