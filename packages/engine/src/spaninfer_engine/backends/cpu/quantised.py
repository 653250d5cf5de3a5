"""Published quantised weights in the formats of the CPU's GEMMs.

A GEMM's format (`spaninfer_kernels_cpu.Codes`) has the codes, scales, zero points and minimums
of the file in as many bits, so nothing is lost; activations are quantised to int8. Only scales of
NVFP4, e4m3 under one of the tensor, become float16, which is off by 2^-11 of them at most, or by
2^-25.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import (
    PLANES,
    Codes,
    Format,
    GroupedCodes,
    InnerScales,
    Packed,
    ScaleNumber,
    Shift,
    pack_codes,
)
from spaninfer_op_reference import QuantizedWeight, WeightFormat, group_minimums, group_scales

_GROUPS = (16, 32, 64, 128, None)
_INNER_GROUPS = (16, 32)
_SUPERBLOCK, _OUTER_BITS = 256, 16
_SHIFTS: dict[str, Shift] = {"none": "none", "integer": "zero", "minimum": "bias"}
_NUMBERS: dict[str, ScaleNumber] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "float16": "float16",
    "e8m0": "e8m0",
    "e4m3": "float16",
}
_SMALLEST_HALF = 2.0**-127


def kernel_format(formats: Sequence[WeightFormat]) -> Format | None:
    """Return the format in which GEMMs hold weights of these; None where there is none."""
    found = {stored_format(each) for each in formats}
    return found.pop() if len(found) == 1 else None


def keep_codes_together(formats: Sequence[WeightFormat | None]) -> bool:
    """Return True if joining these weights does not force any of them to be dequantised."""
    found = {None if each is None else stored_format(each) for each in formats}
    return len(found) == 1


def kept_bits(format: WeightFormat) -> float | None:
    """Return the bits of a weight in its GEMM's format, scales included; None without one."""
    kept = stored_format(format)
    if kept is None or kept.codes is None:
        return None
    bits = kept.codes.bits
    if kept.group is None:
        return bits
    return bits + kept.codes.parameter_bits / kept.codes.record_groups / kept.group


def stored_format(format: WeightFormat) -> Format | None:
    """Return the format that holds codes and scales as they are."""
    codes = _codes(format)
    if codes is None:
        return None
    return Format("codes", format.group_columns, codes)


def _codes(format: WeightFormat) -> Codes | None:
    if format.permuted or format.group_columns not in _GROUPS or format.values == "e4m3":
        return None
    if format.group_rows not in (1, None) or format.zero not in _SHIFTS:
        return None
    found = None if format.table is None else _integers(format.table)
    if format.table is not None and found is None:
        return None
    shift, halves = _SHIFTS[format.zero], format.group_columns == _INNER_GROUPS[0]
    bits = min(width for width in PLANES if width >= format.bits)
    offset = 0 if shift != "none" else 1 << (bits - 1)
    table = None
    if found is not None:
        offset, table = -min(found[0]), tuple(number - min(found[0]) for number in found[0])
    if format.scale == "integer":
        inner = _inner_scales(format)
        return (
            None if inner is None else Codes(bits, offset, "float16", shift, inner, halves, table)
        )
    return Codes(bits, offset, _NUMBERS[format.scale], shift, None, halves, table)


def _inner_scales(format: WeightFormat) -> InnerScales | None:
    """Return how many bits scales have that are whole numbers: what 256 weights leave for them."""
    if format.outer != "float16" or format.group_columns not in _INNER_GROUPS:
        return None
    kinds = 2 if format.zero == "minimum" else 1
    left = (format.stored_bits - format.bits) * _SUPERBLOCK - kinds * _OUTER_BITS
    bits = round(left * format.group_columns / _SUPERBLOCK / kinds)
    return InnerScales(bits, 0 if kinds == 2 else 1 << (bits - 1))


def _integers(table: tuple[float, ...]) -> tuple[tuple[int, ...], float] | None:
    """Return a table as whole numbers of int8 and what they are multiples of; None of others."""
    for factor in (1.0, 0.5):
        numbers = np.array(table) / factor
        if (numbers == np.rint(numbers)).all() and -128 <= numbers.min() <= numbers.max() < 128:
            return tuple(map(int, numbers)), factor
    return None


def pack_quantised(weights: Sequence[QuantizedWeight], format: Format) -> Packed:
    """Return weights[O C] or [N O C] below one another, packed in the `kernel_format` of theirs."""
    assert format.codes is not None
    return pack_codes([_Rows(weight, format.codes) for weight in weights], format)


@dataclass(frozen=True, slots=True)
class _Rows:
    """A CodeRows over a weight[O C] or [N O C]."""

    weight: QuantizedWeight
    codes: Codes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape with the axis N."""
        return self.weight.shape if len(self.weight.shape) == 3 else (1, *self.weight.shape)

    def rows(self, number: int, some: slice) -> GroupedCodes:
        """Return rows of one of the weights, as its GEMM's format has them."""
        one = self.weight[number] if len(self.weight.shape) == 3 else self.weight
        make = _flat if self.codes.inner is None else _inner
        return GroupedCodes(**make(one.rows(some), self.codes))


def _flat(weight: QuantizedWeight, codes: Codes) -> dict[str, NDArray[Any]]:
    """Return fields of GroupedCodes, scales and what is beside them as numbers."""
    rows, columns = weight.shape
    groups = rows, -(-columns // (weight.format.group_columns or columns))
    scales = np.broadcast_to(group_scales(weight), groups)
    if weight.format.table is not None:
        found = _integers(weight.format.table)
        assert found is not None
        scales = scales * found[1]
        if codes.scale == "e8m0":  # half of the smallest has no exponent
            scales = np.maximum(scales, _SMALLEST_HALF)
    parts: dict[str, NDArray[Any]] = {"codes": _unsigned(weight, codes), "scales": scales}
    if codes.shift == "zero":
        assert weight.zeros is not None
        parts["shifts"] = np.broadcast_to(weight.zeros, groups)
    elif codes.shift == "bias":
        parts["shifts"] = -np.broadcast_to(group_minimums(weight), groups)
    return parts


def _inner(weight: QuantizedWeight, codes: Codes) -> dict[str, NDArray[Any]]:
    """Return fields of GroupedCodes, scales and minimums as whole numbers."""
    assert codes.inner is not None
    assert weight.outer is not None
    scales = weight.scales.astype(np.int64) + codes.inner.offset
    parts: dict[str, NDArray[Any]] = {"codes": _unsigned(weight, codes), "scales": scales}
    parts["outer"] = weight.outer
    if weight.minimums is not None:
        assert weight.outer_minimums is not None
        parts |= {"shifts": weight.minimums, "outer_shifts": weight.outer_minimums}
    return parts


def _unsigned(weight: QuantizedWeight, codes: Codes) -> NDArray[np.uint8]:
    """Return codes without a sign: bytes count around, so 8 bits are enough."""
    unsigned: NDArray[np.uint8] = np.asarray(weight.codes).astype(np.uint8, copy=False)
    is_centred = codes.table is None and codes.offset != 0
    return unsigned + np.uint8(codes.offset) if is_centred else unsigned
