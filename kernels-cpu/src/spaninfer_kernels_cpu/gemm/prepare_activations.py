"""Activations prepared for a GEMM, as a call: as the kernels of a weight's format read them.

What rows become depends on the weight (`micro_kernel`): quantised to int8 with a scale and a sum
per group, bfloat16, two of them, or just themselves. Where few rows and many are multiplied
otherwise, it depends on their number, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.constants import Constant
from spaninfer_kernels_cpu.codegen.elements import BFLOAT16, FLOAT32, read, smaller, write
from spaninfer_kernels_cpu.codegen.kernel import Kernel, variants
from spaninfer_kernels_cpu.codegen.rounding import nearest_bf16
from spaninfer_kernels_cpu.codegen.specialization import specialized
from spaninfer_kernels_cpu.gemm.micro_kernel import (
    EXPANDED,
    EXPANDED_GROUP,
    MicroKernel,
    expanded_groups,
    row_bytes,
)
from spaninfer_kernels_cpu.quantisation.layout import Layout
from spaninfer_kernels_cpu.quantisation.quantize_activations import (
    RowSizes,
    quantize_row,
    quantize_row_in_parts,
)
from spaninfer_kernels_cpu.runtime.call import TOKENS, Call, Matrix, row_at

_INFINITE = np.float32(np.inf)

_LEAST_ROWS = 4  # of a task
_NUMBERS = 8192  # of a task of more rows: 3 µs, where threads take turns at 0.2


@dataclass(frozen=True, slots=True)
class RowReaders:
    """The micro-kernels for which rows are prepared: up to `most_few` rows for `one`, more for
    `many`; None is `one` whatever their number.
    """

    one: MicroKernel
    many: MicroKernel | None = None
    most_few: int = 0

    @property
    def of_many(self) -> MicroKernel:
        """The micro-kernel that reads more rows than `most_few`."""
        return self.many or self.one


@cache
def prepared_bytes(layout: Layout, readers: RowReaders) -> int:
    """Return the bytes that a row takes when any of its readers can read it; 0 where it is so as it
    lies.
    """
    if readers.one.isa_path == "fma" and layout.padded_channels == layout.channels:
        return 0
    return max(row_bytes(layout, each) for each in (readers.one, readers.of_many))


def prepare_call(
    x: Matrix,
    layout: Layout,
    readers: RowReaders,
    *,
    out: Matrix,
    parts: int = 1,
    count: int = TOKENS,
) -> Call:
    """Write rows of `parts` times `layout.channels` numbers to out, every part prepared by itself.

    A part takes `prepared_bytes`; parts lie side by side.
    """
    rows = max(_LEAST_ROWS, _NUMBERS // (parts * layout.channels))
    arguments = _PrepareArguments(
        x=x,
        out=out,
        parts=parts,
        part_bytes=prepared_bytes(layout, readers),
        sizes=_sizes(layout, readers.one),
        sizes_of_many=_sizes(layout, readers.of_many),
        rows_per_task=rows,
        most_few=readers.most_few,
    )
    return Call(prepare_kernel(readers), arguments, 1, rows, count)


@dataclass(frozen=True, slots=True)
class _RowSizes(Arguments):
    """RowSizes, in the arguments of a call."""

    channels: int
    group: int
    padded: int
    channel_bytes: int
    unsigned_offset: int
    groups: int
    most: int
    parts: int


@cache
def _sizes(layout: Layout, micro: MicroKernel) -> _RowSizes:
    """Return the sizes of a row."""
    if micro.expands_to_bytes:
        return _RowSizes(
            channels=layout.channels,
            group=EXPANDED_GROUP,
            padded=EXPANDED_GROUP,
            channel_bytes=micro.channel_bytes,
            unsigned_offset=EXPANDED.offset,
            groups=expanded_groups(layout),
            most=EXPANDED.most_activation(EXPANDED_GROUP),
            parts=1,
        )
    codes = layout.format.codes
    if codes is not None and micro.has_whole_scales:
        return _RowSizes(
            channels=layout.channels,
            group=layout.record_channels,
            padded=layout.record_channels,
            channel_bytes=micro.channel_bytes,
            unsigned_offset=codes.offset,
            groups=layout.records,
            most=codes.most_activation(layout.record_channels),
            parts=codes.record_groups,
        )
    return _RowSizes(
        channels=layout.channels,
        group=layout.group_channels,
        padded=layout.padded_channels,
        channel_bytes=micro.channel_bytes,
        unsigned_offset=0 if codes is None else codes.offset,
        groups=layout.groups,
        most=0 if codes is None else codes.most_activation(layout.group_channels),
        parts=1,
    )


@dataclass(frozen=True, slots=True)
class _PrepareArguments(Arguments):
    x: Matrix
    out: Matrix
    parts: int
    part_bytes: int
    sizes: _RowSizes
    sizes_of_many: _RowSizes
    rows_per_task: int
    most_few: int


@dataclass(frozen=True, slots=True)
class Preparation(Constant):
    """The preparation of rows: "code", "code in parts", "narrow" to bfloat16, "split" into two of
    these, or "pad" with zeros.
    """

    name: str


def prepare_kernel(readers: RowReaders) -> Kernel:
    """Return the kernel that prepares rows for their readers."""
    return _prepare_kernel(_preparation_for(readers.one), _preparation_for(readers.of_many))


def _preparation_for(micro: MicroKernel) -> Preparation:
    if micro.has_whole_scales:
        return _PARTS
    if micro.is_quantised and micro.isa_path != "expanded tiles":
        return _CODE
    if micro.parts > 1:
        return _SPLIT
    return _PAD if micro.isa_path == "fma" else _NARROW


@variants
def _prepare_kernel(preparation: Preparation, of_many: Preparation) -> Kernel:
    def prepare(arguments: _PrepareArguments, tokens: int, task: int) -> None:
        some, few = arguments.rows_per_task, tokens <= arguments.most_few
        given = arguments.sizes if few else arguments.sizes_of_many
        sizes = RowSizes(
            given.channels,
            given.group,
            given.padded,
            given.channel_bytes,
            given.unsigned_offset,
            given.groups,
            given.most,
            given.parts,
        )
        for row in range(task * some, smaller(tokens, (task + 1) * some)):
            source, target = row_at(arguments.x, row), row_at(arguments.out, row)
            for part in range(arguments.parts):
                numbers = source + part * sizes.channels * 4
                if few:
                    prepare_row(preparation, numbers, sizes, target)
                else:
                    prepare_row(of_many, numbers, sizes, target)
                target += arguments.part_bytes

    return prepare


@specialized(lambda preparation: _WAYS[preparation.name])
def prepare_row(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:
    """Write a row of float32 as the kernels read it."""
    raise NotImplementedError("exists in Numba functions only")


def _code(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:  # noqa: ARG001
    """Write the quantised values of a row."""
    quantize_row(source, sizes, target)


def _code_in_parts(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:  # noqa: ARG001
    """Write the quantised values of a row, and the sums of the parts of its groups."""
    quantize_row_in_parts(source, sizes, target)


def _narrow(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:  # noqa: ARG001
    """Write a row rounded to bfloat16, filled up with zeros."""
    channels, padded = sizes.channels, sizes.groups * sizes.padded
    for i in range(channels):
        write(BFLOAT16, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(BFLOAT16, target, i, np.float32(0))


def _split(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:  # noqa: ARG001
    """Write a row rounded to bfloat16, then what is left of every number, rounded too.

    Their sum is within 2^-17 of the number. Nothing is left of an infinite one, nor of NaN.
    """
    channels, padded = sizes.channels, sizes.padded
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


def _pad(preparation: Preparation, source: int, sizes: RowSizes, target: int) -> None:  # noqa: ARG001
    """Write a row filled up with zeros."""
    channels, padded = sizes.channels, sizes.padded
    for i in range(channels):
        write(FLOAT32, target, i, read(FLOAT32, source, i))
    for i in range(channels, padded):
        write(FLOAT32, target, i, np.float32(0))


_WAYS: dict[str, Any] = {
    "code": _code,
    "code in parts": _code_in_parts,
    "narrow": _narrow,
    "split": _split,
    "pad": _pad,
}
_CODE, _PARTS, _NARROW, _SPLIT, _PAD = (Preparation(name) for name in _WAYS)
