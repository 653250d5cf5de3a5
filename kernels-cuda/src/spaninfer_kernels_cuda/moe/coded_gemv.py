"""Gated MLPs of few tokens' experts in codes, without a sort: each code is read once.

As `gemv`, but w13 and w2 are records of codes (quantized_gemm.PackedWeight, those of w13 packed
with gate and up in turn). Codes are multiplied exactly, whatever their scales; sums are float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Int32,
    NamedCalls,
    Pointer,
    ShapeError,
    Signature,
    Source,
    Variant,
    compile_variant,
    load,
    user_cache,
)

from spaninfer_kernels_cuda.activation import ACTS
from spaninfer_kernels_cuda.grouped_gemm import GATES, Gate
from spaninfer_kernels_cuda.moe.coded_tuning import (
    CodedTile,
    coded_down_tile,
    coded_up_tile,
    launch_coded_down,
    launch_coded_up,
)
from spaninfer_kernels_cuda.moe.gemv import DownArguments, UpArguments
from spaninfer_kernels_cuda.moe.tuning import MoeShape, check_shape
from spaninfer_kernels_cuda.quantized_gemm import QuantizedFormat, code_macros


class CodedUpArguments(NamedTuple):
    """Addresses, the arguments of moe_coded_up."""

    h: Pointer
    x: Pointer
    ids: Pointer
    w13: Pointer
    b13: Pointer
    f13: Pointer


class CodedUpSizes(NamedTuple):
    """Sizes, the constants of moe_coded_up."""

    pairs: Int32
    top_k: Int32
    channels: Int32
    inner: Int32


class CodedDownArguments(NamedTuple):
    """Addresses, the arguments of moe_coded_down."""

    out: Pointer
    h: Pointer
    ids: Pointer
    shares: Pointer
    w2: Pointer
    b2: Pointer
    residual: Pointer
    f2: Pointer


class CodedDownSizes(NamedTuple):
    """Sizes, the constants of moe_coded_down."""

    tokens: Int32
    channels: Int32
    inner: Int32


CODED_UP = Signature("moe_coded_up", CodedUpArguments, CodedUpSizes)
CODED_DOWN = Signature("moe_coded_down", CodedDownArguments, CodedDownSizes)
_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
_PARTS = ("quantized_gemm/codes.cuh", "moe/strip.cuh")
CODED_UP_SOURCE = Source(
    "spaninfer_kernels_cuda",
    "moe/coded_up.cu",
    _HEADERS,
    parts=("grouped_gemm/glu.cuh", *_PARTS),
    kernels=(CODED_UP,),
)
CODED_DOWN_SOURCE = Source(
    "spaninfer_kernels_cuda", "moe/coded_down.cu", _HEADERS, parts=_PARTS, kernels=(CODED_DOWN,)
)


@dataclass(frozen=True, slots=True)
class PreparedCodedGemv:
    """The MLPs of experts in codes of one number of tokens, as two launches."""

    shape: MoeShape
    _up: Call[CodedUpArguments] | None
    _down: Call[CodedDownArguments] | None

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as the arrays."""
        return NamedCalls.of(self._up, self._down)

    def start(
        self, handle: int, up: UpArguments, down: DownArguments, factors: tuple[int, int]
    ) -> None:
        """Launch on the stream with this handle, the default stream included.

        `factors` are the addresses of those of w13 and w2.
        """
        if self._up is not None and self._down is not None:
            self._up(handle, CodedUpArguments(*up, factors[0]))
            self._down(handle, CodedDownArguments(*down, factors[1]))


def coded_up_variant(act: Gate, format: QuantizedFormat, dtype: object, tile: CodedTile) -> Variant:
    """Return the variant of moe_coded_up for a format and x of `dtype`."""
    if act not in GATES:
        raise ShapeError(f"there is no gate {act!r}; there are {', '.join(GATES)}")
    macros, architectures = _macros(format, dtype, tile)
    macros["ACT"] = f"glu<{act}>" if act in ACTS else act
    return Variant.of("moe_coded_up", CODED_UP_SOURCE, macros, architectures)


def coded_down_variant(
    top_k: int, format: QuantizedFormat, dtype: object, tile: CodedTile
) -> Variant:
    """Return the variant of moe_coded_down for `top_k` experts of a token."""
    macros, architectures = _macros(format, dtype, tile)
    macros |= {"CHOICES": top_k, "SPLITS": tile.splits}
    return Variant.of("moe_coded_down", CODED_DOWN_SOURCE, macros, architectures)


def _macros(
    format: QuantizedFormat, dtype: object, tile: CodedTile
) -> tuple[dict[str, str | int | bool], tuple[str, ...]]:
    macros, architectures = code_macros(format, dtype)
    macros |= {"CHUNKS": tile.chunks, "WARPS": tile.warps, "BLOCKS": tile.blocks}
    return macros, architectures


def prepare(
    shape: MoeShape,
    formats: tuple[QuantizedFormat, QuantizedFormat],
    *,
    act: Gate,
    dtype: object,
    gpu: Gpu,
    tiles: tuple[CodedTile, CodedTile] | None = None,
    cache: FileCache | None = None,
) -> PreparedCodedGemv:
    """Return the MLPs of `shape` on `gpu` for w13 and w2 in `formats`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    check_shape(shape)
    of_up, of_down = formats
    up, down = tiles or (
        coded_up_tile(shape.channels, of_up),
        coded_down_tile(shape.inner, shape.top_k, of_down),
    )
    cache = cache or user_cache()
    up_compiled = compile_variant(coded_up_variant(act, of_up, dtype, up), gpu.arch, cache)
    down_compiled = compile_variant(
        coded_down_variant(shape.top_k, of_down, dtype, down), gpu.arch, cache
    )
    up_grid = launch_coded_up(shape, up, of_up)
    down_grid = launch_coded_down(shape, down, of_down)
    up_kernel, down_kernel = load(up_compiled, gpu, CODED_UP), load(down_compiled, gpu, CODED_DOWN)
    pairs = shape.tokens * shape.top_k
    up_sizes = CodedUpSizes(pairs, shape.top_k, shape.channels, shape.inner)
    down_sizes = CodedDownSizes(shape.tokens, shape.channels, shape.inner)
    return PreparedCodedGemv(
        shape,
        _up=Call(up_kernel, up_grid, up_sizes) if up_grid else None,
        _down=Call(down_kernel, down_grid, down_sizes) if down_grid else None,
    )


def variants() -> Iterator[Variant]:
    """Yield formats with sizes, element types and gates in turn."""
    for number, format in enumerate(_FORMATS):
        dtype = (np.float16, ml_dtypes.bfloat16)[number % 2]
        act: Gate = ("silu", "clamped_swiglu")[number // 2 % 2]
        channels, inner, top_k = ((2048, 768, 8), (2880, 2880, 4))[number % 2]
        yield coded_up_variant(act, format, dtype, coded_up_tile(channels, format))
        yield coded_down_variant(top_k, format, dtype, coded_down_tile(inner, top_k, format))


_FORMATS = (
    QuantizedFormat(4, 128),
    QuantizedFormat(4, 128, "zero"),
    QuantizedFormat(8, None),
    QuantizedFormat(8, 128, values="e4m3"),
    QuantizedFormat(4, 32, "minimum"),
    QuantizedFormat(8, 32),
    QuantizedFormat(4, 32, values="e2m1"),
    QuantizedFormat(4, 16, values="e2m1"),
)

VARIANTS: tuple[Variant, ...] = tuple(variants())
"""Codes of both widths, with all shifts, both element types and both kinds of gate."""
