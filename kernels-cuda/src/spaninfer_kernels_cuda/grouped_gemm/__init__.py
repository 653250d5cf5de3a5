"""Grouped GEMM, the two products of an expert layer: each row with the weight of its expert.

out[P C] = rows of x . weight[e]^T, plus bias[e], gated: `ends[E]` is the inclusive prefix of the
rows that experts have, on the GPU; expert e's results are out[ends[e - 1] : ends[e]]. Results from
ends[E - 1] on, of rows without an expert, are not written.

* With `order`[P], row r of out is that of token order[r] // chosen: x[T K] holds tokens, and
  `order` numbers pairs of a token and one of its `chosen` experts, sorted by expert.
* Without, x[P K] holds the rows, sorted by expert.

weight[E N K] and x hold one 16-bit float type, contiguous, at multiples of 16 bytes. With a gate,
the N rows of an expert are 8 of the gate, their 8 of up, the next 8 of the gate and so on; C is
N / 2. Accumulation is float32, rounded once, after bias and activation. Nothing is read on the
host, so launches are captured into graphs; the same arguments give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    DTypeError,
    FileCache,
    Gpu,
    ShapeError,
    Source,
    Variant,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    compile_variant,
    element_of,
    gpu_of,
    inspect_array,
    load,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.grouped_gemm.kernels import (
    GROUPED_GENERAL,
    GROUPED_PROMPT,
    GROUPED_STREAM,
    GeneralArguments,
    OnAny,
    OnHopperPrompt,
    OnHopperStream,
    Sizes,
)
from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    General,
    Prompt,
    Shape,
    Stream,
    Tile,
    check,
    choose,
    fill_prompt,
    fill_stream,
    launch,
    padded_experts,
)

__all__ = [
    "GATES",
    "GENERAL",
    "PROMPT",
    "STREAM",
    "VARIANTS",
    "Gate",
    "General",
    "GroupedGemm",
    "PreparedProduct",
    "Prompt",
    "Shape",
    "Stream",
    "grouped_gemm",
    "prepare",
    "prepare_layer",
    "variant_for",
]

_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
_ON_HOPPER = (*_HEADERS, "wgmma.cuh")
_PACKAGE, _RING = "spaninfer_kernels_cuda", ("ring.cuh",)
_TASKS = ("grouped_gemm/glu.cuh", "grouped_gemm/tasks.cuh")
_SWAPPED, _GATHER = "grouped_gemm/swapped.cuh", "grouped_gemm/gather.cuh"
GENERAL = Source(
    *(_PACKAGE, "grouped_gemm/general.cu", _HEADERS),
    parts=(*_TASKS, _SWAPPED),
    kernels=(GROUPED_GENERAL,),
)
STREAM = Source(
    *(_PACKAGE, "grouped_gemm/stream.cu", _ON_HOPPER, _RING),
    parts=(*_TASKS, _SWAPPED, _GATHER),
    kernels=(GROUPED_STREAM,),
)
PROMPT = Source(
    *(_PACKAGE, "grouped_gemm/prompt.cu", _ON_HOPPER, _RING),
    parts=(*_TASKS, _GATHER, "grouped_gemm/quads.cuh"),
    kernels=(GROUPED_PROMPT,),
)

Gate = Act | Literal["clamped_swiglu"]
"""Gated activations: act(gate) * up, or quick_gelu(gate) * (up + 1) of both clamped (gpt-oss)."""

GATES: tuple[Gate, ...] = (*ACTS, "clamped_swiglu")

_ALIGNMENT = 16  # bytes of one copy to shared memory, and of one store


@dataclass(frozen=True, slots=True)
class PreparedProduct:
    """A grouped GEMM of one shape."""

    shape: Shape
    tile: Tile
    _kernel: OnAny | OnHopperStream | OnHopperPrompt | None

    def launch(
        self,
        x: object,
        weight: object,
        ends: object,
        *,
        out: object,
        order: object = None,
        bias: object = None,
        stream: object = None,
    ) -> None:
        """Write the products to `out`; `order` is given exactly where it was prepared for one.

        Without it, `ends` and weights are read before the previous launch on the stream has
        finished: `ends` must be older than that, as it is after the product that needs an order.
        """
        at = GeneralArguments(
            out=pointer_of(out),
            weight=pointer_of(weight),
            x=pointer_of(x),
            bias=pointer_of(bias),
            order=pointer_of(order),
            ends=pointer_of(ends),
        )
        self.start(stream_handle(stream, x), at)

    def start(self, handle: int, at: GeneralArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._kernel is not None:
            self._kernel.start(handle, at)


@dataclass(frozen=True, slots=True)
class GroupedGemm:
    """Both products of an expert layer for up to so many tokens, prepared.

    w13[E 2I H] holds gates and up interleaved by 8 rows, w2[E H I] the second weights.
    """

    first: PreparedProduct
    second: PreparedProduct

    def up(
        self,
        x: object,
        w13: object,
        order: object,
        ends: object,
        *,
        out: object,
        bias: object = None,
        stream: object = None,
    ) -> None:
        """Write h[P I], the gated products of x[T H] with w13, in sorted order."""
        self.first.launch(x, w13, ends, out=out, order=order, bias=bias, stream=stream)

    def down(
        self,
        h: object,
        w2: object,
        ends: object,
        *,
        out: object,
        bias: object = None,
        stream: object = None,
    ) -> None:
        """Write y[P H], the products of h[P I] with w2, in sorted order: the launch after `up`."""
        self.second.launch(h, w2, ends, out=out, bias=bias, stream=stream)


def variant_for(
    tile: Tile, dtype: object, experts: int, gate: Gate | None = None, *, gathers: bool
) -> Variant:
    """Return the variant for `tile` and elements of `dtype`, float16 or bfloat16."""
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    if gate is not None and gate not in GATES:
        raise ShapeError(f"there is no gate {gate!r}; there are {', '.join(GATES)}")
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "EXPERTS": padded_experts(experts),
        "STAGES": tile.stages,
        "GATED": gate is not None,
        "GATHERS": gathers,
        "ACT": f"glu<{gate}>" if gate in ACTS else gate or "",
    }
    if isinstance(tile, Prompt):
        macros |= {"BLOCKS": tile.block_rows, "ROWS": tile.outputs}
        return Variant.of("grouped_prompt", PROMPT, macros, ("sm_90a",))
    macros["TOKENS"] = tile.tokens
    if isinstance(tile, Stream):
        macros |= {"GROUPS": tile.groups, "BLOCKS_OF_SM": tile.blocks}
        return Variant.of("grouped_stream", STREAM, macros, ("sm_90a",))
    return Variant.of("grouped_general", GENERAL, macros, element.architectures)


def prepare(
    shape: Shape,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Gate | None = None,
    gathers: bool = False,
    tile: Tile | None = None,
    cache: FileCache | None = None,
) -> PreparedProduct:
    """Return the grouped GEMM of `shape` on `gpu`, compiled or cached.

    With `gathers` it takes an order. `tile` is chosen for the shape unless given. Raises ShapeError
    or DTypeError for unsupported sizes or types, CompileError where there is no compiler.
    """
    check(shape, gated=gate is not None)
    tile = tile or choose(shape, gpu.arch, gpu.shared_bytes)
    variant = variant_for(tile, dtype, shape.experts, gate, gathers=gathers)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    grid = launch(shape, tile, gpu.sm_count)
    if grid is None:
        return PreparedProduct(shape, tile, None)
    sizes = Sizes(shape.experts, shape.chosen, shape.outputs, shape.inner)
    name = np.dtype(dtype).name  # type: ignore[call-overload]
    if isinstance(tile, Prompt):
        prompt = Call(load(compiled, gpu, GROUPED_PROMPT), grid, sizes)
        return PreparedProduct(shape, tile, OnHopperPrompt(shape, name, tile, prompt))
    if isinstance(tile, Stream):
        stream = Call(load(compiled, gpu, GROUPED_STREAM), grid, sizes)
        return PreparedProduct(shape, tile, OnHopperStream(shape, name, tile, stream))
    general = Call(load(compiled, gpu, GROUPED_GENERAL), grid, sizes)
    return PreparedProduct(shape, tile, OnAny(general))


def prepare_layer(
    *,
    tokens: int,
    experts: int,
    chosen: int,
    hidden: int,
    inner: int,
    dtype: object,
    gpu: Gpu,
    gate: Gate,
    cache: FileCache | None = None,
) -> GroupedGemm:
    """Return both products of a layer with experts of width `inner`, on `gpu`.

    Raises as `prepare` does.
    """
    rows = tokens * chosen
    first, second = (
        Shape(rows, chosen, experts, outputs=2 * inner, inner=hidden),
        Shape(rows, chosen, experts, outputs=hidden, inner=inner),
    )
    return GroupedGemm(
        prepare(first, dtype=dtype, gpu=gpu, gate=gate, gathers=True, cache=cache),
        prepare(second, dtype=dtype, gpu=gpu, cache=cache),
    )


def grouped_gemm(
    x: object,
    weight: object,
    ends: object,
    *,
    order: object = None,
    chosen: int = 1,
    bias: object = None,
    gate: Gate | None = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return out[P C]: rows of x times weight[E N K] of their expert, plus bias[E N], gated.

    `ends`[E] and `order`[P] are int32; the module says what they mean. Without `out`, the result is
    a new array. Raises ShapeError, DTypeError or DeviceError for arguments that do not fit.
    """
    (x_at, spec), (weight_at, weight_spec) = inspect_array(x), inspect_array(weight)
    (bias_at, bias_spec), (to, out_spec) = inspect_array(bias), inspect_array(out)
    (order_at, order_spec), (ends_at, ends_spec) = inspect_array(order), inspect_array(ends)
    step, allocate = _checked(
        gate, chosen, spec, weight_spec, ends_spec, order_spec, bias_spec, out_spec
    )
    handle = stream_handle(stream, x)
    if out is None:
        (out,) = allocate(handle)
        to = pointer_of(out)
    step.start(handle, GeneralArguments(to, weight_at, x_at, bias_at, order_at, ends_at))
    return out


@prepared_once(1024)
def _checked(
    gate: Gate | None,
    chosen: int,
    spec: ArraySpec,
    weight: ArraySpec,
    ends: ArraySpec,
    order: ArraySpec,
    bias: ArraySpec,
    out: ArraySpec,
) -> tuple[PreparedProduct, Callable[[int], tuple[Any, ...]]]:
    """Return the product of arrays with these specs, and the allocator of its result."""
    floats = {"x": view_at(spec), "weight": view_at(weight)}
    numbers = {"ends": view_at(ends)}
    sizes = match(
        x=(floats["x"], "T K"), weight=(floats["weight"], "E N K"), ends=(numbers["ends"], "E")
    )
    if bias:
        floats["bias"] = view_at(bias)
        match(bias=(floats["bias"], f"{sizes['E']} {sizes['N']}"))
    rows = sizes["T"] * chosen if order else sizes["T"]
    if order:
        numbers["order"] = view_at(order)
        match(order=(numbers["order"], f"{rows}"))
    shape = Shape(rows, chosen, sizes["E"], sizes["N"], sizes["K"])
    check(shape, gated=gate is not None)
    check_dense(floats["x"].dtype, **floats)
    check_dense(np.int32, **numbers)
    check_aligned(_ALIGNMENT, x=floats["x"], weight=floats["weight"])
    check_aligned(4, **{name: view for name, view in floats.items() if name == "bias"})
    gpu = gpu_of(**floats, **numbers)
    step = prepare(shape, dtype=floats["x"].dtype, gpu=gpu, gate=gate, gathers=bool(order))
    columns = shape.outputs // 2 if gate else shape.outputs
    result = ("out", (rows, columns), floats["x"].dtype, _ALIGNMENT)
    check_results((out,), gpu, result)
    return step, allocator(spec, gpu, result)


_EXPERTS, _SHARED_BYTES = 128, 232_448  # of a block on Hopper
TILES: tuple[Tile, ...] = (
    *(General(tokens, 2) for tokens in (16, 64)),
    *(
        fill_stream(Stream(*sizes), _EXPERTS)
        for sizes in ((8, 1, 0, 2), (16, 2, 0, 2), (32, 2, 0, 2))
    ),
    fill_prompt(Prompt(1, 256, 0), _EXPERTS, _SHARED_BYTES),
)
"""All tiles that `choose` may return."""

VARIANTS: tuple[Variant, ...] = (
    *(
        variant_for(tile, dtype, _EXPERTS, gate, gathers=gate is not None)
        for tile in TILES
        for dtype in (np.float16, ml_dtypes.bfloat16)
        for gate in (None, GATES[0])
    ),
    *(variant_for(TILES[2], np.float16, _EXPERTS, gate, gathers=True) for gate in GATES[1:]),
)
"""Every tile with both element types, of sorted rows and of gathered ones; and every gate."""
