"""Variants of the kernels of quantised weights that compile tests go through."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Variant

from spaninfer_kernels_cuda.activation import ACTS
from spaninfer_kernels_cuda.gemm.tuning import Shape
from spaninfer_kernels_cuda.quantized_gemm.codes import (
    DEQUANTIZING,
    PACKING,
    code_macros,
    operand_macros,
)
from spaninfer_kernels_cuda.quantized_gemm.format import QuantizedFormat
from spaninfer_kernels_cuda.quantized_gemm.prepared import variant_for
from spaninfer_kernels_cuda.quantized_gemm.tuning import choose


def _variants() -> Iterator[Variant]:
    """Yield every format with tiles, element types and gates in turn."""
    shapes = [
        Shape(rows, outputs, 4096)
        for rows in (8, 16, 32, 64, 100, 256)
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
        macros, architectures = operand_macros(format, np.float16)
        yield Variant.of("quantized_pack", PACKING, macros, architectures)
        if format.activations != "floats":
            continue
        macros, architectures = code_macros(format, ml_dtypes.bfloat16)
        yield Variant.of("quantized_dequantize", DEQUANTIZING, macros, architectures)


_SHARED_BYTES = {"sm_90a": 232_448, "sm_80": 166_912}
_FORMATS = (
    QuantizedFormat(4, 128, "zero"),
    QuantizedFormat(8, None),
    QuantizedFormat(4, 32, "minimum"),
    QuantizedFormat(4, 32, values="e2m1"),
    QuantizedFormat(4, 128, activations="e4m3"),
)
VARIANTS: tuple[Variant, ...] = tuple(dict.fromkeys(_variants()))
"""A part of what may be launched, in which every macro has all its values."""
