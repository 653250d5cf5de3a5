"""The choice of experts as a call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.call import (
    MAX_SIZE,
    NUMBERS_PER_TASK,
    ROWS,
    Call,
    Rows,
    real,
    rows_per_task,
    word,
)
from spaninfer_kernels_cpu.elements import larger, smaller
from spaninfer_kernels_cpu.errors import ShapeError, check_vector, demand_size
from spaninfer_kernels_cpu.pointer import floats_at, numbers_at
from spaninfer_kernels_cpu.route_kernel import Room, Routing, route

Floats = NDArray[np.float32]

_PASSES = 8  # over the scores of a row, about


def route_call(
    logits: Rows,
    *,
    experts: int,
    scores: Mapping[str, Any],
    correction: Floats | None = None,
    ids: int,
    shares: int,
    count: int = ROWS,
) -> Call:
    """Write which experts logits[T E] choose: ids[T k] (int32) and shares[T k], best first.

    `scores` are the keywords of spaninfer_op_reference.route, all but `correction`; ids and shares
    are addresses. The caller keeps correction[E] alive. Raises KernelError where fewer than `top_k`
    experts could be chosen from, and for groups that experts do not make.
    """
    _check(experts, scores)
    if correction is not None:
        check_vector("correction", correction, experts)
    words = (
        *(logits.address, logits.stride, experts, ids, shares, scores["top_k"]),
        *(int(scores["kind"] == "sigmoid"), int(scores["normalise"])),
        *(scores["groups"], scores["group_topk"], int(scores["group_score"] == "top2")),
        0 if correction is None else correction.ctypes.data,
        float(scores["scale"]),
    )
    return Call(_route, words, 1, rows_per_task(_PASSES * experts), count)


def _check(experts: int, scores: Mapping[str, Any]) -> None:
    groups = scores["groups"]
    demand_size("experts", experts, 1, MAX_SIZE)
    demand_size("groups", groups, 1, experts)
    if experts % groups:
        raise ShapeError(f"{experts} experts do not make {groups} groups of equal size")
    size = experts // groups
    demand_size("group_topk", scores["group_topk"], 1, groups)
    demand_size("top_k", scores["top_k"], 1, size * scores["group_topk"])
    if groups > 1 and scores["group_score"] == "top2":
        demand_size("experts of a group whose best two are summed", size, 2, experts)


def _route(words: int, rows: int, task: int) -> None:
    experts, top_k = word(words, 2), word(words, 5)
    routing = Routing(
        word(words, 6) != 0,
        word(words, 7) != 0,
        real(words, 12),
        word(words, 8),
        word(words, 9),
        word(words, 10) != 0,
        word(words, 11),
    )
    floats, ints = np.empty((4, experts), np.float32), np.empty((2, experts), np.int32)
    room = Room(floats[0], floats[1], ints[0], floats[2], floats[3], ints[1])
    some = larger(1, NUMBERS_PER_TASK // (_PASSES * experts))
    for row in range(task * some, smaller(rows, (task + 1) * some)):
        logits = floats_at(word(words, 0) + row * word(words, 1), experts)
        ids = numbers_at(word(words, 3) + row * top_k * 4, top_k, np.int32)
        shares = floats_at(word(words, 4) + row * top_k * 4, top_k)
        route(logits, routing, room, ids, shares)
