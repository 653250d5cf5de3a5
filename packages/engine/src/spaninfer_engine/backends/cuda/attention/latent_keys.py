"""Keys and values of all heads, made of latents for one step: of its new tokens, and of what was
cached before them in chunks as large.

They lie in memory of the step as spans of all heads, [slots H key | value], the tokens of each
slice from a multiple of a span on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import torch
from span_attention import ArrayStrides, BatchPrefill, SpanLayout, Spans
from torch import Tensor

from spaninfer_engine.backends.cuda.attention.plan import Plan
from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices
from spaninfer_engine.backends.cuda.kernels.kernels import FORMATS, Kernels

MANY_TOKENS: Final = 256
"""New tokens of prompts from which on they are read by keys and values: 170 break even in
operations (V2 and V3), and what is made around them takes as long as 80 more. So many of one
prompt also read what was cached before it that way."""

CHUNK_TOKENS: Final = 4096
"""Cached tokens that are read at a time, at the least: the GPU has as much to do with that many as
the host with their launches, and the largest step of a start sets aside memory for them."""

_SPAN_LEN: Final = 32


class HeadSizes(NamedTuple):
    """Heads, and the elements of each: the key's part without position, the rotated one, values."""

    heads: int
    nope: int
    rope: int
    value: int

    @property
    def key(self) -> int:
        """Elements of a whole key."""
        return self.nope + self.rope


class Ups(NamedTuple):
    """The projections from latents: key_up[H nope L], value_up[H L value]."""

    key: Tensor
    value: Tensor


class Latents(NamedTuple):
    """The latents that the cache keeps of tokens: latent[T 1 L] and rotated rope[T 1 R]."""

    latent: Tensor
    rope: Tensor


class Read(NamedTuple):
    """The values that queries read: out[T H E], and log-sum-exps of scores lse[T H] in float32."""

    out: Tensor
    lse: Tensor


class HeadKeys:
    """Attention over keys and values made of latents for one layer, in `capacity` slots."""

    def __init__(
        self,
        kernels: Kernels,
        sizes: HeadSizes,
        capacity: int,
        *,
        lse: bool,
        causal: bool,
    ) -> None:
        self._kernels, self._sizes, self._capacity = kernels, sizes, capacity
        self._layout = _layout(kernels, sizes)
        self._attention = BatchPrefill(
            self._layout, num_heads=sizes.heads, dtype=kernels.element, lse=lse, causal=causal
        )

    def plan(self, bounds: Tensor, lens: Tensor, begins: Tensor, num_tokens: int) -> None:
        """Plan all layers: slice r is the rows bounds[r] .. bounds[r + 1] of `num_tokens`, and sees
        lens[r] keys, which begin at span begins[r]. One that sees none is left alone.
        """
        spans = -(-self._capacity // _SPAN_LEN)
        longest = torch.arange(spans, dtype=torch.int32, device=bounds.device)
        self._attention.plan(
            bounds,
            lens,
            begins[:, None] + longest,
            table_rows=torch.arange(len(lens), dtype=torch.int32, device=bounds.device),
            num_tokens=num_tokens,
            stream=self._kernels.stream,
        )

    def write(self, slots: Tensor, latents: Latents, ups: Ups) -> Tensor:
        """Return memory with the keys and values of latents in their slots."""
        heads, nope, _, value = self._sizes
        memory = self._kernels.empty(self._capacity, heads, self._sizes.key + value)
        latent = latents.latent[:, 0]
        keys = torch.mm(latent, ups.key.reshape(heads * nope, -1).T).view(-1, heads, nope)
        values = torch.matmul(latent, ups.value).transpose(0, 1)
        memory[slots] = torch.cat([keys, latents.rope.expand(-1, heads, -1), values], dim=-1)
        return memory

    def attend(
        self, query: Tensor, memory: Tensor, scale: float, out: Read | None = None
    ) -> Tensor:
        """Return what query[T H D] reads, [T H E]; to `out` with log-sum-exps, where given."""
        read = self._kernels.empty(*query.shape[:2], self._sizes.value) if out is None else out.out
        self._attention.run(
            query.data_ptr(),
            Spans(memory.data_ptr(), self._layout),
            softmax_scale=scale,
            out=read.data_ptr() if out is None else (read.data_ptr(), out.lse.data_ptr()),
            stream=self._kernels.stream,
        )
        return read


class TokenSlots(NamedTuple):
    """Slots[T] of the tokens of slices, which are counts[R], each from its span begins[R] on."""

    slots: Tensor
    counts: Tensor
    begins: Tensor
    capacity: int

    @classmethod
    def of(cls, bounds: Tensor, num_tokens: int) -> TokenSlots:
        """Return the slots of tokens bounds[r] .. bounds[r + 1] of every slice, and of padding.

        Padding lies behind the last slice. While kernels are recorded all bounds are 0, and all
        tokens are padding.
        """
        counts = bounds.diff()
        ends = (-(-counts // _SPAN_LEN)).cumsum(0, dtype=torch.int32)
        begins = torch.cat([ends.new_zeros(1), ends])
        places = torch.arange(num_tokens, dtype=torch.int32, device=bounds.device)
        which = torch.searchsorted(bounds[1:].contiguous(), places, right=True)
        slots = begins[which] * _SPAN_LEN + places - bounds[which]
        return cls(slots, counts, begins[:-1], num_tokens + (_SPAN_LEN - 1) * len(counts))


class NewTokens:
    """The slices of a step behind its decodes, over keys and values of their own tokens."""

    def __init__(self, plan: Plan, kernels: Kernels, sizes: HeadSizes) -> None:
        slices = plan.slices
        first = slices.num_decodes
        self.is_all = first == 0 and _begin_texts(slices)
        bounds = slices.bounds[first:] - slices.bounds[first]
        new = TokenSlots.of(bounds, len(slices.slots[0]) - first)
        self._slots = new.slots
        self._keys = HeadKeys(kernels, sizes, new.capacity, lse=not self.is_all, causal=True)
        self._keys.plan(bounds, new.counts, new.begins, len(new.slots))

    def attend(
        self, query: Tensor, latents: Latents, ups: Ups, scale: float, out: Read | None = None
    ) -> Tensor:
        """Return what query[T H D] reads, [T H E]; to `out` with log-sum-exps, where given."""
        memory = self._keys.write(self._slots, latents, ups)
        return self._keys.attend(query, memory, scale, out)


class Piece(NamedTuple):
    """Cached positions [start, stop) of slice number `slice` behind the decodes."""

    slice: int
    start: int
    stop: int


class CachedTokens:
    """A chunk of what was cached before long slices, over keys and values made of the spans."""

    def __init__(
        self, plan: Plan, kernels: Kernels, sizes: HeadSizes, group: int, pieces: Sequence[Piece]
    ) -> None:
        slices = plan.slices
        runs, first, table = slices.prefills, slices.num_decodes, slices.tables[group]
        device, span_len = table.device, slices.span_len
        lens, begins = [0] * len(runs), [0] * len(runs)
        spans, offsets, slots, used = [], [], [], 0
        for piece in pieces:
            positions = torch.arange(piece.start, piece.stop, device=device)
            spans.append(table[runs[piece.slice].row][positions // span_len])
            offsets.append(positions % span_len)
            slots.append(positions - piece.start + used * _SPAN_LEN)
            lens[piece.slice], begins[piece.slice] = len(positions), used
            used += -(-len(positions) // _SPAN_LEN)
        self._where = torch.cat(spans), torch.cat(offsets)
        self._slots = torch.cat(slots)
        self._keys = HeadKeys(kernels, sizes, used * _SPAN_LEN, lse=True, causal=False)
        self._keys.plan(
            slices.bounds[first:] - first,
            torch.tensor(lens, dtype=torch.int32, device=device),
            torch.tensor(begins, dtype=torch.int32, device=device),
            len(slices.slots[0]) - first,
        )

    def attend(self, query: Tensor, cache: Tensor, ups: Ups, scale: float, out: Read) -> None:
        """Write what query[T H D] reads of cache[S L 1 D], one layer's spans; rows of slices that
        are not in the chunk are left alone.
        """
        tokens, size = cache[self._where], ups.value.shape[1]
        latents = Latents(tokens[..., :size], tokens[..., size:])
        self._keys.attend(query, self._keys.write(self._slots, latents, ups), scale, out)


def long_slices(plan: Plan, group: int) -> tuple[tuple[int, int], ...]:
    """Return number and cached tokens of the slices that read these by keys and values.

    There are none where the host does not know where slices begin, as in a captured step, or where
    the cache holds codes.
    """
    if plan.groups[group].layout.format not in FORMATS.values():
        return ()
    return tuple(
        (number, run.start)
        for number, run in enumerate(plan.slices.prefills)
        if run.start and run.last - run.first >= MANY_TOKENS
    )


def chunks_of(cached: Sequence[tuple[int, int]], room: int) -> Iterator[tuple[Piece, ...]]:
    """Divide the cached tokens of slices, given as (slice, tokens), into chunks of up to `room`
    tokens, each piece of them rounded up to whole spans of the step's memory.

    >>> list(chunks_of([(0, 40), (2, 100)], 96))
    [(Piece(slice=0, start=0, stop=40), Piece(slice=2, start=0, stop=32)), \
(Piece(slice=2, start=32, stop=100),)]
    """
    spans_left = spans = max(room // _SPAN_LEN, 1)
    pieces: list[Piece] = []
    for number, tokens in cached:
        start = 0
        while start < tokens:
            stop = min(tokens, start + spans_left * _SPAN_LEN)
            pieces.append(Piece(number, start, stop))
            spans_left -= -(-(stop - start) // _SPAN_LEN)
            start = stop
            if not spans_left:
                yield tuple(pieces)
                pieces, spans_left = [], spans
    if pieces:
        yield tuple(pieces)


def _begin_texts(slices: AttentionSlices) -> bool:
    """Return True if the host knows that nothing was cached before any prompt of the step."""
    return bool(slices.prefills) and all(run.start == 0 for run in slices.prefills)


def _layout(kernels: Kernels, sizes: HeadSizes) -> SpanLayout:
    """Return spans of [tokens heads key | value]."""
    heads, key, value = sizes.heads, sizes.key, sizes.value
    head = (key + value) * kernels.dtype.itemsize
    span = _SPAN_LEN * heads * head
    return SpanLayout(
        span_len=_SPAN_LEN,
        kv_heads=heads,
        key_size=key,
        value_size=value,
        format=FORMATS[kernels.dtype],
        num_layers=1,
        span_stride=span,
        layer_stride=span,
        keys=ArrayStrides(0, head, heads * head),
        values=ArrayStrides(key * kernels.dtype.itemsize, head, heads * head),
        key_scales=None,
        value_scales=None,
    )
