"""Sparse attention of the CUDA backend, whose operators are torch's: here they run on the CPU.

A step as it is captured: decodes with rows that pad it, then a prompt.
"""

from __future__ import annotations

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


def _plan(caches: tuple[SpanCache[Any], ...]) -> Any:
    from spaninfer_engine.backends.cuda.attention import Plan
    from spaninfer_engine.backends.cuda.slices import AttentionSlices

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
    )
    kernels: Any = None  # plain operators launch none
    return Plan(slices, caches, (), kernels)


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
    from spaninfer_engine.backends.cuda import sparse_attention

    rng = np.random.default_rng(1)
    latents, index = _cache(12, 8, 2), _cache(6, 6, 3)
    plan = _plan((latents, index))
    index_query, weights, query = (
        torch.from_numpy(rng.standard_normal((PROMPT.last, *shape), np.float32))
        for shape in ((5, 6), (5,), (3, 12))
    )

    selected = sparse_attention.select_keys(plan, index_query, weights, 1, 0, top_k)
    read = sparse_attention.attend_selected(plan, query, selected, 0, 0, SCALE)

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
