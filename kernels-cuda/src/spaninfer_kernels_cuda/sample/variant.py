"""The kernels of sampling, compiled: one variant per element type and architecture."""

from __future__ import annotations

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Source, Variant, element_of

from spaninfer_kernels_cuda.sample.tuning import SHAPES, shared_bytes

SOURCE = Source(
    "spaninfer_kernels_cuda",
    "sample/kernel.cu",
    headers=(
        *("types.cuh", "reduce.cuh", "overlap.cuh", "cluster.cuh"),
        *("mma.cuh", "copy.cuh", "prefetch.cuh"),
    ),
    parts=tuple(
        f"sample/{part}.cuh"
        for part in (
            *(
                "shared",
                "keys",
                "rows",
                "gumbel_max",
                "best",
                "search",
                "collect",
                "search_row",
                "truncation",
            ),
            *("report", "revise"),
        )
    ),
)
ENTRIES = ("sample_revise", "sample_draw", "sample_report")


def variant_for(dtype: object, arch: str) -> Variant:
    """Return the variant for logits of `dtype` on `arch`, which holds all of `ENTRIES`."""
    element = element_of(dtype)
    shape = SHAPES[arch]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "THREADS": shape.threads,
        "STAGES": shape.stages,
        "SHARED_BYTES": shared_bytes(shape),
    }
    alike = tuple(name for name in element.architectures if SHAPES[name] == shape)
    return Variant.of("sample_draw", SOURCE, macros, alike)


VARIANTS: tuple[Variant, ...] = tuple(
    variant_for(dtype, arch)
    for dtype, architectures in (
        (np.float32, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
        (np.float16, ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120")),
        (ml_dtypes.bfloat16, ("sm_80", "sm_90a", "sm_100a", "sm_120")),
    )
    for arch in architectures
)
"""All there are: one per element type and architecture."""
