"""Kernels for LLM inference on CPUs, compiled by Numba when they are first needed."""

from spaninfer_kernels_cpu.attention.attention import Rows, Scores, attend
from spaninfer_kernels_cpu.errors import (
    DTypeError,
    FormatError,
    KernelError,
    ShapeError,
    TierError,
)
from spaninfer_kernels_cpu.gemm.gemm import linear
from spaninfer_kernels_cpu.moe.experts import experts
from spaninfer_kernels_cpu.quantisation.layout import Format
from spaninfer_kernels_cpu.quantisation.packed import Packed, pack, pack_stack, unpack
from spaninfer_kernels_cpu.runtime.cpu_count import usable_cpus
from spaninfer_kernels_cpu.sampling.sampler import Draw, Sampler
from spaninfer_kernels_cpu.warmup import compile_all

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
