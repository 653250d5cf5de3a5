"""The kernels at the sizes of Qwen2-0.5B: GEMMs of packed weights, attention over spans."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import cycle
from typing import Final

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import (
    AttentionBatch,
    Gemm,
    Matrix,
    Packed,
    Scores,
    Script,
    aligned,
    attend,
    pack,
    shared_thread_pool,
)

from spaninfer.bench.cpu.case import Case
from spaninfer.bench.cpu.formats import FORMATS, name_of
from spaninfer.bench.cpu.limits import Work

_PRODUCTS = {"gate and up": (9728, 896), "down": (896, 4864)}  # outputs, channels
_ROWS = (1, 8, 256)
_COLD_BYTES = 256 << 20  # of copies that take turns: more than caches hold
_HEADS, _KV_HEADS, _HEAD_SIZE, _SPAN_LEN = 14, 2, 64, 32
_ATTENTION = ((1, 4000, 1), (8, 1000, 1), (1, 0, 256))  # requests, tokens before, rows of each

Floats = NDArray[np.float32]


def product_cases() -> Iterator[Case]:
    """Yield GEMMs of one row, of few and of many, as the engine's steps have them.

    Weights come from memory; those of one format at a time are kept.
    """
    rng = np.random.default_rng(0)
    for product, (outputs, channels) in _PRODUCTS.items():
        weight = rng.standard_normal((outputs, channels), np.float32) * np.float32(0.02)
        for format in FORMATS:
            packed = pack(weight, format)
            copies = _copies(packed)
            for rows in _ROWS:
                x = rng.standard_normal((rows, channels), np.float32)
                yield Case(
                    kernel="product",
                    sizes={"product": product, "format": name_of(format), "rows": rows},
                    work=Work(format.kind, packed.panels.nbytes, 2 * rows * outputs * channels),
                    run=_product(x, copies),
                )


def _copies(packed: Packed) -> list[Packed]:
    count = max(1, _COLD_BYTES // packed.panels.nbytes)
    return [packed, *(Packed(packed.layout, packed.panels.copy()) for _ in range(count - 1))]


def _product(x: Floats, weights: list[Packed]) -> Callable[[], object]:
    """Return what multiplies x by the next of the weights; it may round x where these are bf16."""
    out = np.empty((len(x), weights[0].layout.outputs), np.float32)
    gemms = [Gemm(weight, rounded=True) for weight in weights]
    scratch = aligned((len(x) * gemms[0].scratch_bytes,), np.uint8)
    rows, outputs = Matrix.of(x), Matrix.of(out)
    scripts = cycle(
        [Script(gemm.calls(rows, out=outputs, scratch=scratch.ctypes.data)) for gemm in gemms]
    )
    return partial(_run, scripts, len(x), (x, weights, out, scratch))


def _run(scripts: Iterator[Script], rows: int, _kept: tuple[object, ...]) -> None:
    """Run the next script; calls know addresses alone, so what lies there is held meanwhile."""
    shared_thread_pool().run(next(scripts), [rows])


def attention_cases() -> Iterator[Case]:
    """Yield decode of one request and of eight, and the first rows of a prompt, in float32."""
    for requests, before, rows in _ATTENTION:
        length = before + rows
        yield Case(
            kernel="attention",
            sizes={"requests": requests, "before": before, "rows": rows, "kv": "float32"},
            work=Work(
                "float32",
                num_bytes=requests * length * _KV_HEADS * 2 * _HEAD_SIZE * 4,
                operations=4 * requests * _pairs(before, rows) * _HEADS * _HEAD_SIZE,
            ),
            run=_attention(requests, before, rows),
        )


def _pairs(before: int, rows: int) -> int:
    """Return how many tokens the rows of a request see, all together.

    >>> _pairs(0, 3), _pairs(10, 1)
    (6, 11)
    """
    return rows * before + rows * (rows + 1) // 2


def _attention(requests: int, before: int, rows: int) -> Callable[[], object]:
    """Return a call of attention over spans that lie in any order."""
    rng = np.random.default_rng(0)
    spans = -(-(before + rows) // _SPAN_LEN)
    shape = (requests * spans, _SPAN_LEN, _KV_HEADS, _HEAD_SIZE)
    keys, values = (rng.standard_normal(shape, np.float32) for _ in range(2))
    where = AttentionBatch(
        rng.permutation(requests * spans).reshape(requests, spans).astype(np.int32),
        np.repeat(np.arange(requests, dtype=np.int32), rows),
        np.tile(np.arange(before, before + rows, dtype=np.int32), requests),
    )
    query = rng.standard_normal((requests * rows, _HEADS, _HEAD_SIZE), np.float32)
    scores = Scores(_HEAD_SIZE**-0.5)
    return partial(attend, query, keys, values, where, scores, out=np.empty_like(query))


KERNELS: Final[Mapping[str, Callable[[], Iterator[Case]]]] = {
    "product": product_cases,
    "attention": attention_cases,
}
