"""The kernels of sampling, compiled: one variant per element type and architecture."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Source, Variant, element_of

from spaninfer_kernels_cuda.sample.kernels import (
    SAMPLE_LOGPROBS,
    SAMPLE_PENALTIES,
    SAMPLE_TOKENS,
    SAMPLE_TYPICAL,
)
from spaninfer_kernels_cuda.sample.tuning import SHAPES, shared_bytes

_PARTS = (
    *("params", "shared", "keys", "rows", "gumbel_max", "best", "search", "collect"),
    *("search_row", "truncation", "held", "typical", "logprobs", "penalties"),
)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "sample/kernel.cu",
    headers=(
        *("types.cuh", "reduce.cuh", "overlap.cuh", "cluster.cuh"),
        *("mma.cuh", "copy.cuh", "prefetch.cuh"),
    ),
    parts=tuple(f"sample/{part}.cuh" for part in _PARTS),
    kernels=(SAMPLE_PENALTIES, SAMPLE_TYPICAL, SAMPLE_TOKENS, SAMPLE_LOGPROBS),
)


def variant_for(dtype: object, arch: str) -> Variant:
    """Return the variant for logits of `dtype` on `arch`, which holds all kernels of `SOURCE`."""
    element = element_of(dtype)
    shape = SHAPES[arch]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "THREADS": shape.threads,
        "STAGES": shape.stages,
        "SHARED_BYTES": shared_bytes(shape),
    }
    alike = tuple(name for name in element.architectures if SHAPES[name] == shape)
    return Variant.of("sample_tokens", SOURCE, macros, alike)


VARIANTS: tuple[Variant, ...] = (
    *(
        variant_for(dtype, arch)
        for dtype, architectures in (
            (np.float32, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
            (np.float16, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
            (ml_dtypes.bfloat16, ("sm_80", "sm_90a", "sm_100a", "sm_120")),
        )
        for arch in architectures
    ),
)
"""All variants: one per element type and architecture."""
