"""The router: logits[T E] = x[T C] @ weight[E C]^T + bias[E], in float32.

x, weight and bias hold one 16-bit float type, contiguous, x and weight at multiples of 16 bytes; C
is a multiple of 8. Products and sums are float32 and so is the result: rounded logits would send
tokens to other experts. A token's logits depend neither on the others nor on their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    Call,
    FileCache,
    Gpu,
    Int32,
    Pointer,
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
from spaninfer_kernels_cuda.moe.tuning import (
    ROUTER_WARPS,
    check_router,
    launch_router,
    router_loads,
)


class RouterArguments(NamedTuple):
    """Addresses, the arguments of moe_router."""

    logits: Pointer
    x: Pointer
    weight: Pointer
    bias: Pointer


class RouterSizes(NamedTuple):
    """Sizes, the constants of moe_router."""

    tokens: Int32
    experts: Int32


MOE_ROUTER = Signature("moe_router", RouterArguments, RouterSizes)
SOURCE = Source(
    "spaninfer_kernels_cuda",
    "moe/router.cu",
    headers=("types.cuh", "reduce.cuh", "mma.cuh", "overlap.cuh"),
    parts=("moe/load.cuh",),
    kernels=(MOE_ROUTER,),
)


@dataclass(frozen=True, slots=True)
class PreparedRouter:
    """A router of one number of tokens."""

    tokens: int
    workspace_bytes: int
    _call: Call[RouterArguments] | None

    def launch(
        self,
        x: object,
        weight: object,
        *,
        out: object,
        bias: object = None,
        stream: object = None,
    ) -> None:
        """Write the logits to `out`[T E] float32.

        The weight is read before the previous launch on the stream has finished, so that one must
        not write it.
        """
        if self._call is None:
            return
        arguments = RouterArguments(
            logits=pointer_of(out),
            x=pointer_of(x),
            weight=pointer_of(weight),
            bias=pointer_of(bias),
        )
        self._call(stream_handle(stream, x), arguments)


def variant_for(channels: int, dtype: object) -> Variant:
    """Return the variant for rows of `channels` of `dtype`, float16 or bfloat16."""
    macros: dict[str, str | int | bool] = {
        "T": check_dtype(dtype),
        "CHANNELS": channels,
        "LOADS": router_loads(channels),
        "WARPS": ROUTER_WARPS,
    }
    return Variant.of("moe_router", SOURCE, macros, element_of(dtype).architectures)


def prepare(
    *,
    tokens: int,
    experts: int,
    channels: int,
    dtype: object,
    gpu: Gpu,
    cache: FileCache | None = None,
) -> PreparedRouter:
    """Return the router on `gpu`, compiled or cached.

    Raises ShapeError or DTypeError for unsupported sizes or types, CompileError where there is no
    compiler.
    """
    check_router(tokens, experts, channels)
    compiled = compile_variant(variant_for(channels, dtype), gpu.arch, cache or user_cache())
    grid = launch_router(tokens, experts)
    kernel = load(compiled, gpu, MOE_ROUTER)
    call = Call(kernel, grid, RouterSizes(tokens, experts)) if grid else None
    return PreparedRouter(tokens, workspace_bytes=0, _call=call)


VARIANTS: tuple[Variant, ...] = (
    variant_for(2048, ml_dtypes.bfloat16),
    variant_for(2880, np.float16),
)
"""Both element types, rows that loads divide and that they do not."""
