"""Grouped GEMM, the two GEMMs of an expert layer: each row with the weight of its expert.

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

import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    FileCache,
    Gpu,
    Launch,
    Operator,
    Result,
    Step,
    check_aligned,
    check_dense,
    compile_variant,
    element_of,
    gpu_of,
    load,
    match,
    new_results,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.grouped_gemm.coded import coded_variant
from spaninfer_kernels_cuda.grouped_gemm.coded_hopper import coded_hopper_variant
from spaninfer_kernels_cuda.grouped_gemm.coded_tuning import (
    Coded,
    CodedHopper,
    choose_quantized,
    launch_coded,
    launch_coded_hopper,
)
from spaninfer_kernels_cuda.grouped_gemm.kernels import (
    GROUPED_CLEAR,
    GROUPED_CODED,
    GROUPED_CODED_HOPPER,
    GROUPED_GENERAL,
    GROUPED_PROMPT,
    GROUPED_SORT,
    GROUPED_STREAM,
    GROUPED_SWAPPED_PROMPT,
    ClearArguments,
    OnAny,
    OnAnyCoded,
    OnHopperPrompt,
    OnHopperStream,
    PromptSizes,
    Sizes,
    SortArguments,
    SortSizes,
)
from spaninfer_kernels_cuda.grouped_gemm.prepared import GroupedGemm, PreparedGroupedGemm
from spaninfer_kernels_cuda.grouped_gemm.tuning import (
    General,
    Prompt,
    Shape,
    Stream,
    Tile,
    check,
    choose,
    launch,
    launch_sort,
)
from spaninfer_kernels_cuda.grouped_gemm.variants import (
    GATES,
    GENERAL,
    PROMPT,
    SORT_VARIANT,
    STREAM,
    TILES,
    VARIANTS,
    Gate,
    function_of,
    variant_for,
)
from spaninfer_kernels_cuda.quantized_gemm.format import QuantizedFormat

__all__ = [
    "GATES",
    "GENERAL",
    "PROMPT",
    "STREAM",
    "TILES",
    "VARIANTS",
    "Coded",
    "Gate",
    "General",
    "GroupedGemm",
    "PreparedGroupedGemm",
    "Prompt",
    "Shape",
    "Stream",
    "grouped_gemm",
    "prepare",
    "prepare_layer",
    "prepare_quantized",
    "variant_for",
]

_ALIGNMENT = 16  # bytes of one copy to shared memory, and of one store
_VECTOR = 8  # elements of that many bytes


def prepare(
    shape: Shape,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Gate | None = None,
    gathers: bool = False,
    tile: Tile | None = None,
    cache: FileCache | None = None,
) -> PreparedGroupedGemm:
    """Return the grouped GEMM of `shape` on `gpu`, compiled or cached.

    With `gathers` it takes an order. `tile` is chosen for the shape unless given. Raises ShapeError
    or DTypeError for unsupported sizes or types, CompileError where there is no compiler.
    """
    check(shape, gated=gate is not None)
    tile, cache = (
        tile or choose(shape, gpu.arch, gpu.shared_bytes, gathers=gathers),
        cache or user_cache(),
    )
    variant = variant_for(tile, dtype, shape.experts, gate, gathers=gathers, shared=shape.shared)
    compiled = compile_variant(variant, gpu.arch, cache)
    sorts = gathers and isinstance(tile, Prompt) and not tile.gathers
    grid = launch(shape, tile, gpu.sm_count)
    if grid is None:
        return PreparedGroupedGemm(shape, tile, 0, None)
    sizes = Sizes(shape.experts, shape.chosen, shape.outputs, shape.inner)
    name = np.dtype(dtype).name  # type: ignore[call-overload]
    kernel: OnAny | OnHopperStream | OnHopperPrompt
    if isinstance(tile, Prompt):
        of_prompt = PromptSizes(shape.chosen, shape.experts, shape.outputs, shape.inner)
        signature = GROUPED_SWAPPED_PROMPT if tile.swapped else GROUPED_PROMPT
        prompt = Call(load(compiled, gpu, signature), grid, of_prompt)
        sort = _sort(shape, gpu, cache) if sorts else None
        kernel = OnHopperPrompt(shape, name, tile, gathers, sort, prompt)
    elif isinstance(tile, Stream):
        stream = Call(load(compiled, gpu, GROUPED_STREAM), grid, sizes)
        kernel = OnHopperStream(shape, name, tile, stream)
    else:
        kernel = OnAny(Call(load(compiled, gpu, GROUPED_GENERAL), grid, sizes))
    row_bytes = shape.inner * element_of(dtype).itemsize
    workspace_bytes = shape.rows * row_bytes if sorts else 0
    clear = _clear(gpu, cache) if isinstance(tile, Prompt) else None
    return PreparedGroupedGemm(shape, tile, workspace_bytes, kernel, ticket_clear=clear)


def _clear(gpu: Gpu, cache: FileCache) -> Call[ClearArguments]:
    compiled = compile_variant(SORT_VARIANT, gpu.arch, cache)
    return Call(load(compiled, gpu, GROUPED_CLEAR), Launch((1, 1, 1), (1, 1, 1)))


def _sort(shape: Shape, gpu: Gpu, cache: FileCache) -> Call[SortArguments] | None:
    """Return the copy of rows into sorted order."""
    grid = launch_sort(shape)
    compiled = compile_variant(SORT_VARIANT, gpu.arch, cache)
    sizes = SortSizes(shape.experts, shape.chosen, shape.inner // _VECTOR)
    return Call(load(compiled, gpu, GROUPED_SORT), grid, sizes) if grid else None


def prepare_quantized(
    shape: Shape,
    format: QuantizedFormat,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Gate | None = None,
    gathers: bool = False,
    tile: Coded | CodedHopper | None = None,
    cache: FileCache | None = None,
) -> PreparedGroupedGemm:
    """Return the grouped GEMM of `shape` whose weights are codes in `format`.

    The rest is as for `prepare`.
    """
    check(shape, gated=gate is not None)
    tile = tile or choose_quantized(shape, format, gpu.arch, gpu.shared_bytes)
    kinds = format, dtype, shape.experts, function_of(gate)
    if isinstance(tile, CodedHopper):
        signature, variant = (
            GROUPED_CODED_HOPPER,
            coded_hopper_variant(tile, *kinds, gathers=gathers, shared=shape.shared),
        )
        grid = launch_coded_hopper(shape, tile, format, gpu.sm_count)
    else:
        signature = GROUPED_CODED
        variant = coded_variant(tile, *kinds, gathers=gathers, shared=shape.shared)
        grid = launch_coded(shape, tile, format, gpu.sm_count)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    sizes = Sizes(shape.experts, shape.chosen, shape.outputs, shape.inner)
    call = Call(load(compiled, gpu, signature), grid, sizes) if grid else None
    return PreparedGroupedGemm(shape, tile, 0, OnAnyCoded(call) if call else None)


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
    """Return both GEMMs of a layer with experts of width `inner`, on `gpu`.

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
    arrays = x, weight, ends, order, bias, out
    new = _grouped_gemm.start((gate, chosen), arrays, stream=stream)
    return new[0] if out is None else out


def _prepare_call(options: tuple[Gate | None, int], given: dict[str, ArraySpec]) -> Step:
    """Return the GEMM of arrays with these specs; options are the gate, and experts of a token."""
    gate, chosen = options
    views = {name: view_at(spec) for name, spec in given.items() if name != "out"}
    floats = {name: views[name] for name in ("x", "weight", "bias") if name in views}
    numbers = {name: views[name] for name in ("ends", "order") if name in views}
    sizes = match(
        x=(floats["x"], "T K"), weight=(floats["weight"], "E N K"), ends=(numbers["ends"], "E")
    )
    if "bias" in floats:
        match(bias=(floats["bias"], f"{sizes['E']} {sizes['N']}"))
    gathers = "order" in numbers
    rows = sizes["T"] * chosen if gathers else sizes["T"]
    if gathers:
        match(order=(numbers["order"], f"{rows}"))
    shape = Shape(rows, chosen, sizes["E"], sizes["N"], sizes["K"])
    check(shape, gated=gate is not None)
    check_dense(floats["x"].dtype, **floats)
    check_dense(np.int32, **numbers)
    check_aligned(_ALIGNMENT, x=floats["x"], weight=floats["weight"])
    check_aligned(4, **{name: view for name, view in floats.items() if name == "bias"})
    gpu = gpu_of(**floats, **numbers)
    product = prepare(shape, dtype=floats["x"].dtype, gpu=gpu, gate=gate, gathers=gathers)
    columns = shape.outputs // 2 if gate else shape.outputs
    new = new_results(given, gpu, ("out", (rows, columns), floats["x"].dtype, _ALIGNMENT))
    scratch: list[Result] = []
    if product.workspace_bytes:
        scratch.append(("workspace", (product.workspace_bytes,), np.uint8, _ALIGNMENT))
    return Step(gpu, product.by_name, new, tuple(scratch), draws=product.draws)


_grouped_gemm = Operator("x weight ends order bias out", _prepare_call)
