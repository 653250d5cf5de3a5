"""Copies of queries, scaled, as products read them: float32, or bfloat16 of many for pairs."""

from __future__ import annotations

import numpy as np

from spaninfer_kernels_cpu.attention.attention_kernels import AttentionKernels
from spaninfer_kernels_cpu.attention.pair_tile import PIECE, narrow_piece
from spaninfer_kernels_cpu.codegen.device_function import device_function
from spaninfer_kernels_cpu.codegen.elements import FLOAT32, read, write
from spaninfer_kernels_cpu.codegen.specialization import specialized


@specialized(lambda kernels: _as_pairs if kernels.by_pairs else _as_floats)
def copy_query(
    kernels: AttentionKernels, source: int, size: int, scale: np.float32, into: int, by_pairs: bool
) -> int:
    """Write a query, scaled, as products read it; return the address behind it."""
    raise NotImplementedError("exists in Numba functions only")


def _as_pairs(
    kernels: AttentionKernels,  # noqa: ARG001
    source: int,
    size: int,
    scale: np.float32,
    into: int,
    by_pairs: bool,
) -> int:
    if not by_pairs:
        return _copy_floats(source, size, scale, into)
    for channel in range(0, size, PIECE):
        narrow_piece(source + channel * 4, scale, into + channel * 2)
    return into + size * 2


def _as_floats(
    kernels: AttentionKernels,  # noqa: ARG001
    source: int,
    size: int,
    scale: np.float32,
    into: int,
    by_pairs: bool,  # noqa: ARG001
) -> int:
    return _copy_floats(source, size, scale, into)


@device_function
def _copy_floats(source: int, size: int, scale: np.float32, into: int) -> int:
    for i in range(size):
        write(FLOAT32, into, i, read(FLOAT32, source, i) * scale)
    return into + size * 4
