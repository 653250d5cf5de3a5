"""The TMA tensor maps of x and weight for hopper.cu, wide.cu and tall.cu."""

from __future__ import annotations

import ml_dtypes  # noqa: F401  (numpy then knows its types by name)
import numpy as np
from spaninfer_kernel_launch import encode_tensor_map

from spaninfer_kernels_cuda.gemm.tuning import LINE_BYTES, Shape

_PAIRED = 8  # adjacent gate rows in shared memory, followed by their up rows


def map_x(pointer: int, dtype: str, shape: Shape, row_stride: int, tokens: int) -> bytes:
    """Return the map of x as [1 M K], in boxes of that many tokens."""
    return encode_tensor_map(
        pointer,
        dtype,
        shape=(1, shape.rows, shape.inner),
        strides=(shape.rows * row_stride, row_stride, 1),
        box=(1, tokens, _chunk(dtype)),
    )


def map_weight(pointer: int, dtype: str, shape: Shape, rows: int, *, gated: bool) -> bytes:
    """Return the map of the weight in boxes of that many rows: as [1 1 N K], or by pairs of rows.

    Gate row i and up row i go through one thread, so they must lie near each other in shared
    memory: as [N/16, 2, 8, K], a box holds 8 gate rows, their 8 up rows, the next 8 gate rows.
    """
    outputs, inner = shape.outputs, shape.inner
    if not gated:
        return encode_tensor_map(
            pointer,
            dtype,
            shape=(1, 1, outputs, inner),
            strides=(outputs * inner, outputs * inner, inner, 1),
            box=(1, 1, rows, _chunk(dtype)),
        )
    return encode_tensor_map(
        pointer,
        dtype,
        shape=(outputs // (2 * _PAIRED), 2, _PAIRED, inner),
        strides=(_PAIRED * inner, outputs // 2 * inner, inner, 1),
        box=(rows // (2 * _PAIRED), 2, _PAIRED, _chunk(dtype)),
    )


def _chunk(dtype: str) -> int:
    """Return the elements of a line of shared memory."""
    return LINE_BYTES // np.dtype(dtype).itemsize
