"""Compile kernels ahead of their first use, or load them from Numba's cache on disk."""

from __future__ import annotations

from collections.abc import Iterable

from spaninfer_kernels_cpu import attention
from spaninfer_kernels_cpu.layout import Format
from spaninfer_kernels_cpu.products import make_products_ready


def compile_all(formats: Iterable[Format] = ()) -> None:
    """Make ready attention and the products with weights of these formats.

    Takes seconds the first time, milliseconds from then on. Without this call, a kernel is made
    ready by its first use.
    """
    attention.compiled()
    for format in formats:
        make_products_ready(format)
