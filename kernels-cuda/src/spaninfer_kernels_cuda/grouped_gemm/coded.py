"""Variants and launches of coded.cu: grouped GEMMs whose weights are codes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Source,
    Variant,
)

from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import Coded, choose_coded
from spaninfer_kernels_cuda.grouped_gemm.kernels import GROUPED_CODED
from spaninfer_kernels_cuda.grouped_gemm.tuning import Shape, expert_macros
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, code_macros

_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "grouped_gemm/coded.cu",
    _HEADERS,
    parts=(
        *("quantized_gemm/codes.cuh", "quantized_gemm/chunk.cuh"),
        *("grouped_gemm/glu.cuh", "grouped_gemm/tasks.cuh"),
        *("grouped_gemm/swapped.cuh", "grouped_gemm/passing.cuh"),
    ),
    kernels=(GROUPED_CODED,),
)


def coded_variant(
    tile: Coded,
    format: QuantizedFormat,
    dtype: object,
    experts: int,
    gate: str,
    *,
    gathers: bool,
    shared: int = 0,
) -> Variant:
    """Return the variant for `tile`, a format and elements of `dtype`; `gate` is "" for none."""
    macros, architectures = code_macros(format, dtype)
    macros |= {"TOKENS": tile.tokens, "GROUPS": tile.groups, "STAGES": tile.stages}
    macros |= {"FOLD": tile.fold, "GATED": bool(gate), "ACT": gate}
    macros |= expert_macros(experts, shared) | {"GATHERS": gathers}
    return Variant.of("grouped_coded", SOURCE, macros, architectures)


def coded_variants() -> Iterator[Variant]:
    """Yield formats with tiles, element types and gates in turn."""
    cases = product(FORMATS, (2, 8, 20, 200))
    for number, (format, mean) in enumerate(cases):
        tile = choose_coded(Shape(mean * 128, 8, 128, 1536, 2048), format, 166_912)
        dtype = (np.float16, ml_dtypes.bfloat16)[(number + number // 4) % 2]
        gated = number % 3 == 0
        gate = ("glu<silu>", "clamped_swiglu")[number % 2] if gated else ""
        yield coded_variant(tile, format, dtype, 128, gate, gathers=gated)


FORMATS = (
    QuantizedFormat(4, 128, "zero"),
    QuantizedFormat(8, None),
    QuantizedFormat(4, 32, "minimum"),
    QuantizedFormat(8, 128, values="e4m3"),
    QuantizedFormat(4, 32, values="e2m1"),
)
