"""Kernels for LLM inference on CPUs, compiled by Numba when they are first needed."""

from spaninfer_kernels_cpu.attention import Rows, Scores, attend
from spaninfer_kernels_cpu.errors import (
    DTypeError,
    FormatError,
    KernelError,
    ShapeError,
    TierError,
)
from spaninfer_kernels_cpu.experts import experts
from spaninfer_kernels_cpu.layout import Format
from spaninfer_kernels_cpu.packed import Packed, pack, unpack
from spaninfer_kernels_cpu.products import linear
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.warm import compile_all

__all__ = [
    "DTypeError",
    "Format",
    "FormatError",
    "KernelError",
    "Packed",
    "Rows",
    "Scores",
    "ShapeError",
    "TierError",
    "attend",
    "compile_all",
    "experts",
    "linear",
    "pack",
    "unpack",
    "usable_cpus",
]
