"""Routing of a token to experts, for Numba functions to call: spaninfer_op_reference.route."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read
from spaninfer_kernels_cpu.codegen.exponential import exp
from spaninfer_kernels_cpu.sampling.top_k_kernel import select_largest

Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

_NOTHING = np.float32(-np.inf)
_MIN_SUM = np.float32(1e-20)  # sigmoids may all be 0
_ZERO = np.float32(0)
_ONE = np.float32(1)


class Routing(NamedTuple):
    """The routing function, as defined by spaninfer_op_reference.route.

    `sigmoid` instead of softmax; `two_best` of a group are its worth, instead of the largest;
    correction[E] (float32) is an address, 0 for none.
    """

    sigmoid: bool
    normalise: bool
    scale: np.float32
    groups: int
    group_topk: int
    two_best: bool
    correction: int


class RouteScratch(NamedTuple):
    """Scratch space, all [E]: scores, choice, numbers, worth of groups, largest and ids."""

    scores: Floats
    choice: Floats
    numbers: Ints
    worth: Floats
    largest: Floats
    largest_ids: Ints


@device_function
def route(
    logits: Floats, routing: Routing, scratch: RouteScratch, ids: Ints, weights: Floats
) -> None:
    """Write ids[k] and weights[k] of the experts that logits[E] choose, best first.

    Whatever the logits are, ids are those of experts: weights of a row that holds NaN are NaN.
    """
    _score(logits, routing.sigmoid, scratch.scores)
    for expert in range(len(logits)):
        scratch.choice[expert] = scratch.scores[expert]
        scratch.numbers[expert] = expert
        if routing.correction != 0:
            scratch.choice[expert] += read(FLOAT32, routing.correction, expert)
        if scratch.choice[expert] != scratch.choice[expert]:  # else fewer than k would be found
            scratch.choice[expert] = _NOTHING
    if routing.groups > 1:
        _keep_best_groups(routing, scratch)
    top_k = len(ids)
    select_largest(scratch.choice, scratch.numbers, len(logits), scratch.largest, ids, top_k)
    total = _ZERO
    for place in range(top_k):
        weights[place] = scratch.scores[ids[place]]
        total += weights[place]
    factor = routing.scale / (total + _MIN_SUM) if routing.normalise else routing.scale
    for place in range(top_k):
        weights[place] *= factor


@device_function
def _score(logits: Floats, sigmoid: bool, scores: Floats) -> None:
    """Write the sigmoids, or the softmax."""
    if sigmoid:
        for i in range(len(logits)):
            scores[i] = _ONE / (_ONE + exp(-logits[i]))
        return
    most, total = logits[0], _ZERO
    for i in range(len(logits)):
        most = max(most, logits[i])
    for i in range(len(logits)):
        scores[i] = exp(logits[i] - most)
        total += scores[i]
    for i in range(len(logits)):
        scores[i] /= total


@device_function
def _keep_best_groups(routing: Routing, scratch: RouteScratch) -> None:
    """Set the choice of experts outside the `group_topk` best groups of neighbours to -inf."""
    size = len(scratch.choice) // routing.groups
    for group in range(routing.groups):
        first = second = _NOTHING
        for i in range(group * size, (group + 1) * size):
            x = scratch.choice[i]
            if x > first:
                first, second = x, first
            elif x > second:
                second = x
        scratch.worth[group] = first + second if routing.two_best else first
    best_ids = scratch.largest_ids
    count = select_largest(
        scratch.worth,
        scratch.numbers,
        routing.groups,
        scratch.largest,
        best_ids,
        routing.group_topk,
    )
    for group in range(routing.groups):
        kept = False
        for place in range(count):
            kept |= best_ids[place] == group
        if not kept:
            for i in range(group * size, (group + 1) * size):
                scratch.choice[i] = _NOTHING
