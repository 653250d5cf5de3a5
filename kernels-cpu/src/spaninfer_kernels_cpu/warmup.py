"""Compile kernels ahead of their first use, or load them from Numba's cache on disk."""

from __future__ import annotations

from collections.abc import Iterable

from spaninfer_kernels_cpu.attention.attend_call import attention_kernels
from spaninfer_kernels_cpu.attention.attention_plan import make_planner_ready
from spaninfer_kernels_cpu.codegen.kernel import address_of
from spaninfer_kernels_cpu.gemm.gemm_call import gemm_kernels
from spaninfer_kernels_cpu.quantisation.layout import Format
from spaninfer_kernels_cpu.runtime.thread_pool import make_thread_pool_ready


def compile_all(formats: Iterable[Format] = (), kinds: Iterable[str] = ("float32",)) -> None:
    """Make ready `attend` over keys and values of these kinds, and `linear` with these formats.

    Kinds are names of `elements`: float32, bfloat16, float16, int8, uint4.

    Takes seconds the first time, milliseconds from then on. Without this call, a kernel is made
    ready by its first use, and those that scripts call when the call is recorded.
    """
    make_thread_pool_ready()
    make_planner_ready()
    kernels = [kernel for kind in kinds for kernel in attention_kernels(kind)]
    for format in formats:
        for rounded in {False, format.kind == "bfloat16"}:
            kernels += gemm_kernels(format, rounded=rounded)
    for kernel in kernels:
        address_of(kernel)
