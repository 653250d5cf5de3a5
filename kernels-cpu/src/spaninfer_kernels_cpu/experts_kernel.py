"""Mixture of experts, for Numba functions to call: tokens ordered by expert, and products of each.

T tokens choose k experts each, P = T k places. Order the places by expert, copy the rows that the
first product reads into that order (`gather`), multiply panels of every expert by its own rows
(`expert_task`, the same packed weights and tiles as other products), activate, multiply again, and
sum the results of a token with its weights (`combine`). Addresses are in bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from spaninfer_kernels_cpu.elements import FLOAT32, read, read_address, read_index, write
from spaninfer_kernels_cpu.in_kernel import in_kernel
from spaninfer_kernels_cpu.layout import PANEL, STEP_BYTES
from spaninfer_kernels_cpu.pointer import numbers_at
from spaninfer_kernels_cpu.products_kernel import fill_tile
from spaninfer_kernels_cpu.recipe import Recipe

Ints = NDArray[np.int32]


@in_kernel
def order_by_expert(ids: int, places: int, bounds: Ints, rank: Ints) -> None:
    """Write where each of ids[P] (int32) comes when sorted by expert: rank[P].

    Expert e has ranks [bounds[e], bounds[e + 1]); bounds[E + 1]. Places of one expert keep their
    order.
    """
    bounds[:] = 0
    for place in range(places):
        bounds[read_index(ids, place) + 1] += 1
    for expert in range(1, len(bounds)):
        bounds[expert] += bounds[expert - 1]
    for place in range(places):
        expert = read_index(ids, place)
        rank[place] = bounds[expert]
        bounds[expert] += 1
    for expert in range(len(bounds) - 1, 0, -1):
        bounds[expert] = bounds[expert - 1]
    bounds[0] = 0


@in_kernel
def gather(place: int, per_token: int, rank: int, rows: int, row_bytes: int, out: int) -> None:
    """Copy the row of a place's token to where the place comes; rank[P] is int32."""
    source = numbers_at(rows + place // per_token * row_bytes, row_bytes, np.uint8)
    target = numbers_at(out + read_index(rank, place) * row_bytes, row_bytes, np.uint8)
    for i in range(row_bytes):
        target[i] = source[i]


@in_kernel
def expert_task(
    recipe: Recipe,
    expert: int,
    panel: int,
    weights: int,
    panel_bytes: int,
    groups: int,
    bounds: int,
    rows: int,
    row_bytes: int,
    out: int,
    outputs: int,
    tile: int,
) -> None:
    """Multiply an expert's rows, of those in order, by a panel of its weight, into out[P O].

    weights[E] are the addresses of the experts' panels, bounds[E + 1] int32; `tile` is
    room for recipe.rows times 64 float32 of this caller alone.
    """
    first, last = read_index(bounds, expert), read_index(bounds, expert + 1)
    sizes = (groups, panel_bytes // groups, row_bytes // groups)
    source = read_address(weights, expert) + panel * panel_bytes
    width = min(PANEL, outputs - panel * PANEL)
    while first < last:
        address = rows + first * row_bytes
        fill_tile(recipe, source, address, row_bytes, last - 1 - first, sizes, tile)
        for row in range(min(recipe.rows, last - first)):
            into = out + ((first + row) * outputs + panel * PANEL) * 4
            for i in range(width):
                write(FLOAT32, into, i, read(FLOAT32, tile + row * STEP_BYTES, i))
        first += recipe.rows


@in_kernel
def combine(
    token: int, per_token: int, rank: int, weights: int, results: int, channels: int, out: int
) -> None:
    """Write the sum of a token's results[P C], by rank, times its weights[T k], to out[T C]."""
    into = out + token * channels * 4
    for i in range(channels):
        write(FLOAT32, into, i, np.float32(0))
    for choice in range(token * per_token, (token + 1) * per_token):
        source = results + read_index(rank, choice) * channels * 4
        weight = read(FLOAT32, weights, choice)
        for i in range(channels):
            write(FLOAT32, into, i, read(FLOAT32, into, i) + weight * read(FLOAT32, source, i))
