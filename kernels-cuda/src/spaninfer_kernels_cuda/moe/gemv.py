"""Gated MLPs of few tokens' experts, without a sort: two launches that read each weight once.

x[T C], w13[E 2I C] and w2[E C I] hold one 16-bit float type, all 16-byte aligned and contiguous, C
and I multiples of 8. Rows of w13 are those of gate and up in turn, 8 of each. `launch` writes
out[T C] = residual + sum over choices of share * (w2 (act(gate x) * up x)), with biases b13[E 2I]
(in the order of w13) and b2[E C] where there are any. Accumulation is float32; the inner h[T k I]
is rounded. A token's result depends neither on the others nor on their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    DTypeError,
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
    element_of,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.activation import ACTS
from spaninfer_kernels_cuda.grouped_gemm import GATES, Gate
from spaninfer_kernels_cuda.moe.tuning import (
    MoeShape,
    Tile,
    check_shape,
    down_tile,
    launch_gemv,
    up_tile,
)


class UpArguments(NamedTuple):
    """Addresses, the arguments of moe_up."""

    h: Pointer
    x: Pointer
    ids: Pointer
    w13: Pointer
    b13: Pointer


class UpSizes(NamedTuple):
    """Sizes, the constants of moe_up."""

    pairs: Int32
    top_k: Int32
    inner: Int32


class DownArguments(NamedTuple):
    """Addresses, the arguments of moe_down."""

    out: Pointer
    h: Pointer
    ids: Pointer
    shares: Pointer
    w2: Pointer
    b2: Pointer
    residual: Pointer


class DownSizes(NamedTuple):
    """Sizes, the constants of moe_down."""

    tokens: Int32
    channels: Int32


MOE_UP = Signature("moe_up", UpArguments, UpSizes)
MOE_DOWN = Signature("moe_down", DownArguments, DownSizes)
_HEADERS = ("types.cuh", "reduce.cuh", "overlap.cuh", "activate.cuh")
_PARTS = ("moe/load.cuh", "moe/stream.cuh")
UP_SOURCE = Source(
    "spaninfer_kernels_cuda",
    "moe/up.cu",
    _HEADERS,
    parts=("grouped_gemm/glu.cuh", *_PARTS),
    kernels=(MOE_UP,),
)
DOWN_SOURCE = Source(
    "spaninfer_kernels_cuda", "moe/down.cu", _HEADERS, parts=_PARTS, kernels=(MOE_DOWN,)
)


class Experts(NamedTuple):
    """The weights of all experts: arrays, or addresses; biases None or 0 where there are none.

    Of codes, w13 and w2 are records uint8 [E blocks chunks record_bytes], f13 and f2 their factors
    float32 [E, 64 * blocks] (quantized_gemm.PackedWeight).
    """

    w13: object
    w2: object
    b13: object = None
    b2: object = None
    f13: object = None
    f2: object = None


@dataclass(frozen=True, slots=True)
class PreparedGemv:
    """The experts' MLPs of one number of tokens, as two launches."""

    shape: MoeShape
    workspace_bytes: int  # of h
    _up: Call[UpArguments] | None
    _down: Call[DownArguments] | None

    def launch(
        self,
        x: object,
        ids: object,
        shares: object,
        experts: Experts,
        *,
        out: object,
        workspace: object,
        residual: object = None,
        stream: object = None,
    ) -> None:
        """Write the weighted sum of chosen experts' results, plus `residual`, to `out`.

        ids[T k] and shares[T k] are those of `route`, which must be the launch before this one or
        an earlier one: a kernel that overlaps with this one must not write them. `out` may be
        `residual`.
        """
        h, chosen = pointer_of(workspace), pointer_of(ids)
        w13, w2, b13, b2 = map(pointer_of, experts[:4])
        down = DownArguments(
            out=pointer_of(out),
            h=h,
            ids=chosen,
            shares=pointer_of(shares),
            w2=w2,
            b2=b2,
            residual=pointer_of(residual),
        )
        up = UpArguments(h, pointer_of(x), chosen, w13, b13)
        self.start(stream_handle(stream, x), up, down)

    @property
    def by_name(self) -> NamedCalls:
        """The calls, their values named as the arrays."""
        return NamedCalls.of(self._up, self._down)

    def start(self, handle: int, up: UpArguments, down: DownArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._up is not None and self._down is not None:
            self._up(handle, up)
            self._down(handle, down)


def check_dtype(dtype: object) -> str:
    """Return the name in C++ of a 16-bit float type. Raises DTypeError for others."""
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    return element.name


def up_variant(act: Gate, channels: int, dtype: object, tile: Tile | None = None) -> Variant:
    """Return the variant of moe_up for rows of `channels` of `dtype`, float16 or bfloat16."""
    if act not in GATES:
        raise ShapeError(f"there is no gate {act!r}; there are {', '.join(GATES)}")
    tile = tile or up_tile(channels)
    sizes: dict[str, str | int | bool] = {"CHANNELS": channels}
    sizes["ACT"] = f"glu<{act}>" if act in ACTS else act
    return _variant("moe_up", UP_SOURCE, dtype, tile, sizes)


def down_variant(inner: int, top_k: int, dtype: object, tile: Tile | None = None) -> Variant:
    """Return the variant of moe_down for `top_k` rows of `inner` channels of `dtype`."""
    tile = tile or down_tile(inner, top_k)
    return _variant("moe_down", DOWN_SOURCE, dtype, tile, {"INNER": inner, "CHOICES": top_k})


def _variant(
    entry: str, source: Source, dtype: object, tile: Tile, sizes: dict[str, str | int | bool]
) -> Variant:
    macros: dict[str, str | int | bool] = {
        "T": check_dtype(dtype),
        "COLUMNS": tile.columns,
        "LOADS": tile.loads,
        "WARPS": tile.warps,
        "BLOCKS": tile.blocks,
        **sizes,
    }
    return Variant.of(entry, source, macros, element_of(dtype).architectures)


def prepare(
    shape: MoeShape,
    *,
    act: Gate,
    dtype: object,
    gpu: Gpu,
    tiles: tuple[Tile, Tile] | None = None,
    cache: FileCache | None = None,
) -> PreparedGemv:
    """Return the MLPs of `shape` on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    check_shape(shape)
    tokens, top_k, channels, inner = shape.tokens, shape.top_k, shape.channels, shape.inner
    up, down = tiles or (up_tile(channels), down_tile(inner, top_k))
    cache = cache or user_cache()
    up_compiled = compile_variant(up_variant(act, channels, dtype, up), gpu.arch, cache)
    down_compiled = compile_variant(down_variant(inner, top_k, dtype, down), gpu.arch, cache)
    pairs = tokens * top_k
    up_grid, down_grid = launch_gemv(pairs, inner, up), launch_gemv(tokens, channels, down)
    up_kernel, down_kernel = load(up_compiled, gpu, MOE_UP), load(down_compiled, gpu, MOE_DOWN)
    return PreparedGemv(
        shape,
        workspace_bytes=pairs * inner * element_of(dtype).itemsize,
        _up=Call(up_kernel, up_grid, UpSizes(pairs, top_k, inner)) if up_grid else None,
        _down=Call(down_kernel, down_grid, DownSizes(tokens, channels)) if down_grid else None,
    )


VARIANTS: tuple[Variant, ...] = (
    up_variant("silu", 2048, ml_dtypes.bfloat16),
    up_variant("clamped_swiglu", 2880, np.float16),
    down_variant(768, 8, ml_dtypes.bfloat16),
    down_variant(2880, 4, np.float16),
)
"""Both element types, both kinds of gate, and rows that loads divide and that they do not."""
