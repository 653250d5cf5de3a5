"""Variants and launches of coded_hopper.cu: grouped GEMMs with codes on Hopper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Source, Variant

from spaninfer_kernels_cuda.grouped_gemm.coded import FORMATS
from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import (
    CodedHopper,
    choose_coded_hopper,
)
from spaninfer_kernels_cuda.grouped_gemm.kernels import GROUPED_CODED_HOPPER
from spaninfer_kernels_cuda.grouped_gemm.tuning import Shape, expert_macros
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, code_macros

_HEADERS = (
    *("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh"),
    "wgmma.cuh",
)


def _source(*pipeline: str) -> Source:
    return Source(
        "spaninfer_kernels_cuda",
        "grouped_gemm/coded_hopper.cu",
        _HEADERS,
        ("ring.cuh",),
        parts=(
            *("quantized_gemm/codes.cuh", "quantized_gemm/chunk.cuh"),
            *("grouped_gemm/coded_sums.cuh", *pipeline),
            *("grouped_gemm/glu.cuh", "grouped_gemm/tasks.cuh", "grouped_gemm/swapped.cuh"),
        ),
        kernels=(GROUPED_CODED_HOPPER,),
    )


SOURCES = {False: _source(), True: _source("quantized_gemm/pipeline.cuh")}


def coded_hopper_variant(
    tile: CodedHopper,
    format: QuantizedFormat,
    dtype: object,
    experts: int,
    gate: str,
    *,
    gathers: bool,
    shared: int = 0,
) -> Variant:
    """Return the variant for `tile`, a format and elements of `dtype`; `gate` is "" for none."""
    macros, _ = code_macros(format, dtype)
    macros |= {"TOKENS": tile.tokens, "GROUPS": tile.groups, "BLOCKS": tile.blocks}
    macros |= {"STAGES": tile.stages, "WGMMA": tile.wgmma, "BATCH": tile.batch}
    macros |= {"OF_SM": tile.of_sm, "FOLD": tile.fold, "GATED": bool(gate), "ACT": gate}
    macros |= expert_macros(experts, shared) | {"GATHERS": gathers}
    return Variant.of("grouped_coded_hopper", SOURCES[tile.wgmma], macros, ("sm_90a",))


def coded_hopper_variants() -> Iterator[Variant]:
    """Yield formats with tiles, element types and gates in turn."""
    for number, (format, mean) in enumerate(product(FORMATS, (2, 8, 20, 30, 60, 200))):
        tile = choose_coded_hopper(Shape(mean * 128, 8, 128, 1536, 2048), format, 232_448)
        dtype = (np.float16, ml_dtypes.bfloat16)[(number + number // 6) % 2]
        gated = number % 3 == 0
        gate = ("glu<silu>", "clamped_swiglu")[number % 2] if gated else ""
        yield coded_hopper_variant(tile, format, dtype, 128, gate, gathers=gated)
