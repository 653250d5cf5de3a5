"""Sparse attention with plain torch operators: keys that an indexer selects, and reads of them.

Right for every size, in float32, in pieces that fit into memory. Nothing waits for the device, and
no array is made on the host, so that calls can be captured into CUDA graphs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from spaninfer_engine.backends.torch.attention import (
    MAX_SCORES,
    LayerSpans,
    Seen,
    attend_keys,
    attend_rows,
    attend_slice,
)
from spaninfer_engine.ops.scoring import Scoring
from spaninfer_engine.step.batch import Run

_HIDDEN = torch.iinfo(torch.int64).min
_LOW_BITS = (1 << 32) - 1


def select_slice(
    query: Tensor, weights: Tensor, keys: Tensor, table: Tensor, run: Run, top_k: int
) -> Tensor:
    """Return the positions[T k] of the keys that each row of a slice reads; k = min(top_k, stop).

    query[T H D] and weights[T H] are those of the indexer, keys[S L 1 D] one layer's spans,
    table[M] the slice's span numbers.
    """
    newest = torch.arange(run.start, run.stop, device=query.device)
    count = min(top_k, run.stop)
    if count == run.stop:
        return _all_positions(newest, count)
    key = keys[table[: -(-run.stop // keys.shape[1])]].flatten(0, 2)[: run.stop]
    rows = max(1, MAX_SCORES // (query.shape[1] * run.stop))
    parts = (torch.split(each, rows) for each in (query, weights, newest))
    pieces = [_select(q, w, key, n, count) for q, w, n in zip(*parts, strict=True)]
    return torch.cat(pieces)


def select_rows(
    query: Tensor, weights: Tensor, keys: Tensor, tables: Tensor, lengths: Tensor, top_k: int
) -> Tensor:
    """Return the same of query[R H D], the newest row of R requests, as int32[R k].

    tables[R M] are the span numbers of each row, lengths[R] how many positions it sees; 0 of a
    padding row, which has none. k = min(top_k, positions in M spans).
    """
    span_len, most = keys.shape[1], tables.shape[1] * keys.shape[1]
    newest, count = lengths.long() - 1, min(top_k, most)
    if count == most:
        return _all_positions(newest, count)
    rows = max(1, MAX_SCORES // (query.shape[1] * most))
    parts = (torch.split(each, rows) for each in (query, weights, tables, newest))
    pieces = [
        _select(q, w, keys[t].view(-1, span_len * t.shape[1], keys.shape[-1]), n, count)
        for q, w, t, n in zip(*parts, strict=True)
    ]
    return torch.cat(pieces)


def attend_selected_slice(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    table: Tensor,
    run: Run,
    selected: Tensor,
    scale: float,
) -> Tensor:
    """Return what query[T H D] of one slice reads at the positions selected[T k], [T H E].

    `cache`: keys[S L K D] and values[S L K E] of a layer. Where no row sees more positions than
    were selected, that is attention to all of them.
    """
    if run.stop <= selected.shape[1]:
        return attend_slice(query, LayerSpans(*cache, table), run, Scoring(scale))
    return _attend_selected(query, cache, table.expand(len(query), -1), selected, scale)


def attend_selected_rows(
    query: Tensor,
    cache: tuple[Tensor, Tensor],
    tables: Tensor,
    lengths: Tensor,
    selected: Tensor,
    scale: float,
) -> Tensor:
    """Return the same of query[R H D], the newest row of R requests; tables[R M], lengths[R]."""
    if tables.shape[1] * cache[0].shape[1] <= selected.shape[1]:
        rows = torch.arange(len(query), device=query.device)
        return attend_rows(query, LayerSpans(*cache, tables), rows, lengths, Scoring(scale))
    return _attend_selected(query, cache, tables, selected, scale)


def _select(query: Tensor, weights: Tensor, key: Tensor, newest: Tensor, count: int) -> Tensor:
    """Return positions[R count] of key[J D] or key[R J D] for query[R H D] up to newest[R]."""
    products = torch.relu(query.float() @ key.float().mT)
    scores = (weights.float()[:, None] @ products)[:, 0]
    places = torch.arange(scores.shape[1], device=query.device)
    ranks = _ranks(scores, places).masked_fill_(places > newest[:, None], _HIDDEN)
    best = ranks.topk(count, -1, sorted=False).values
    found = (_LOW_BITS - (best & _LOW_BITS)).masked_fill_(best == _HIDDEN, len(places))
    found = found.sort(-1).values
    return found.masked_fill_(found == len(places), -1).int()


def _ranks(scores: Tensor, places: Tensor) -> Tensor:
    """[R J] int64: numbers in the order of scores[R J], of equal ones the lowest place first.

    All differ, so that what `topk` makes of equal numbers does not matter. The bits of a float32
    are in its order, but for those of negative numbers, whose bits are inverted. NaN is as -inf.
    """
    scores = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    bits = (scores + 0.0).view(torch.int32)  # + 0.0: no zero is negative
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.long() << 32) | (_LOW_BITS - places)


def _all_positions(newest: Tensor, count: int) -> Tensor:
    places = torch.arange(count, device=newest.device)
    return torch.where(places > newest[:, None], -1, places).int()


def _attend_selected(
    query: Tensor, cache: tuple[Tensor, Tensor], tables: Tensor, selected: Tensor, scale: float
) -> Tensor:
    """[N H E]: query[N H D] over the positions selected[N k] of requests with tables[N M]."""
    keys, values = cache
    _, span_len, kv_heads, size = keys.shape
    last = tables.shape[1] * span_len - 1  # beyond it are positions that no kernel has written yet
    rows = max(1, MAX_SCORES // (selected.shape[1] * max(query.shape[1], kv_heads * size)))
    pieces = []
    for q, table, places in zip(
        *(torch.split(each, rows) for each in (query, tables, selected)), strict=True
    ):
        known = places.clamp(0, last).long()
        spans, slots = table.gather(1, known // span_len).long(), known % span_len
        newest = (places >= 0).sum(-1, keepdim=True) - 1  # they are in front of those of -1
        key, value, seen = keys[spans, slots], values[spans, slots], Seen(newest, newest)
        pieces.append(attend_keys(q[:, None], key, value, seen, Scoring(scale))[:, 0])
    return torch.cat(pieces)
