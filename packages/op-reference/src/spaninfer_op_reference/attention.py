"""Attention of one request over its keys and values.

Letters: T queries, N keys, H query heads, K kv heads, D key size, E value size. Query head h reads
kv head h // (H / K).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_op_reference.activation import softcap as cap_scores
from spaninfer_op_reference.activation import softmax
from spaninfer_op_reference.arrays import Floats, Ints


def attend(
    query: Floats,
    keys: Floats,
    values: Floats,
    query_positions: Ints,
    key_positions: Ints,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    chunked: bool = False,
    bias: Floats | None = None,
    sinks: Floats | None = None,
    until: Ints | None = None,
) -> Floats:
    """[T H E]: softmax(softcap(scale * q.k) + bias[H N]) over the visible values[N K E].

    query[T H D], keys[N K D]. A query at position i sees keys at positions j <= i, or j < until[i]
    where that is given (tokens of an image that see each other, Gemma 3), and with a window only
    j > i - window; every query must see one. `chunked` windows do not slide: i sees
    the keys of its own chunk of `window` positions (Llama 4). sinks[H] are scores of one key more
    per head, which has no value (gpt-oss).
    """
    visible = _visible(query_positions, key_positions, window, until)
    if window is not None and chunked:
        visible &= (query_positions // window)[:, None] == key_positions // window
    scores = np.where(visible, _scores(query, keys, scale, softcap, bias), -np.inf)
    if sinks is None:
        return _read(softmax(scores), values)
    sink = np.broadcast_to(sinks[:, None, None].astype(scores.dtype), (*scores.shape[:2], 1))
    return _read(softmax(np.concatenate([scores, sink], -1))[..., :-1], values)


def attend_ragged(
    query: Floats,
    keys: Floats,
    values: Floats,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    ahead: int | None = None,
    bias: Floats | None = None,
) -> Floats:
    """[T H E]: softmax(softcap(scale * q.k) + bias[H T T]) over the visible values[T K E].

    query[T H D] and keys[T K D] are of the same tokens. A query at position i sees the keys at
    positions i - window < j <= i + ahead; None: without that bound. So the self-attention of
    encoders (Devlin et al. 2018) has neither, and `ahead` = 0 is causal.
    """
    scores = _scores(query, keys, scale, softcap, None)
    distance = np.arange(len(query))[:, None] - np.arange(len(keys))
    visible = np.ones_like(distance, np.bool_)
    if window is not None:
        visible &= distance < window
    if ahead is not None:
        visible &= distance >= -ahead
    if bias is not None:
        scores = scores + bias.astype(scores.dtype)
    return _read(softmax(np.where(visible, scores, -np.inf)), values)


def attend_selected(
    query: Floats, keys: Floats, values: Floats, selected: Ints, *, scale: float
) -> Floats:
    """[T H E]: softmax(scale * q.k) over the values[N K E] at the positions selected[T k].

    query[T H D], keys[N K D]. -1 is no position (see `select_keys`); every query must have one.
    """
    visible = np.zeros((len(query), len(keys) + 1), np.bool_)
    np.put_along_axis(visible, selected.astype(np.int64), True, axis=1)  # -1: the last column
    scores = np.where(visible[:, :-1], _scores(query, keys, scale, None, None), -np.inf)
    return _read(softmax(scores), values)


def attend_part(
    query: Floats,
    keys: Floats,
    values: Floats,
    query_positions: Ints,
    key_positions: Ints,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    bias: Floats | None = None,
) -> tuple[Floats, Floats]:
    """Return `attend` over some of a request's keys [T H E], and its log-sum-exp of scores [T H].

    A query that sees none of these keys gets zeros and -inf.
    """
    visible = _visible(query_positions, key_positions, window)
    scores = np.where(visible, _scores(query, keys, scale, softcap, bias), -np.inf)
    lse = np.logaddexp.reduce(scores, axis=-1)  # [H T]
    weights = np.exp(scores - np.where(np.isneginf(lse), 0, lse)[..., None])
    return _read(weights, values), lse.T


def merge(outputs: Floats, lse: Floats) -> tuple[Floats, Floats]:
    """Return P parts as one: outputs[P T H E], lse[P T H] -> [T H E] and [T H].

    Each weighs exp(lse - total), total = log(sum(exp(lse))). Where no part saw a key, the output
    is zero and the total -inf.
    """
    total = np.logaddexp.reduce(lse, axis=0)
    weights = np.exp(lse - np.where(np.isneginf(total), 0, total))
    return (outputs * weights[..., None]).sum(0), total


def _scores(
    query: Floats, keys: Floats, scale: float, softcap: float | None, bias: Floats | None
) -> Floats:
    """[H T N]: the scores of query[T H D] and keys[N K D], masked keys included."""
    keys = keys.repeat(query.shape[1] // keys.shape[1], axis=1)
    scores = query.swapaxes(0, 1) @ keys.transpose(1, 2, 0) * scale
    if softcap is not None:
        scores = cap_scores(scores, softcap)
    return scores if bias is None else scores + bias[:, None].astype(scores.dtype)


def _visible(
    query_positions: Ints, key_positions: Ints, window: int | None, until: Ints | None = None
) -> NDArray[np.bool_]:
    """[T N]: True where a query sees a key."""
    ends = query_positions + 1 if until is None else until
    visible: NDArray[np.bool_] = key_positions < ends[:, None]
    if window is not None:
        visible &= query_positions[:, None] - key_positions < window
    return visible


def _read(weights: Floats, values: Floats) -> Floats:
    """[T H E]: weights[H T N] times values[N K E]."""
    values = values.repeat(len(weights) // values.shape[1], axis=1)
    return (weights @ values.swapaxes(0, 1)).swapaxes(0, 1)
