"""Keys or values in spans: position p of a request lies in span table[p // L], at place p % L.

Letters: S spans, L span length, K kv heads, D size of a key or value.
"""

from __future__ import annotations

import numpy as np

from spaninfer_op_reference.arrays import Floats, Ints


def append(cache: Floats, rows: Floats, table: Ints, positions: Ints) -> None:
    """Write rows[T K D] of one request, for positions[T], into cache[S L K D]."""
    span, place = np.divmod(positions, cache.shape[1])
    cache[table[span], place] = rows


def gather_spans(cache: Floats, table: Ints, length: int) -> Floats:
    """[N K D]: the first `length` positions of a request, out of cache[S L K D]."""
    spans = cache[table[: -(-length // cache.shape[1])]]
    return spans.reshape(-1, *cache.shape[2:])[:length]
