"""What `arm` makes programs of: kernels of the package, numbers for them, and what is right."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import ml_dtypes
import numpy as np
import spaninfer_op_reference as op_reference
from numba import njit
from spaninfer_kernels_cpu import Format, pack, unpack
from spaninfer_kernels_cpu.attend_block import Softmax
from spaninfer_kernels_cpu.attend_kernel import (
    PART_NUMBERS,
    Attention,
    attend_task,
    head_tasks,
    merge_task,
    scratch_bytes,
)
from spaninfer_kernels_cpu.attention_plan import plan_of
from spaninfer_kernels_cpu.elements import ELEMENTS
from spaninfer_kernels_cpu.layout import PANEL
from spaninfer_kernels_cpu.norm_kernel import rms_norm
from spaninfer_kernels_cpu.products import rows_for
from spaninfer_kernels_cpu.products_kernel import fill_tile
from spaninfer_kernels_cpu.recipe import recipes
from spaninfer_kernels_cpu.spans import Place, Spans
from spaninfer_kernels_cpu.tiers import TIERS

(NEON,) = [tier for tier in TIERS if tier.name == "neon_i8mm"]
RNG = np.random.default_rng(0)


@dataclass
class Program:
    """A kernel of addresses and numbers, which `arguments` name or are; it writes `out`."""

    kernel: Any
    arrays: dict[str, np.ndarray]
    arguments: tuple[str | int, ...]
    truth: tuple[np.ndarray, ...]  # what `out` begins with, one after the other, in float32
    out_bytes: int
    spare: dict[str, int] = field(default_factory=dict)  # bytes of memory beside


# ---- products, by the tiles of several rows and of one, and a norm of their rows -----------------

ROWS, CHANNELS, EPS = 5, 128, 1e-5


def product(kind):
    one, many = recipes(kind, rounded=True, tier=NEON)
    assert one.channel_bytes == many.channel_bytes
    format = Format(kind, 64) if kind in ("int8", "int4") else Format(kind)
    packed = pack(RNG.standard_normal((PANEL, CHANNELS), np.float32), format)
    x = RNG.standard_normal((ROWS, CHANNELS), np.float32)
    if format.has_codes:
        codes, scale = zip(*map(op_reference.quantize_rows, np.split(x, 2, 1)), strict=True)
        meant = np.concatenate([c * s.astype(float) for c, s in zip(codes, scale, strict=True)], 1)
    else:
        x = meant = x.astype(np.float32 if many.channel_bytes == 4 else ml_dtypes.bfloat16)
    rows = rows_for(x, packed.layout, many, workers=1)
    weight = RNG.standard_normal(PANEL, np.float32)
    sizes = packed.layout.groups, packed.layout.group_bytes, CHANNELS * many.channel_bytes
    groups, group_bytes, row_bytes = sizes[0], sizes[1], sizes[2] // sizes[0]
    stride, last = rows.shape[1], ROWS - 1

    @njit(error_model="numpy")
    def kernel(weights, x, norm, normed, alone, together):
        sizes = (groups, group_bytes, row_bytes)
        fill_tile(many, weights, x, stride, last, sizes, together)
        fill_tile(one, weights, x, stride, 0, sizes, alone)
        rms_norm(together, norm, normed, last + 1, PANEL, np.float32(EPS), False)

    sums = meant.astype(float) @ unpack(packed).T
    normed = sums / np.sqrt((sums**2).mean(-1, keepdims=True) + EPS) * weight
    size, row = 4 * ROWS * PANEL, 4 * PANEL
    return Program(
        kernel,
        {"weights": packed.panels, "x": rows, "norm": weight},
        ("weights", "x", "norm", "out", f"out + {size}", f"out + {size + row}"),
        (normed, sums[:1], sums),
        size + row + 4 * many.rows * PANEL,
    )


# ---- attention: a chunk of a prompt, and a token behind a context that is read in parts ----------

HEADS, KV_HEADS, SIZE, SPAN_LEN = 4, 2, 64, 32
FIRST, LENGTHS = (60, 599), (100, 600)
SCALE, SOFTCAP, WINDOW = 0.2, 3.0, 580


def attention(kind):
    element, (one, many) = ELEMENTS[kind], recipes("float32", rounded=False, tier=NEON)
    counts = [-(-length // SPAN_LEN) for length in LENGTHS]
    tables = np.zeros((2, max(counts)), np.int32)
    numbers = RNG.permutation(sum(counts)).astype(np.int32)
    tables[0, : counts[0]], tables[1] = np.split(numbers, [counts[0]])
    shape = (sum(counts), SPAN_LEN, KV_HEADS, SIZE)
    keys, values = (stored(RNG.standard_normal(shape, np.float32), kind) for _ in range(2))
    positions = [np.arange(*ends) for ends in zip(FIRST, LENGTHS, strict=True)]
    request = np.repeat([0, 1], [len(each) for each in positions]).astype(np.int32)
    position = np.concatenate(positions).astype(np.int32)
    query = RNG.standard_normal((len(position), HEADS, SIZE), np.float32)
    items, num_parts = plan_of(request, position, HEADS // KV_HEADS, WINDOW)
    assert num_parts > 0
    num_items, table_bytes = len(items), tables.strides[0]
    span, token, head = keys.numbers.strides[:3]
    scale_strides = (8 * SPAN_LEN * KV_HEADS, 8 * KV_HEADS, 8)

    @njit(error_model="numpy")
    def kernel(query, out, items, tables, parts, keys, values, key_scales, value_scales, scratch):
        row = 4 * HEADS * SIZE
        call = Attention(query, row, out, HEADS, items, num_items, tables, table_bytes, parts)
        spans = Spans(
            Place(keys, span, token, head),
            Place(values, span, token, head),
            Place(key_scales, scale_strides[0], scale_strides[1], scale_strides[2]),
            Place(value_scales, scale_strides[0], scale_strides[1], scale_strides[2]),
            SPAN_LEN,
            KV_HEADS,
            SIZE,
            SIZE,
        )
        softmax = Softmax(np.float32(SCALE), np.float32(SOFTCAP), WINDOW, 0, 0, False)
        for number in range(num_items):
            for unit in range(head_tasks(HEADS, KV_HEADS)):
                attend_task(element, one, many, number, unit, call, spans, softmax, scratch)
        for number in range(num_items):
            merge_task(number, call, SIZE, 0)

    truth = [
        op_reference.attend(
            *(query[request == n].astype(float), keys.seen(tables[n], length)),
            *(values.seen(tables[n], length), positions[n], np.arange(length)),
            scale=SCALE,
            softcap=SOFTCAP,
            window=WINDOW,
        )
        for n, length in enumerate(LENGTHS)
    ]
    arrays = {"query": query, "items": items, "tables": tables}
    arrays |= {"keys": keys.numbers, "values": values.numbers}
    scales = {"key_scales": keys.scales, "value_scales": values.scales}
    names = ("query", "out", "items", "tables", "parts", "keys", "values")
    return Program(
        kernel,
        arrays | (scales if element.is_code else {}),
        (*names, *(scales if element.is_code else (0, 0)), "scratch"),
        tuple(truth),
        query.nbytes,
        {
            "parts": 4 * num_parts * HEADS * (SIZE + PART_NUMBERS),
            "scratch": scratch_bytes(SIZE, SIZE),
        },
    )


@dataclass
class Stored:
    """Keys or values of all spans as kernels read them, and what they mean[S L K D]."""

    numbers: np.ndarray
    scales: np.ndarray
    meant: np.ndarray

    def seen(self, table, length):
        """Those of the first tokens of a request."""
        span, slot = np.divmod(np.arange(length), SPAN_LEN)
        return self.meant[table[span], slot]


def stored(x, kind):
    if kind == "bfloat16":
        numbers = x.astype(ml_dtypes.bfloat16)
        return Stored(numbers, np.zeros(1, np.float32), numbers.astype(float))
    codes = op_reference.quantize_cache(x.reshape(-1, KV_HEADS, SIZE), op_reference.CodeRange.UINT4)
    scales = np.concatenate([codes.zero, codes.scale], -1).astype(np.float32)
    numbers = op_reference.pack_nibbles(codes.codes).reshape(*x.shape[:3], -1)
    meant = (codes.codes - codes.zero.astype(float)) * codes.scale.astype(float)
    return Stored(numbers, scales, meant.reshape(x.shape))


PROGRAMS: dict[str, Callable[[], Program]] = {
    **{kind: partial(product, kind) for kind in ("float32", "bfloat16", "int8", "int4")},
    **{f"{kind} attention": partial(attention, kind) for kind in ("bfloat16", "uint4")},
}
