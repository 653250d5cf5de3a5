"""Attention over spans: the decodes and prefills of one step, planned once for all layers."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from span_attention import SpanLayout, Spans, append
from torch import Tensor

from spaninfer_engine.backends.cuda.kernels import Kernels
from spaninfer_engine.backends.cuda.slices import Slices
from spaninfer_engine.backends.torch.attention import Scoring, attend_rows, attend_slice, slopes_of
from spaninfer_engine.ops.step import Rotation, SpanCache


class Pool(NamedTuple):
    """The spans of a cache group: their layout, and those of each layer."""

    layout: SpanLayout
    spans: tuple[Spans, ...]

    @classmethod
    def at(cls, address: int, layout: SpanLayout) -> Pool:
        """Return the pool whose memory begins at `address`."""
        return cls(layout, tuple(Spans(address, layout, n) for n in range(layout.num_layers)))


class Plan:
    """What the attention of one step shares over its layers.

    A kernel plans when the first layer of its group attends, on the stream of the step: a captured
    step captures its plans too, and lengths are read whenever it is replayed.
    """

    def __init__(
        self,
        slices: Slices,
        caches: tuple[SpanCache[Tensor], ...],
        pools: tuple[Pool, ...],
        kernels: Kernels,
    ) -> None:
        self.slices, self.pools = slices, pools
        self._caches, self._kernels = caches, kernels
        self._planned: dict[tuple[int, int, int], tuple[_Decodes | _Prefills, ...]] = {}
        self._rotaries: dict[int, append.Rotary] = {}

    def of_wanted(self, wanted: Tensor) -> Plan | None:
        """Return the plan of the rows wanted[W] alone; None where all rows are to be computed.

        A row gets other bits by the kernel of decodes than in its prompt, so that batches are not
        invariant, and other products.
        """
        slices = None if self._kernels.batch_invariant else self.slices.of_wanted(wanted)
        return None if slices is None else Plan(slices, self._caches, self.pools, self._kernels)

    def rotary(
        self, rotations: Sequence[Rotation[Tensor]], rope: int, interleaved: bool
    ) -> append.Rotary:
        """Return a rotary embedding of the step, as kernels take it."""
        if rope not in self._rotaries:
            cos, sin = rotations[rope]
            pointers = cos.data_ptr(), sin.data_ptr()
            self._rotaries[rope] = append.Rotary(*pointers, 2 * cos.shape[1], interleaved)
        return self._rotaries[rope]

    def attend(self, query: Tensor, group: int, layer: int, scoring: Scoring) -> Tensor:
        """Return what query[T H D] reads, [T H*E], by kernels of span_attention."""
        pool, kernels = self.pools[group], self._kernels
        rows, heads, _ = query.shape
        window = scoring.window or 0
        planned = self._planned.get((group, heads, window))
        if planned is None:
            planned = self._plan(pool.layout, heads, window, rows)
            self._planned[group, heads, window] = planned
        query = query.contiguous()
        out = kernels.empty(rows, heads * pool.layout.value_size)
        for each in planned:
            each.launch(
                query,
                self.slices.tables[group],
                spans=pool.spans[layer],
                out=out.data_ptr(),
                scale=scoring.scale,
                softcap=scoring.softcap or 0.0,
                window=window,
                alibi=0 if scoring.alibi is None else _slopes(heads, scoring, query.device),
                stream=kernels.stream,
            )
        return out

    def _plan(
        self, layout: SpanLayout, heads: int, window: int, rows: int
    ) -> tuple[_Decodes | _Prefills, ...]:
        slices = self.slices
        given = slices, layout, heads, window, self._kernels
        # One kernel for both gives a row the same bits, drawn one by one or found in a prompt.
        decodes = 0 if self._kernels.batch_invariant else slices.num_decodes
        planned: list[_Decodes | _Prefills] = []
        if decodes:
            planned.append(_Decodes(*given))
        if len(slices.rows) > decodes:
            planned.append(_Prefills(*given, rows, decodes))
        return tuple(planned)

    def attend_plainly(self, query: Tensor, group: int, layer: int, scoring: Scoring) -> Tensor:
        """Return the same by plain torch operators."""
        slices, count = self.slices, self.slices.num_decodes
        keys, values = (part[layer] for part in self._caches[group])
        tables = slices.tables[group]
        out = query.new_empty(*query.shape[:2], values.shape[-1])
        if count:
            which = slices.rows[:count], slices.lengths[:count]
            out[:count] = attend_rows(query[:count], keys, values, tables, *which, scoring)
        for run in slices.prefills:
            rows = slice(run.first, run.last)
            table = tables[run.row]
            out[rows] = attend_slice(query[rows], keys, values, table, run, scoring)
        return out


class _Decodes:
    """The slices of one row each, planned for the layers of a cache group."""

    def __init__(
        self, slices: Slices, layout: SpanLayout, heads: int, window: int, kernels: Kernels
    ) -> None:
        self._kernel = kernels.decode_of(layout, slices.num_decodes, heads)
        self._plan = _bytes(self._kernel.plan_bytes, slices.rows.device)
        self._workspace = _bytes(self._kernel.workspace_bytes, slices.rows.device)
        self._rows, self._lengths = slices.rows.data_ptr(), slices.lengths.data_ptr()
        self._kernel.plan(
            self._lengths, window=window, out=self._plan.data_ptr(), stream=kernels.stream
        )

    def launch(self, query: Tensor, tables: Tensor, **scores: Any) -> None:
        """Write what the rows of query[T H D] read; keywords are the kernel's own."""
        self._kernel.launch(
            query.data_ptr(),
            tables.data_ptr(),
            self._rows,
            self._lengths,
            self._plan.data_ptr(),
            table_stride=tables.stride(0),
            workspace=self._workspace.data_ptr(),
            **scores,
        )


class _Prefills:
    """The slices from number `first` on, planned for the layers of a cache group."""

    def __init__(
        self,
        slices: Slices,
        layout: SpanLayout,
        heads: int,
        window: int,
        kernels: Kernels,
        rows: int,
        first: int,
    ) -> None:
        count = len(slices.rows) - first
        self._kernel = kernels.prefill_of(layout, heads)
        self._plan = _bytes(self._kernel.plan_bytes(rows, count), slices.rows.device)
        self._workspace = _bytes(self._kernel.workspace_bytes, slices.rows.device)
        self._rows = slices.rows[first:].data_ptr()
        self._num_rows, self._num_slices = rows, count
        self._kernel.plan(
            slices.bounds[first:].data_ptr(),
            slices.lengths[first:].data_ptr(),
            num_rows=rows,
            slices=count,
            window=window,
            out=self._plan.data_ptr(),
            stream=kernels.stream,
        )

    def launch(self, query: Tensor, tables: Tensor, **scores: Any) -> None:
        """Write what the rows of query[T H D] read; keywords are the kernel's own."""
        self._kernel.launch(
            query.data_ptr(),
            tables.data_ptr(),
            self._rows,
            self._plan.data_ptr(),
            num_rows=self._num_rows,
            slices=self._num_slices,
            table_len=tables.stride(0),
            workspace=self._workspace.data_ptr(),
            **scores,
        )


def _bytes(count: int, device: torch.device) -> Tensor:
    return torch.empty(count, dtype=torch.uint8, device=device)


@cache
def _slopes(heads: int, scoring: Scoring, device: torch.device) -> int:
    """Return the address of ALiBi's slopes [H]; they are kept."""
    return _scaled_slopes(
        heads, scoring.scale if scoring.alibi == "scaled" else 1.0, device
    ).data_ptr()


@cache
def _scaled_slopes(heads: int, factor: float, device: torch.device) -> Tensor:
    return slopes_of(heads, device) * factor
