"""Quantised weights on the device: packed into the order of the kernels, and dequantised.

`code_macros` says what codes.cuh is compiled with; every kernel of this folder includes it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from spaninfer_kernel_launch import (
    Call,
    DTypeError,
    FileCache,
    Gpu,
    Launch,
    Source,
    Variant,
    compile_variant,
    element_of,
    load,
    pointer_of,
    stream_handle,
    user_cache,
)

from spaninfer_kernels_cuda.gemm.tuning import Shape
from spaninfer_kernels_cuda.quantized_gemm.format import QuantizedFormat
from spaninfer_kernels_cuda.quantized_gemm.kernels import (
    DEQUANTIZE,
    PACK,
    DequantizeArguments,
    DequantizeSizes,
    PackArguments,
    PackSizes,
)
from spaninfer_kernels_cuda.quantized_gemm.tuning import check

CODES = "quantized_gemm/codes.cuh"
_HEADERS = ("types.cuh", "reduce.cuh", "mma.cuh")
PACKING = Source(
    "spaninfer_kernels_cuda", "quantized_gemm/pack.cu", _HEADERS, parts=(CODES,), kernels=(PACK,)
)
DEQUANTIZING = Source(
    "spaninfer_kernels_cuda",
    "quantized_gemm/dequantize.cu",
    _HEADERS,
    parts=(CODES,),
    kernels=(DEQUANTIZE,),
)


def code_macros(
    format: QuantizedFormat, dtype: object
) -> tuple[dict[str, str | int | bool], tuple[str, ...]]:
    """Return the macros of codes.cuh, and architectures, of kernels whose x holds floats."""
    if format.activations != "floats":
        raise DTypeError(f"the weight is packed for activations in {format.activations}")
    return operand_macros(format, dtype)


def operand_macros(
    format: QuantizedFormat, dtype: object
) -> tuple[dict[str, str | int | bool], tuple[str, ...]]:
    """Return the same of kernels whose x holds what the weight is packed for."""
    element = element_of(dtype)
    if element.itemsize != 2:
        raise DTypeError(f"no kernel for elements of type {np.dtype(dtype)}; 16-bit floats only")  # type: ignore[call-overload]
    macros: dict[str, str | int | bool] = {
        "T": element.name,
        "OPERAND": element.name if format.activations == "floats" else format.activations,
        "BITS": format.bits,
        "GROUP": format.group or 0,
        "SHIFT": format.shift_number,
        "E4M3": format.values == "e4m3",
        "E2M1": format.values == "e2m1",
    }
    return macros, element.architectures


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
    check(Shape(1, outputs, inner), format, gated=gated)
    macros, architectures = operand_macros(format, np.float16)
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
    check(Shape(1, outputs, inner), format, gated=gated)
    macros, architectures = code_macros(format, dtype)
    variant = Variant.of("quantized_dequantize", DEQUANTIZING, macros, architectures)
    kernel = load(compile_variant(variant, gpu.arch, cache or user_cache()), gpu, DEQUANTIZE)
    blocks, chunks, _ = format.records(outputs, inner)
    sizes = DequantizeSizes(outputs, inner, int(gated))
    return PreparedDequantize(Call(kernel, Launch((chunks, blocks, 1), (128, 1, 1)), sizes))
