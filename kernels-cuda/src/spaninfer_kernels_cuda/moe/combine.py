"""The sum of experts' results, and its RMS norm: residual[t] + sum_j shares[t j] y[place[t j]].

y[T k C] holds a row per pair in the order of experts, unweighted; out[T C] and residual have its
16-bit float type, 16-byte aligned and contiguous, C a multiple of 8. Sums are float32, in the order
of choices; pairs of expert -1 are left out, and their rows of y are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Float32,
    Gpu,
    Int32,
    Launch,
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

from spaninfer_kernels_cuda.moe.gemv import check_dtype
from spaninfer_kernels_cuda.moe.route import Routing
from spaninfer_kernels_cuda.moe.tuning import (
    GRAIN,
    MAX_COMBINED,
    MoeShape,
    check_shape,
    combine_threads,
)


class SumArguments(NamedTuple):
    """Addresses of a sum."""

    out: Pointer
    y: Pointer
    ids: Pointer
    shares: Pointer
    place: Pointer
    residual: Pointer


class CombineArguments(NamedTuple):
    """Arguments of moe_combine: addresses of the sum, and what its norm is made with."""

    out: Pointer
    y: Pointer
    ids: Pointer
    shares: Pointer
    place: Pointer
    residual: Pointer
    normed: Pointer
    norm_weight: Pointer
    eps: Float32
    weight_offset: Float32


NO_NORM: Final[Mapping[str, float]] = {
    "normed": 0,
    "norm_weight": 0,
    "eps": 0.0,
    "weight_offset": 0.0,
}


class CombineSizes(NamedTuple):
    """The channels of a row, the constant of moe_combine."""

    channels: Int32


MOE_COMBINE = Signature("moe_combine", CombineArguments, CombineSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "moe/combine.cu",
    headers=("types.cuh", "reduce.cuh", "overlap.cuh"),
    parts=("moe/load.cuh",),
    kernels=(MOE_COMBINE,),
)


class Norm(NamedTuple):
    """The RMS norm of a result: `out`[T C] = norm(result) * (weight[C] + weight_offset)."""

    weight: object
    out: object
    eps: float
    weight_offset: float = 0.0


@dataclass(frozen=True, slots=True)
class PreparedCombine:
    """A sum of experts' results of one size."""

    shape: MoeShape
    has_norm: bool
    workspace_bytes: int
    _call: Call[CombineArguments] | None

    def launch(
        self,
        y: object,
        routing: Routing,
        *,
        out: object,
        residual: object = None,
        norm: Norm | None = None,
        stream: object = None,
    ) -> None:
        """Write the sum to `out`, which may be `residual`, and its norm where one was prepared."""
        at = SumArguments(
            out=pointer_of(out),
            y=pointer_of(y),
            ids=pointer_of(routing.ids),
            shares=pointer_of(routing.shares),
            place=pointer_of(routing.place),
            residual=pointer_of(residual),
        )
        self.start(stream_handle(stream, y), at, norm)

    @property
    def by_name(self) -> NamedCalls:
        """The call, its values named as the arrays, without a norm."""
        return NamedCalls.of(self._call)

    def start(self, handle: int, at: SumArguments, norm: Norm | None = None) -> None:
        """Launch on the stream with this handle, the default stream included."""
        assert (norm is not None) == self.has_norm, "a norm where one was prepared"
        if self._call is not None:
            self._call(handle, CombineArguments(*at, *_norm_arguments(norm)))


def _norm_arguments(norm: Norm | None) -> tuple[int, int, float, float]:
    if norm is None:
        return 0, 0, 0.0, 0.0
    return pointer_of(norm.out), pointer_of(norm.weight), norm.eps, norm.weight_offset


def variant_for(top_k: int, channels: int, dtype: object, *, norm: bool = False) -> Variant:
    """Return the variant for `top_k` results per token of `dtype`, float16 or bfloat16."""
    threads = combine_threads(channels)
    macros: dict[str, str | int | bool] = {
        "T": check_dtype(dtype),
        "CHOICES": top_k,
        "THREADS": threads,
        "PACKS": -(-channels // (GRAIN * threads)),
        "NORM": norm,
    }
    return Variant.of("moe_combine", SOURCE, macros, element_of(dtype).architectures)


def prepare(
    shape: MoeShape,
    *,
    dtype: object,
    gpu: Gpu,
    norm: bool = False,
    cache: FileCache | None = None,
) -> PreparedCombine:
    """Return the sum of `shape`, with its norm if wanted, on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    check_shape(shape)
    if shape.channels > MAX_COMBINED:
        raise ShapeError(f"channels is {shape.channels}; at most {MAX_COMBINED}")
    variant = variant_for(shape.top_k, shape.channels, dtype, norm=norm)
    kernel = load(compile_variant(variant, gpu.arch, cache or user_cache()), gpu, MOE_COMBINE)
    threads = combine_threads(shape.channels)
    grid = Launch((max(shape.tokens, 1), 1, 1), (threads, 1, 1), overlaps=True)
    call = Call(kernel, grid, CombineSizes(shape.channels)) if shape.tokens else None
    return PreparedCombine(shape, norm, workspace_bytes=0, _call=call)


VARIANTS: tuple[Variant, ...] = (
    variant_for(2, 512, np.float16),
    variant_for(8, 7168, ml_dtypes.bfloat16, norm=True),
)
"""Few and many choices, narrow and wide rows, with and without a norm, both element types."""
