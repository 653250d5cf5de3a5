"""Attention over spans with plain torch operators: keys and values gathered, scores in memory.

Right for every size and kind of bias, in float32, and slow: it serves where there is no kernel.
Nothing waits for the device, and no array is made on the host, so that calls can be captured into
CUDA graphs.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from spaninfer_op_reference import alibi_slopes
from torch import Tensor

from spaninfer_engine.ops.scoring import AlibiKind, Scoring
from spaninfer_engine.step.batch import Run

MAX_SCORES = 1 << 26  # of one piece of a slice: 256 MiB in float32
_HIDDEN = torch.finfo(torch.float32).min  # finite: a row that sees nothing must not become NaN


class Seen(NamedTuple):
    """The position [R T] of each query, from which windows count, and the last that it sees; the
    position of the first key.
    """

    position: Tensor
    newest: Tensor
    start: int = 0


class LayerSpans(NamedTuple):
    """The spans of one layer, keys[S L K D] and values[S L K E], and which are read, in order:
    those of one slice [M], or of requests [N M].
    """

    keys: Tensor
    values: Tensor
    table: Tensor


def attend_slice(
    query: Tensor,
    spans: LayerSpans,
    run: Run,
    scoring: Scoring,
    sinks: Tensor | None = None,
    until: Tensor | None = None,
) -> Tensor:
    """Return what query[T H D] of one slice reads, [T H E], in pieces that fit into memory.

    until[T]: the position behind the last that each row sees; None: its own.
    """
    keys, values, table = spans
    low = 0 if scoring.window is None else max(0, run.start - scoring.window + 1)
    first = low // keys.shape[1]
    last = -(-run.stop // keys.shape[1])
    start = first * keys.shape[1]
    key, value = (part[table[first:last]].flatten(0, 1)[None, : run.stop - start]
                  for part in (keys, values))  # fmt: skip
    rows = max(1, MAX_SCORES // (query.shape[1] * key.shape[1]))
    positions = torch.arange(run.start, run.stop, device=query.device)
    newest = positions if until is None else until - 1
    parts = (torch.split(each, rows) for each in (query, positions, newest))
    pieces = [
        attend_keys(each[None], key, value, Seen(place[None], last[None], start), scoring, sinks)[0]
        for each, place, last in zip(*parts, strict=True)
    ]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces)


def attend_rows(
    query: Tensor,
    spans: LayerSpans,
    rows: Tensor,
    lengths: Tensor,
    scoring: Scoring,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return what query[R H D], the newest row of R requests, reads: [R H E].

    rows[R] are the rows of the table, lengths[R] how many positions each sees; 0 of a padding row,
    which reads nothing. All columns of the table are gathered.
    """
    numbers = spans.table[rows]
    key, value = (part[numbers].flatten(1, 2) for part in (spans.keys, spans.values))
    newest = lengths[:, None] - 1
    return attend_keys(query[:, None], key, value, Seen(newest, newest), scoring, sinks)[:, 0]


def attend_keys(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    seen: Seen,
    scoring: Scoring,
    sinks: Tensor | None = None,
) -> Tensor:
    """[R T H E]: query[R T H D] over key[R J K D] of positions from `seen.start` on."""
    (_, rows, heads, dim), kv_heads = query.shape, key.shape[2]
    ratio = heads // kv_heads
    grouped = query.view(-1, rows, kv_heads, ratio, dim).permute(0, 2, 3, 1, 4)
    grouped = grouped.reshape(-1, kv_heads, ratio * rows, dim)
    scores = grouped.float() @ key.permute(0, 2, 3, 1).float() * scoring.scale
    scores = scores.view(-1, kv_heads, ratio, rows, key.shape[1])
    if scoring.softcap is not None:
        scores = torch.tanh(scores / scoring.softcap) * scoring.softcap
    position, newest, start = seen
    places = torch.arange(start, start + key.shape[1], device=key.device)
    if scoring.alibi is not None:
        bias = _bias(scoring.alibi, scoring.scale, heads, places)
        scores = scores + bias.view(kv_heads, ratio, 1, -1)
    hidden = places > newest[..., None]
    if scoring.window is not None:
        oldest = position - scoring.window + 1
        if scoring.chunked:
            oldest = position - position % scoring.window
        hidden |= places < oldest[..., None]
    weights = _softmax(scores.masked_fill(hidden[:, None, None], _HIDDEN), sinks)
    # What is masked may be anything, NaN too.
    value = value.masked_fill(hidden.all(1)[..., None, None], 0.0)
    read = weights.flatten(2, 3) @ value.transpose(1, 2).float()  # [R K H/K*T E]
    by_row = read.view(-1, kv_heads, ratio, rows, value.shape[-1]).permute(0, 3, 1, 2, 4)
    return by_row.flatten(2, 3).to(query.dtype)


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """[R K H/K T J]: weights of scores, beside those of the sinks[H], which have no values."""
    if sinks is None:
        return scores.softmax(-1)
    _, kv_heads, ratio, _, _ = scores.shape
    sink = sinks.float().view(kv_heads, ratio, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def _bias(kind: AlibiKind, scale: float, heads: int, places: Tensor) -> Tensor:
    """[H J]: a slope per head times the key's position."""
    slopes = slopes_of(heads, places.device)
    bias = (slopes.bfloat16() if kind == "rounded" else slopes)[:, None] * places
    return bias.float() * (1.0 if kind == "plain" else scale)


@cache
def slopes_of(heads: int, device: torch.device) -> Tensor:
    """[H] in float32: ALiBi's slopes, copied to the device once."""
    return torch.from_numpy(np.asarray(alibi_slopes(heads), np.float32)).to(device)
