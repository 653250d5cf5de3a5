"""Variants of the kernels of grouped GEMM."""

from __future__ import annotations

from typing import Literal

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import DTypeError, ShapeError, Source, Variant, element_of

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.grouped_gemm.coded import coded_variants
from spaninfer_kernels_cuda.grouped_gemm.coded_hopper import coded_hopper_variants
from spaninfer_kernels_cuda.grouped_gemm.kernels import (
    GROUPED_CLEAR,
    GROUPED_GENERAL,
    GROUPED_PROMPT,
    GROUPED_SORT,
    GROUPED_STREAM,
    GROUPED_SWAPPED_PROMPT,
)
from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    SORT_LINES,
    SORT_LOADS,
    SORT_WARPS,
    General,
    Prompt,
    Stream,
    Tile,
    expert_macros,
    fill_prompt,
    fill_stream,
)

_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
_ON_HOPPER = (*_HEADERS, "wgmma.cuh")
_PACKAGE, _RING = "spaninfer_kernels_cuda", ("ring.cuh",)
_TASKS = ("grouped_gemm/glu.cuh", "grouped_gemm/tasks.cuh")
_SWAPPED, _GATHER = "grouped_gemm/swapped.cuh", "grouped_gemm/gather.cuh"
GENERAL = Source(
    _PACKAGE,
    "grouped_gemm/general.cu",
    _HEADERS,
    parts=(*_TASKS, _SWAPPED, "grouped_gemm/passing.cuh"),
    kernels=(GROUPED_GENERAL,),
)
STREAM = Source(
    _PACKAGE,
    "grouped_gemm/stream.cu",
    _ON_HOPPER,
    _RING,
    parts=(*_TASKS, _SWAPPED, _GATHER),
    kernels=(GROUPED_STREAM,),
)
PROMPT = Source(
    _PACKAGE,
    "grouped_gemm/prompt.cu",
    _ON_HOPPER,
    _RING,
    parts=(*_TASKS, "grouped_gemm/quads.cuh", "grouped_gemm/prompt.cuh"),
    kernels=(GROUPED_PROMPT,),
)
SWAPPED_PROMPT = Source(
    _PACKAGE,
    "grouped_gemm/swapped_prompt.cu",
    _ON_HOPPER,
    _RING,
    parts=(*_TASKS, "grouped_gemm/prompt.cuh"),
    kernels=(GROUPED_SWAPPED_PROMPT,),
)
SORT = Source(
    _PACKAGE,
    "grouped_gemm/sort.cu",
    ("reduce.cuh", "overlap.cuh"),
    kernels=(GROUPED_SORT, GROUPED_CLEAR),
)

Gate = Act | Literal["clamped_swiglu"]
"""Gated activations: act(gate) * up, or quick_gelu(gate) * (up + 1) of both clamped (gpt-oss)."""

GATES: tuple[Gate, ...] = (*ACTS, "clamped_swiglu")

SORT_VARIANT = Variant.of(
    "grouped_sort", SORT, {"LOADS": SORT_LOADS, "LINES": SORT_LINES, "WARPS": SORT_WARPS}
)


def variant_for(
    tile: Tile,
    dtype: object,
    experts: int,
    gate: Gate | None = None,
    *,
    gathers: bool,
    shared: int = 0,
) -> Variant:
    """Return the variant for `tile` and elements of `dtype`, float16 or bfloat16.

    Of `experts` the last `shared` ones have all tokens.
    """
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        **expert_macros(experts, shared),
        "STAGES": tile.stages,
        "GATED": gate is not None,
        "ACT": function_of(gate),
    }
    if isinstance(tile, Prompt):
        macros |= {
            "BLOCKS": tile.row_blocks,
            "BOX_ROWS": tile.box_rows(gathers=gathers),
            "GATHERS": gathers and tile.gathers,
            "ROWS": tile.outputs,
            "SHARE": tile.share,
        }
        if tile.swapped:
            return Variant.of("grouped_swapped_prompt", SWAPPED_PROMPT, macros, ("sm_90a",))
        macros |= {"BY_ROWS": tile.by_rows}
        return Variant.of("grouped_prompt", PROMPT, macros, ("sm_90a",))
    macros |= {"TOKENS": tile.tokens, "GATHERS": gathers}
    if isinstance(tile, Stream):
        macros |= {"GROUPS": tile.groups, "BLOCKS_OF_SM": tile.blocks}
        return Variant.of("grouped_stream", STREAM, macros, ("sm_90a",))
    return Variant.of("grouped_general", GENERAL, macros, element.architectures)


def function_of(gate: Gate | None) -> str:
    """Return the function of glu.cuh, or "" without a gate. Raises ShapeError."""
    if gate is not None and gate not in GATES:
        raise ShapeError(f"there is no gate {gate!r}; there are {', '.join(GATES)}")
    return f"glu<{gate}>" if gate in ACTS else gate or ""


_EXPERTS, _SHARED_BYTES = 128, 232_448  # of a block on Hopper
TILES: tuple[Tile, ...] = (
    *(General(tokens, 2) for tokens in (16, 64)),
    *(
        fill_stream(Stream(*sizes), _EXPERTS)
        for sizes in ((8, 1, 0, 2), (16, 2, 0, 2), (32, 2, 0, 2), (64, 2, 0, 2))
    ),
    *(
        fill_prompt(Prompt(*sizes), _EXPERTS, _SHARED_BYTES)
        for sizes in (
            (2, 256, 0, True, True),
            (2, 128, 0),
            (3, 256, 0, False),
            (4, 192, 0),
            (2, 256, 0),
            (3, 256, 0, False, False, True),
        )
    ),
)
"""All tiles that `choose` may return."""

VARIANTS: tuple[Variant, ...] = (
    SORT_VARIANT,
    *(
        variant_for(tile, dtype, _EXPERTS, gate, gathers=gate is not None)
        for tile in TILES
        for dtype in (np.float16, ml_dtypes.bfloat16)
        for gate in (None, GATES[0])
    ),
    *coded_variants(),
    *coded_hopper_variants(),
    *(variant_for(TILES[2], np.float16, _EXPERTS, gate, gathers=True) for gate in GATES[1:]),
    *(variant_for(tile, np.float16, _EXPERTS, gathers=False, shared=2) for tile in TILES),
)
"""Every tile with both element types, of sorted rows and of gathered ones; every gate; and every
tile with shared experts.
"""
