"""Kernels of attention over spans on torch tensors: of decodes, of slices, of latents."""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from span_attention import (
    BatchDecode,
    BatchMLA,
    BatchPrefill,
    BatchSelected,
    SpanLayout,
    Spans,
    decode,
    expand,
    mla,
    prefill,
    sparse,
)
from spaninfer_kernel_launch import prepared_once
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels.sizes import ROWS

if TYPE_CHECKING:
    from spaninfer_engine.backends.cuda.kernels.kernels import Kernels

_KEPT = 16  # layouts of spans that are expanded

EXPANDED_BYTES = 256 << 20
"""Memory that spans of codes are expanded to: the keys and values of 131,072 tokens in a layer of
Qwen2.5-7B, of 16,384 in one with 32 KV heads of 128."""


class ExpandedRoom(NamedTuple):
    """The memory that spans are expanded to, and tables[C C] that name them in order: row b spans
    b, b + 1, and so on.
    """

    memory: Tensor
    tables: Tensor

    @property
    def capacity(self) -> int:
        """Spans that fit."""
        return len(self.tables)


class AttentionKernels:
    """Launches of attention for the layers of one model; see `Kernels`."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._decodes: set[tuple[SpanLayout, int]] = set()
        self._latents: set[tuple[SpanLayout, int]] = set()
        self._selected_latents: set[tuple[SpanLayout, int]] = set()
        self._index_heads: set[int] = set()
        self.most_expanded = lru_cache(_KEPT)(self._count_expanded)
        self.expansion = prepared_once(_KEPT)(self._prepare_expansion)
        self.expanded_room = lru_cache(_KEPT)(self._make_expanded_room)

    def prepare_every_size(self) -> None:
        """Prepare the decodes that came so far for all numbers of rows."""
        for layout, heads in tuple(self._decodes):
            for requests in ROWS:
                form = decode.DecodeOptions(np.dtype(self._kernels.element))
                decode.prepare(form, layout, requests=requests, heads=heads, gpu=self._kernels.gpu)
        splits = not self._kernels.batch_invariant
        for layout, heads in tuple(self._latents):
            mla.prepare_every_size(
                np.dtype(self._kernels.element),
                layout,
                heads=heads,
                gpu=self._kernels.gpu,
                splits=splits,
            )
        for layout, heads in tuple(self._selected_latents):
            sparse.prepare_attention(
                self._dtype_name, layout, heads=heads, gpu=self._kernels.gpu, splits=splits
            )
        for heads in tuple(self._index_heads):
            sparse.prepare_selection(self._dtype_name, heads, self._kernels.gpu)

    def batch_decode(self, layout: SpanLayout, heads: int) -> BatchDecode:
        """Return the attention of one row of each request over spans of a layout, to be planned."""
        self._decodes.add((layout, heads))
        return BatchDecode(layout, num_heads=heads, dtype=self._kernels.element)

    def batch_prefill(self, layout: SpanLayout, heads: int) -> BatchPrefill:
        """Return the attention of slices of any length over spans of a layout, to be planned."""
        splits = not self._kernels.batch_invariant
        return BatchPrefill(layout, num_heads=heads, dtype=self._kernels.element, splits=splits)

    def _count_expanded(self, layout: SpanLayout) -> int:
        """Return how many spans of a layout, codes, may be read as floats; 0 where that is slower.

        It depends on the other slices of a step whether they fit, so that invariant batches read
        codes.
        """
        kernels = self._kernels
        if kernels.batch_invariant or not expand.takes(layout):
            return 0
        floats = expand.expanded_layout(self._dtype_name, layout)
        options = prefill.PrefillOptions(self._dtype_name)
        if not prefill.has_hopper_kernel(options, floats, kernels.gpu):
            return 0
        return EXPANDED_BYTES // floats.span_stride

    def _prepare_expansion(self, layout: SpanLayout) -> expand.PreparedExpansion:
        """Return the expansion of spans of a layout, codes."""
        return expand.prepare(self._dtype_name, layout, gpu=self._kernels.gpu)

    def _make_expanded_room(self, layout: SpanLayout) -> ExpandedRoom:
        """Return where spans of a layout are expanded to."""
        capacity = self.most_expanded(layout)
        spans = torch.arange(2 * capacity, dtype=torch.int32, device=self._kernels.device)
        return ExpandedRoom(self._expanded_memory, spans.as_strided((capacity, capacity), (1, 1)))

    @cached_property
    def _expanded_memory(self) -> Tensor:
        return torch.empty(EXPANDED_BYTES, dtype=torch.uint8, device=self._kernels.device)

    def has_mla(self, layout: SpanLayout) -> bool:
        """Return True if latents of a layout have kernels of their own on this GPU."""
        return mla.takes(mla.options_for(self._dtype_name, layout), layout, self._kernels.gpu.arch)

    def select_keys(
        self,
        query: Tensor,
        weights: Tensor,
        spans: Spans,
        readers: sparse.Readers,
        *,
        top_k: int,
        out: Tensor,
    ) -> None:
        """Write the positions that an indexer selects to out[T k]."""
        self._index_heads.add(query.shape[1])
        arrays = query.contiguous(), weights.float().contiguous()
        sparse.select_keys(
            *arrays, spans, readers, top_k=top_k, out=out, stream=self._kernels.stream
        )

    def has_selection(self, layout: SpanLayout, heads: int) -> bool:
        """Return True if an indexer of so many heads has kernels on this GPU."""
        return sparse.has_selection(self._dtype_name, layout, heads, self._kernels.gpu.arch)

    def has_selected(self, layout: SpanLayout) -> bool:
        """Return True if selected latents of a layout have a kernel on this GPU."""
        return sparse.has_attention(self._dtype_name, layout, self._kernels.gpu.arch)

    def batch_selected(self, layout: SpanLayout, heads: int) -> BatchSelected:
        """Return the attention to selected latents, to be planned."""
        self._selected_latents.add((layout, heads))
        splits = not self._kernels.batch_invariant
        return BatchSelected(layout, num_heads=heads, dtype=self._kernels.element, splits=splits)

    @property
    def _dtype_name(self) -> str:
        return str(np.dtype(self._kernels.element).name)

    def batch_mla(
        self, layout: SpanLayout, heads: int, *, lse: bool = False, causal: bool = True
    ) -> BatchMLA:
        """Return the attention of slices of any length over spans of latents, to be planned."""
        self._latents.add((layout, heads))
        return BatchMLA(
            layout,
            num_heads=heads,
            dtype=self._kernels.element,
            splits=not self._kernels.batch_invariant,
            causal=causal,
            lse=lse,
        )
