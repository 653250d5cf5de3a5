"""`select_keys`, the keys that an indexer selects for rows of sparse attention.

`attend` reads them, where an `AttentionBatch` has them as `selected`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.attention.attend_call import LayerCache, Selected
from spaninfer_kernels_cpu.attention.attention import AttentionBatch, check_tables
from spaninfer_kernels_cpu.attention.checks import demand
from spaninfer_kernels_cpu.attention.kv_array import KVArray
from spaninfer_kernels_cpu.attention.scores import Scores
from spaninfer_kernels_cpu.attention.select_call import (
    IndexQuery,
    SelectionPlan,
    plan_selection,
    select_calls,
)
from spaninfer_kernels_cpu.errors import KernelError, ShapeError
from spaninfer_kernels_cpu.runtime.call import ITEMS, Matrix, Script
from spaninfer_kernels_cpu.runtime.thread_pool import shared_thread_pool

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]


def select_keys(
    query: Floats,
    weights: Floats,
    keys: NDArray[Any] | KVArray,
    batch: AttentionBatch,
    *,
    out: Ints,
) -> None:
    """Write the positions of the keys[S L 1 D] that each row reads into out[T k], in ascending
    order; k, or all that it sees, and then -1.

    Those with the largest sums of weights[T H] * relu(q.k) over heads of query[T H D]; of equal
    ones the lower position. Query and weights are float32, keys as in `attend`. Works on every
    usable CPU. Raises KernelError for arguments that do not fit, and for spans and positions that
    there are not.
    """
    keys = keys if isinstance(keys, KVArray) else KVArray(keys)
    words = np.zeros(6, np.int64)  # of the arrays below, which are known when all is checked
    tables, request, position, items_at, scores_at, table_len = (
        words.ctypes.data + words.itemsize * number for number in range(len(words))
    )
    spans = LayerCache(keys, keys, tables, table_len, request, position)
    _check(query, weights, keys, batch, out)
    if not len(query):
        return
    num_spans, span_len, *_ = keys.numbers.shape
    check_tables(batch, num_spans, span_len, Scores(1.0))
    heads, top_k = query.shape[1], out.shape[1]
    items, scores = plan_selection(batch.request, batch.position, heads, top_k)
    arrays = (batch.tables, batch.request, batch.position, items, scores)
    words[:] = *(array.ctypes.data for array in arrays), batch.tables.shape[1]
    calls = select_calls(
        IndexQuery(Matrix.of(query), Matrix.of(weights), heads),
        spans,
        SelectionPlan(ITEMS, items_at, scores_at),
        Selected(out.ctypes.data, top_k),
    )
    shared_thread_pool().run(Script(calls), [len(query), 0, len(items)])


def _check(query: Floats, weights: Floats, keys: KVArray, batch: AttentionBatch, out: Ints) -> None:
    """Raise unless the arguments have the shapes that `select_keys` describes, and fit together."""
    demand("query", query, np.float32, "T H D", ordered=3)
    demand("weights", weights, np.float32, "T H", ordered=2)
    demand("out", out, np.int32, "T k", ordered=2)
    if not out.flags.writeable:
        raise KernelError("out is read-only; give an array that can be written")
    if query.shape[2] != keys.size:
        raise ShapeError(f"query {query.shape} and keys {keys.numbers.shape} differ in D")
    if weights.shape != query.shape[:2]:
        raise ShapeError(f"weights have shape {weights.shape}, need {query.shape[:2]}")
    if len(out) != len(query) or len(batch.position) != len(query):
        raise ShapeError(
            f"query has {len(query)} rows, but position {len(batch.position)} and out {len(out)}"
        )
