"""Rows made ready for a product, as a call: what multiplies packed weights of a format reads them.

What rows become depends on the weight (see `micro`): codes with a scale and a sum per group,
bfloat16, two of them, or just themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numba.extending import overload

from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.device_function import INLINE
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16, FLOAT32, read, smaller, write
from spaninfer_kernels_cpu.codegen.isa_level import active_level
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16
from spaninfer_kernels_cpu.gemm.micro_kernel import MicroKernel, micro_kernels, row_bytes
from spaninfer_kernels_cpu.quantisation.layout import UNSIGNED_OFFSET, Layout
from spaninfer_kernels_cpu.quantisation.quantize_activations import quantize_row
from spaninfer_kernels_cpu.runtime.call import TOKENS, Call, Matrix, word

Sizes: TypeAlias = tuple[int, int, int, int, int]

_INFINITE = np.float32(np.inf)

ROWS_PER_TASK = 4


def prepared_bytes(layout: Layout, *, rounded: bool) -> int:
    """Return the bytes that a row takes when it is ready; 0 where it is so as it lies.

    `rounded`: rows may be rounded to bfloat16 where weights are that.
    """
    one, _ = micro_kernels(layout.format.kind, rounded=rounded, level=active_level())
    if one.isa_path == "fma" and layout.padded_channels == layout.channels:
        return 0
    return row_bytes(layout, one)


def prepare_call(
    x: Matrix,
    layout: Layout,
    *,
    out: Matrix,
    parts: int = 1,
    rounded: bool = False,
    count: int = TOKENS,
) -> Call:
    """Write rows of `parts` times `layout.channels` numbers to out, every part ready by itself.

    A part takes `prepared_bytes`, which are not 0; parts lie side by side.
    """
    one, _ = micro_kernels(layout.format.kind, rounded=rounded, level=active_level())
    preparation = _preparation_for(one)
    words = (
        *(x.address, x.stride, out.address, out.stride, parts),
        prepared_bytes(layout, rounded=rounded),
        *(layout.channels, layout.group_channels, layout.padded_channels, one.channel_bytes),
        UNSIGNED_OFFSET.get(layout.format.kind, 0),
    )
    return Call(_prepare_kernel(preparation), words, 1, ROWS_PER_TASK, count)


@dataclass(frozen=True, slots=True)
class Preparation(Constant):
    """How rows are made ready: "code", "narrow" to bfloat16, "split" into two of these, or "pad"
    with zeros.
    """

    name: str


def _preparation_for(micro: MicroKernel) -> Preparation:
    if micro.is_quantised:
        return _CODE
    if micro.parts > 1:
        return _SPLIT
    return _PAD if micro.isa_path == "fma" else _NARROW


@variants
def _prepare_kernel(preparation: Preparation) -> Kernel:
    def make_ready(words: int, rows: int, task: int) -> None:
        first = task * ROWS_PER_TASK
        sizes = word(words, 6), word(words, 7), word(words, 8), word(words, 9), word(words, 10)
        for row in range(first, smaller(rows, first + ROWS_PER_TASK)):
            source = word(words, 0) + row * word(words, 1)
            target = word(words, 2) + row * word(words, 3)
            for part in range(word(words, 4)):
                prepare_row(preparation, source + part * sizes[0] * 4, sizes, target)
                target += word(words, 5)

    return make_ready


def prepare_row(preparation: Preparation, source: int, sizes: Sizes, target: int) -> None:
    """Make a row ready.

    `sizes`: channels, those of a group, padded ones, bytes of a channel, and the weights' centre.
    """
    raise NotImplementedError("exists in Numba functions only")


@overload(prepare_row, jit_options=INLINE)
def _prepare_row(
    preparation: Preparation,
    source: int,  # noqa: ARG001
    sizes: Sizes,  # noqa: ARG001
    target: int,  # noqa: ARG001
) -> Callable[..., None]:
    """Choose the code; Numba hands in types, but wants the signature repeated to the letter."""
    kind: Any = preparation
    return _WAYS[kind.value.name]


def _code(preparation: Preparation, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write the codes of a row."""
    quantize_row(source, sizes[0], sizes[1], sizes[2], sizes[3], sizes[4], target)


def _narrow(preparation: Preparation, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write a row rounded to bfloat16, filled up with zeros."""
    channels, _, padded, _, _ = sizes
    for i in range(channels):
        write(BFLOAT16, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(BFLOAT16, target, i, np.float32(0))


def _split(preparation: Preparation, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write a row rounded to bfloat16, then what is left of every number, rounded too.

    Their sum is within 2^-17 of the number. Nothing is left of an infinite one, nor of NaN.
    """
    channels, _, padded, _, _ = sizes
    rest = target + 2 * padded
    for i in range(channels):
        number = read(FLOAT32, source, i)
        first = nearest_bf16(number)
        left = number - first if abs(first) < _INFINITE else np.float32(0)
        write(BFLOAT16, target, i, number)
        write(BFLOAT16, rest, i, left)
    for i in range(channels, padded):
        write(BFLOAT16, target, i, np.float32(0))
        write(BFLOAT16, rest, i, np.float32(0))


def _pad(preparation: Preparation, source: int, sizes: Sizes, target: int) -> None:  # noqa: ARG001
    """Write a row filled up with zeros."""
    channels, _, padded, _, _ = sizes
    for i in range(channels):
        write(FLOAT32, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(FLOAT32, target, i, np.float32(0))


_WAYS = {"code": _code, "narrow": _narrow, "split": _split, "pad": _pad}
_CODE, _NARROW, _SPLIT, _PAD = (Preparation(name) for name in _WAYS)
