"""Compile kernels ahead of their first use, or load them from Numba's cache on disk."""

from __future__ import annotations

from collections.abc import Iterable

from spaninfer_kernels_cpu.attention import attention
from spaninfer_kernels_cpu.codegen.elements import ELEMENTS
from spaninfer_kernels_cpu.gemm.gemm import make_gemm_ready
from spaninfer_kernels_cpu.quantisation.layout import Format


def compile_all(formats: Iterable[Format] = (), kinds: Iterable[str] = ("float32",)) -> None:
    """Make ready `attend` over keys and values of these kinds, and `linear` with these formats.

    Kinds are names of `elements`: float32, bfloat16, float16, int8, uint4.

    Takes seconds the first time, milliseconds from then on. Without this call, a kernel is made
    ready by its first use, and those that scripts call when the call is written down.
    """
    for kind in kinds:
        attention.make_attention_ready(ELEMENTS[kind])
    for format in formats:
        make_gemm_ready(format)
