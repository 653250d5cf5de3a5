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
from spaninfer_kernels_cpu.packed import Packed, pack, pack_stack, unpack
from spaninfer_kernels_cpu.products import linear
from spaninfer_kernels_cpu.sampling import Draw, Sampler
from spaninfer_kernels_cpu.threads import usable_cpus
from spaninfer_kernels_cpu.warm import compile_all

__all__ = [
    "DTypeError",
    "Draw",
    "Format",
    "FormatError",
    "KernelError",
    "Packed",
    "Rows",
    "Sampler",
    "Scores",
    "ShapeError",
    "TierError",
    "attend",
    "compile_all",
    "experts",
    "linear",
    "pack",
    "pack_stack",
    "unpack",
    "usable_cpus",
]
