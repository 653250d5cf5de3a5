"""Sparse attention of the CUDA backend by torch's operators, for sizes without kernels: here they
run on the CPU.

A step as it is captured: decodes with rows that pad it, then a prompt.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import spaninfer_op_reference as definition
from spaninfer_engine.ops.step import SpanCache
from spaninfer_engine.step.batch import Run

torch = pytest.importorskip("torch")
pytest.importorskip("span_attention")

SPAN_LEN, NUM_SPANS, COLUMNS = 4, 30, 7
LENGTHS = (25, 0, 3)  # of decodes; the second one pads the step
PROMPT = Run(first=3, last=9, row=1, start=5, stop=11)
SCALE = 0.3


def _cache(size: int, value_size: int, seed: int) -> SpanCache[Any]:
    rng = np.random.default_rng(seed)
    keys = torch.from_numpy(rng.standard_normal((1, NUM_SPANS, SPAN_LEN, 1, size), np.float32))
    return SpanCache(keys, keys[..., :value_size], keys)


class _NoAttentionKernels:
    """Attention kernels for none of these sizes."""

    def has_selection(self, _layout: object, _heads: int) -> bool:
        return False

    def has_selected(self, _layout: object) -> bool:
        return False


class _NoKernels:
    """Kernels of CUDA that lack those of attention."""

    attention = _NoAttentionKernels()


def _plan(caches: tuple[SpanCache[Any], ...]) -> Any:
    from spaninfer_engine.backends.cuda.attention.plan import GroupCache, Plan
    from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices

    tables = np.random.default_rng(7).permutation(NUM_SPANS)[: 4 * COLUMNS]
    table = torch.from_numpy(tables.reshape(4, COLUMNS).astype(np.int32))
    slices = AttentionSlices(
        rows=torch.tensor([2, 0, 3, PROMPT.row], dtype=torch.int32),
        lengths=torch.tensor([*LENGTHS, PROMPT.stop], dtype=torch.int32),
        bounds=torch.tensor([0, 1, 2, 3, PROMPT.last], dtype=torch.int32),
        slots=(),
        tables=(table, table),
        num_decodes=3,
        prefills=(PROMPT,),
        logit_rows=torch.zeros(0, dtype=torch.int32),
        logit_seq_lens=torch.zeros(0, dtype=torch.int32),
        span_len=4,
    )
    layout: Any = None
    groups: Any = (GroupCache(layout, ()),) * 2  # plain operators ask no layout
    kernels: Any = _NoKernels()
    return Plan(slices, caches, groups, kernels)


def _rows() -> list[tuple[int, int, int]]:
    """Row of the step, row of the tables, and position; without the padding."""
    prompt = [
        (PROMPT.first + n, PROMPT.row, PROMPT.start + n) for n in range(PROMPT.last - PROMPT.first)
    ]
    return [(0, 2, LENGTHS[0] - 1), (2, 3, LENGTHS[2] - 1), *prompt]


def _keys(plan: Any, group: int, table_row: int, position: int) -> Any:
    """[N 1 D]: what a row sees."""
    table = plan.slices.tables[group][table_row].long()
    return plan.caches[group].keys[0][table].flatten(0, 1)[: position + 1].double().numpy()


@pytest.mark.parametrize("top_k", [1, 4, 8, 1000])
def test_rows_of_a_step_select_and_read_keys_as_defined(top_k: int) -> None:
    from spaninfer_engine.backends.cuda.attention import sparse

    rng = np.random.default_rng(1)
    latents, index = _cache(12, 8, 2), _cache(6, 6, 3)
    plan = _plan((latents, index))
    index_query, weights, query = (
        torch.from_numpy(rng.standard_normal((PROMPT.last, *shape), np.float32))
        for shape in ((5, 6), (5,), (3, 12))
    )

    kernels: Any = _NoKernels()
    at_keys, at_latents = (sparse.At(plan, kernels, group, 0) for group in (1, 0))
    selected = sparse.select_keys(at_keys, index_query, weights, top_k)
    read = sparse.attend_selected(at_latents, query, selected, SCALE)

    assert selected.shape == (PROMPT.last, min(top_k, COLUMNS * SPAN_LEN))
    assert (selected[1] == -1).all()  # the row that pads the step
    for row, table_row, position in _rows():
        keys = _keys(plan, 1, table_row, position)[:, 0]
        one = slice(row, row + 1)
        (expected,) = definition.select_keys(
            index_query[one].double().numpy(),
            weights[one].numpy(),
            keys,
            np.array([position]),
            top_k,
        )
        assert selected[row, : len(expected)].tolist() == expected.tolist()
        assert (selected[row, len(expected) :] == -1).all()
        latent = _keys(plan, 0, table_row, position)
        wanted = definition.attend_selected(
            query[one].double().numpy(), latent, latent[..., :8], expected[None], scale=SCALE
        )
        np.testing.assert_allclose(read[one].numpy(), wanted, rtol=1e-4, atol=1e-5)


def _mixed_slices() -> Any:
    """Two decodes and five prompts."""
    from spaninfer_engine.backends.cuda.attention.slices import AttentionSlices

    stops, counts = (40, 9, 8, 2, 30, 31, 7), (1, 1, 4, 2, 3, 5, 7)
    bounds = np.concatenate([[0], np.cumsum(counts)]).tolist()
    runs = [
        Run(bounds[n], bounds[n + 1], 8 - n, stops[n] - counts[n], stops[n]) for n in range(2, 7)
    ]
    return AttentionSlices(
        rows=torch.arange(8, 1, -1, dtype=torch.int32),
        lengths=torch.tensor(stops, dtype=torch.int32),
        bounds=torch.tensor(bounds, dtype=torch.int32),
        slots=(),
        tables=(torch.zeros(9, 10, dtype=torch.int32),),
        num_decodes=2,
        prefills=tuple(runs),
        logit_rows=torch.zeros(0, dtype=torch.int32),
        logit_seq_lens=torch.zeros(0, dtype=torch.int32),
        span_len=4,
    )


def test_decodes_and_short_prompts_are_parts_of_a_step_and_long_prompts_one_each() -> None:
    from spaninfer_engine.backends.cuda.attention.sparse import parts_of

    slices = _mixed_slices()
    (table,) = slices.tables

    parts = list(parts_of(slices, table, span_len=4, top_k=8))

    assert [(part.rows.start or 0, part.rows.stop, part.dense) for part in parts] == [
        (0, 2, False),  # the tables have room for 40 positions
        (2, 8, True),  # of two prompts that end at 8 and 2
        (8, 11, False),
        (11, 16, False),
        (16, 23, True),
    ]
    assert [(part.slices.start or 0, part.slices.stop) for part in parts] == [
        *((0, 2), (2, 4), (4, 5), (5, 6), (6, 7))
    ]
    seen = [part.lengths.tolist() for part in parts]
    assert seen[:2] == [[40, 9], [5, 6, 7, 8, 1, 2]]
    assert seen[2:] == [[28, 29, 30], [27, 28, 29, 30, 31], [1, 2, 3, 4, 5, 6, 7]]
    rows: list[Any] = [part.readers.table_rows for part in parts]
    assert [row.tolist() for row in rows] == [
        *([8, 7], [6, 6, 6, 6, 5, 5], [4] * 3, [3] * 5, [2] * 7)
    ]
    assert [part.readers.one_sequence for part in parts] == [False, False, True, True, True]
    wide = list(parts_of(slices, table, span_len=4, top_k=40))
    assert [(part.rows.stop, part.dense) for part in wide] == [(2, True), (23, True)]


def test_while_nothing_has_written_bounds_every_row_is_one_of_the_slices() -> None:
    from spaninfer_engine.backends.cuda.attention.sparse import parts_of

    slices = _mixed_slices()
    empty = replace(slices, bounds=torch.zeros_like(slices.bounds))

    parts = list(parts_of(empty, slices.tables[0], span_len=4, top_k=8))

    rows: list[Any] = [part.readers.table_rows for part in parts]
    assert all(set(row.tolist()) <= set(slices.rows.tolist()) for row in rows)


def test_positions_that_nothing_has_written_lead_to_no_other_memory() -> None:
    from spaninfer_engine.backends.torch.sparse_attention import attend_selected_rows

    cache, tables = _cache(12, 8, 2), torch.zeros(3, COLUMNS, dtype=torch.int32)
    selected = torch.tensor([[2**31 - 1, -(2**31), 7]] * 3, dtype=torch.int32)

    read = attend_selected_rows(
        torch.zeros(3, 2, 12),
        (cache.keys[0], cache.values[0]),
        tables,
        torch.full((3,), 25, dtype=torch.int32),
        selected,
        SCALE,
    )

    assert read.shape == (3, 2, 8)
