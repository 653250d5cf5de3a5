"""GEMM with a quantised weight: out = x @ weight^T with bias, activation and residual fused.

x[M K] and out[M N] hold one 16-bit float type, the weight codes of 4 or 8 bits (`QuantizedFormat`),
packed into the order of the kernels (`pack`, on the device `prepare_pack`). K is a multiple of 8;
rows of x are strided, and begin at multiples of 16 bytes. Accumulation is float32, rounded once,
after bias[N], activation and residual. With an activation, the weight was packed as `gated`, its
rows those of the gate above those of up: out[M N/2] = act(gate) * up.

Where `Tile.fold`, codes less their zero points are multiplied, exactly, and sums of a group scaled;
else weights are rounded to x's type first. The same arguments give the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import (
    ArraySpec,
    Call,
    Compiled,
    DTypeError,
    FileCache,
    Gpu,
    Launch,
    ShapeError,
    Source,
    Variant,
    allocator,
    check_aligned,
    check_dense,
    check_results,
    check_rows,
    compile_variant,
    element_of,
    gpu_of,
    inspect_arrays,
    load,
    match,
    pointer_of,
    prepared_once,
    stream_handle,
    user_cache,
    view_at,
)

from spaninfer_kernels_cuda.activation import ACTS, Act
from spaninfer_kernels_cuda.gemm.kernels import FLAG_BYTES, ClearArguments, GeneralSizes, Sizes
from spaninfer_kernels_cuda.gemm.tuning import FLAGS, Shape
from spaninfer_kernels_cuda.quantized_gemm.format import (
    BLOCK_ROWS,
    CHUNK,
    PackedWeight,
    QuantizedFormat,
    Shift,
    pack,
    row_order,
)
from spaninfer_kernels_cuda.quantized_gemm.kernels import (
    DEQUANTIZE,
    GEMM_CLEAR,
    GEMM_GENERAL,
    GEMM_HOPPER,
    PACK,
    Addresses,
    DequantizeArguments,
    DequantizeSizes,
    General,
    OnHopper,
    PackArguments,
    PackSizes,
)
from spaninfer_kernels_cuda.quantized_gemm.tiles import Tile
from spaninfer_kernels_cuda.quantized_gemm.tuning import (
    check,
    choose,
    is_faster,
    launch,
    rows_of_tiles,
)

__all__ = [
    "BLOCK_ROWS",
    "CHUNK",
    "DEQUANTIZING",
    "GENERAL",
    "HOPPER",
    "PACKING",
    "VARIANTS",
    "PackArguments",
    "PackedWeight",
    "PreparedDequantize",
    "PreparedPack",
    "PreparedQuantizedGemm",
    "QuantizedFormat",
    "Shape",
    "Shift",
    "Tile",
    "code_macros",
    "is_faster",
    "multiply",
    "pack",
    "prepare",
    "prepare_dequantize",
    "prepare_pack",
    "row_order",
    "rows_of_tiles",
    "variant_for",
]

_ALIGNMENT = 16  # bytes of a copy to shared memory
_PACKAGE = "spaninfer_kernels_cuda"
_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh", "copy.cuh", "overlap.cuh", "activate.cuh")
_CODES = "quantized_gemm/codes.cuh"
_MULTIPLY = (_CODES, "quantized_gemm/chunk.cuh", "quantized_gemm/multiply.cuh")
HOPPER = Source(
    _PACKAGE,
    "quantized_gemm/hopper.cu",
    (*_HEADERS, "cluster.cuh", "wgmma.cuh"),
    ("stream_k.cuh", "epilogue.cuh", "split_k.cuh", "ring.cuh"),
    (*_MULTIPLY, "quantized_gemm/results.cuh", "quantized_gemm/pipeline.cuh"),
    kernels=(GEMM_HOPPER, GEMM_CLEAR),
)
GENERAL = Source(
    _PACKAGE,
    "quantized_gemm/general.cu",
    (*_HEADERS, "cluster.cuh"),
    ("stream_k.cuh", "epilogue.cuh"),
    _MULTIPLY,
    kernels=(GEMM_GENERAL, GEMM_CLEAR),
)
PACKING = Source(_PACKAGE, "quantized_gemm/pack.cu", _HEADERS[:3], parts=(_CODES,), kernels=(PACK,))
DEQUANTIZING = Source(
    _PACKAGE, "quantized_gemm/dequantize.cu", _HEADERS[:3], parts=(_CODES,), kernels=(DEQUANTIZE,)
)


@dataclass(frozen=True, slots=True)
class PreparedQuantizedGemm:
    """A GEMM of one shape with a weight of one format.

    `launch` needs `workspace_bytes` of 16-byte aligned memory, zeroed once; every launch leaves it
    ready for the next one, of any shape.
    """

    shape: Shape
    tile: Tile
    workspace_bytes: int
    _kernel: General | OnHopper | None
    _clear: Call[ClearArguments]

    def launch(
        self,
        x: object,
        records: object,
        factors: object,
        *,
        out: object,
        workspace: object,
        bias: object = None,
        residual: object = None,
        stream: object = None,
    ) -> None:
        """Write x @ weight^T, bias, activation and residual applied, to `out`.

        `out` may be `residual`. The weight is read before the previous launch on the stream has
        finished, so that one must not write it.
        """
        at = Addresses(
            out=pointer_of(out),
            x=pointer_of(x),
            records=pointer_of(records),
            factors=pointer_of(factors),
            bias=pointer_of(bias),
            residual=pointer_of(residual),
            workspace=pointer_of(workspace),
        )
        self.start(stream_handle(stream, x), at)

    def start(self, handle: int, at: Addresses) -> None:
        """Launch on the stream with this handle, the default stream included."""
        if self._kernel is not None:
            self._kernel.start(handle, at)

    @property
    def uses_flags(self) -> bool:
        """True if blocks exchange partial accumulators through the workspace."""
        return self.tile.splits == 1

    def start_clear(self, handle: int, workspace: int) -> None:
        """Initialise a workspace on the stream with this handle, the default stream included."""
        self._clear(handle, ClearArguments(workspace))


def variant_for(
    tile: Tile, format: QuantizedFormat, dtype: object, gate: Act | None = None
) -> Variant:
    """Return the variant for a tile, a format and elements of `dtype`, float16 or bfloat16."""
    if gate is not None and gate not in ACTS:
        raise ShapeError(f"there is no activation {gate!r}; there are {', '.join(ACTS)}")
    macros, architectures = code_macros(format, dtype)
    macros |= {"TOKENS": tile.tokens, "GROUPS": tile.groups, "STAGES": tile.stages}
    macros |= {"BLOCKS": tile.blocks, "BATCH": tile.batch}
    macros |= {"SPLITS": tile.splits, "FOLD": tile.fold}
    macros |= {"GATED": gate is not None, "ACT": gate or ""}
    if not tile.hopper:
        return Variant.of("quantized_gemm", GENERAL, macros, architectures)
    macros["WGMMA"] = tile.wgmma
    return Variant.of("quantized_gemm", HOPPER, macros, ("sm_90a",))


def code_macros(
    format: QuantizedFormat, dtype: object
) -> tuple[dict[str, str | int | bool], tuple[str, ...]]:
    """Return the macros of codes.cuh, and architectures."""
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "BITS": format.bits,
        "GROUP": format.group or 0,
        "SHIFT": format.shift_number,
        "E4M3": format.values == "e4m3",
        "E2M1": format.values == "e2m1",
    }
    return macros, element.architectures


def prepare(
    shape: Shape,
    format: QuantizedFormat,
    *,
    dtype: object,
    gpu: Gpu,
    gate: Act | None = None,
    row_stride: int | None = None,
    tile: Tile | None = None,
    cache: FileCache | None = None,
) -> PreparedQuantizedGemm:
    """Return the GEMM of `shape` on `gpu`, compiled or cached.

    `row_stride` counts elements from one row of x to the next (K unless given); `tile` is chosen
    for the shape unless given. Raises ShapeError or DTypeError for unsupported sizes or types,
    CompileError where there is no compiler.
    """
    check(shape, gated=gate is not None)
    tile = tile or choose(shape, format, gpu.arch, gpu.shared_bytes, gated=gate is not None)
    variant = variant_for(tile, format, dtype, gate)
    compiled = compile_variant(variant, gpu.arch, cache or user_cache())
    grid = launch(shape, tile, format, gpu.sm_count)
    stride = shape.inner if row_stride is None else row_stride
    name = np.dtype(dtype).name  # type: ignore[call-overload]
    return PreparedQuantizedGemm(
        shape,
        tile,
        workspace_bytes=FLAG_BYTES + (_partial_bytes(grid, tile) if grid else 0),
        _kernel=_load(compiled, gpu, shape, name, stride, tile, grid) if grid else None,
        _clear=Call(load(compiled, gpu, GEMM_CLEAR), Launch((1, 1, 1), (FLAGS, 1, 1))),
    )


def _load(
    compiled: Compiled, gpu: Gpu, shape: Shape, dtype: str, stride: int, tile: Tile, grid: Launch
) -> General | OnHopper:
    sizes = Sizes(shape.rows, shape.outputs, shape.inner)
    if tile.hopper:
        call = Call(load(compiled, gpu, GEMM_HOPPER), grid, sizes)
        return OnHopper(shape, dtype, stride, tile.tokens, call)
    general = GeneralSizes(*sizes, stride=stride)
    return General(Call(load(compiled, gpu, GEMM_GENERAL), grid, general))


def _partial_bytes(grid: Launch, tile: Tile) -> int:
    """Return the bytes of all blocks' partial accumulators: a tile of float32 each."""
    if tile.splits > 1:
        return 0
    blocks, groups, _ = grid.grid
    return blocks * groups * tile.rows * tile.tokens * 4


def multiply(
    x: object,
    weight: PackedWeight,
    *,
    bias: object = None,
    gate: Act | None = None,
    residual: object = None,
    out: object = None,
    stream: object = None,
) -> object:
    """Return x[M K] @ weight[N K]^T, plus bias[N], gated by `gate`, plus residual.

    Without `out`, the result is a new array.
    """
    at, specs = inspect_arrays(x, weight.records, weight.factors, bias, residual, out)
    x_at, records_at, factors_at, bias_at, residual_at, to = at
    sizes = weight.outputs, weight.inner, weight.gated
    step, allocate = _checked(gate, weight.format, sizes, *specs)
    handle = stream_handle(stream, x)
    memory, *new = allocate(handle)
    workspace = pointer_of(memory)
    if out is None:
        (out,) = new
        to = pointer_of(out)
    if step.uses_flags:
        step.start_clear(handle, workspace)
    step.start(handle, Addresses(to, x_at, records_at, factors_at, bias_at, residual_at, workspace))
    return out


@prepared_once(1024)
def _checked(
    gate: Act | None,
    format: QuantizedFormat,
    sizes: tuple[int, int, bool],
    spec: ArraySpec,
    *others: ArraySpec,
) -> tuple[PreparedQuantizedGemm, Callable[[int], tuple[Any, ...]]]:
    """Return the GEMM of arrays with these specs, and the allocator of workspace and result."""
    outputs, inner, gated = sizes
    if gated != (gate is not None):
        raise ShapeError(f"the weight was packed with gated={gated}, and gate is {gate!r}")
    x, (records, factors, bias, residual, out) = view_at(spec), others
    rows = match(x=(x, f"M {inner}"))["M"]
    columns = outputs // 2 if gated else outputs
    block, chunk, num_bytes = format.records(outputs, inner)
    packed = {"records": view_at(records), "factors": view_at(factors)}
    match(records=(packed["records"], f"{block} {chunk} {num_bytes}"))
    match(factors=(packed["factors"], f"{block * BLOCK_ROWS}"))
    given = {"bias": bias, "residual": residual}
    views = {name: view_at(each) for name, each in given.items() if each}
    axes = {"bias": f"{outputs}", "residual": f"{rows} {columns}"}
    match(**{name: (views[name], axes[name]) for name in views})
    check_rows(x.dtype, _ALIGNMENT, x=x)
    check_dense(x.dtype, **views)
    check_dense(np.uint8, records=packed["records"])
    check_dense(np.float32, factors=packed["factors"])
    check_aligned(_ALIGNMENT, records=packed["records"])
    gpu = gpu_of(x=x, **packed, **views)
    row_stride = x.strides[0] if rows > 1 else inner
    shape = Shape(rows, outputs, inner)
    step = prepare(shape, format, dtype=x.dtype, gpu=gpu, gate=gate, row_stride=row_stride)
    result = ("out", (rows, columns), x.dtype, 1)
    check_results((out,), gpu, result)
    workspace = ("workspace", (step.workspace_bytes,), np.uint8, _ALIGNMENT)
    return step, allocator(spec, gpu, workspace, *(() if out else (result,)))


@dataclass(frozen=True, slots=True)
class PreparedPack:
    """The packing of codes[N K] of one shape and format."""

    records_shape: tuple[int, int, int]
    _call: Call[PackArguments]

    def launch(
        self,
        codes: object,
        *,
        records: object,
        scales: object = None,
        shifts: object = None,
        stream: object = None,
    ) -> None:
        """Write records uint8 of `records_shape` from codes uint8 [N K], and scales and shifts.

        Those are [N groups], of 16 bits: float16 scales and minimums, uint16 zero points.
        """
        at = PackArguments(
            pointer_of(records), pointer_of(codes), pointer_of(scales), pointer_of(shifts)
        )
        self.start(stream_handle(stream, codes), at)

    def start(self, handle: int, at: PackArguments) -> None:
        """Launch on the stream with this handle, the default stream included."""
        self._call(handle, at)


def prepare_pack(
    outputs: int,
    inner: int,
    format: QuantizedFormat,
    *,
    gpu: Gpu,
    gated: bool = False,
    cache: FileCache | None = None,
) -> PreparedPack:
    """Return the packing of a weight[outputs inner] on `gpu`, compiled or cached."""
    check(Shape(1, outputs, inner), gated=gated)
    macros, architectures = code_macros(format, np.float16)
    variant = Variant.of("quantized_pack", PACKING, macros, architectures)
    kernel = load(compile_variant(variant, gpu.arch, cache or user_cache()), gpu, PACK)
    shape = format.records(outputs, inner)
    groups = 0 if format.group is None else -(-inner // format.group)
    grid = Launch((shape[1], shape[0], 1), (128, 1, 1))
    return PreparedPack(shape, Call(kernel, grid, PackSizes(outputs, inner, groups, int(gated))))


@dataclass(frozen=True, slots=True)
class PreparedDequantize:
    """The dequantisation of a packed weight of one shape and format."""

    call: Call[DequantizeArguments]

    def launch(
        self, records: object, factors: object, *, out: object, stream: object = None
    ) -> None:
        """Write the weight[N K], rounded to the type of `out`."""
        at = DequantizeArguments(pointer_of(out), pointer_of(records), pointer_of(factors))
        self.call(stream_handle(stream, out), at)


def prepare_dequantize(
    outputs: int,
    inner: int,
    format: QuantizedFormat,
    *,
    dtype: object,
    gpu: Gpu,
    gated: bool = False,
    cache: FileCache | None = None,
) -> PreparedDequantize:
    """Return the dequantisation of a weight[outputs inner] on `gpu`, compiled or cached."""
    check(Shape(1, outputs, inner), gated=gated)
    macros, architectures = code_macros(format, dtype)
    variant = Variant.of("quantized_dequantize", DEQUANTIZING, macros, architectures)
    kernel = load(compile_variant(variant, gpu.arch, cache or user_cache()), gpu, DEQUANTIZE)
    blocks, chunks, _ = format.records(outputs, inner)
    sizes = DequantizeSizes(outputs, inner, int(gated))
    return PreparedDequantize(Call(kernel, Launch((chunks, blocks, 1), (128, 1, 1)), sizes))


def _variants() -> Iterator[Variant]:
    """Yield every format with tiles, element types and gates in turn."""
    shapes = [
        Shape(rows, outputs, 4096)
        for rows in (8, 16, 32, 64, 100, 128)
        for outputs in (4096, 16384)
    ]
    cases = product(("sm_90a", "sm_80"), enumerate(_FORMATS))
    for arch, (number, format) in cases:
        for step, dtype in enumerate((np.float16, ml_dtypes.bfloat16)):
            shape = shapes[(3 * number + 5 * step) % len(shapes)]
            gate = ACTS[number % len(ACTS)] if (number + step) % 2 else None
            tile = choose(shape, format, arch, _SHARED_BYTES[arch], gated=gate is not None)
            yield variant_for(tile, format, dtype, gate)
    for format in _FORMATS:
        macros, architectures = code_macros(format, np.float16)
        yield Variant.of("quantized_pack", PACKING, macros, architectures)
        macros, architectures = code_macros(format, ml_dtypes.bfloat16)
        yield Variant.of("quantized_dequantize", DEQUANTIZING, macros, architectures)


_SHARED_BYTES = {"sm_90a": 232_448, "sm_80": 166_912}
_FORMATS = (
    QuantizedFormat(4, 128, "zero"),
    QuantizedFormat(8, None),
    QuantizedFormat(4, 32, "minimum"),
    QuantizedFormat(4, 32, values="e2m1"),
)
VARIANTS: tuple[Variant, ...] = tuple(dict.fromkeys(_variants()))
"""A part of what may be launched, in which every macro has all its values."""
