"""Published quantised weights in the formats of the CPU's products.

A product's format is (code - offset) * scale + bias with a scale and a bias in bfloat16 per group
of a row, and activations in int8. Codes are kept as they are; scales lose what bfloat16 does not
hold, at most 2^-9 of them. Formats that would lose more are expanded.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from spaninfer_kernels_cpu import Format, GroupedCodes, Packed, pack_codes
from spaninfer_op_reference import (
    QuantizedWeight,
    WeightFormat,
    group_minimums,
    group_scales,
)

_GROUPS = (32, 64, 128, None)
_OFFSET = {"int4": 8, "int8": 128}
_MOST_SHIFTED_BITS = 6  # a bias in bfloat16 is off by 1/16 of a step at most; by 1/4 of 8 bits


def kernel_format(formats: Sequence[WeightFormat]) -> Format | None:
    """Return the format in which products hold weights of these; None where there is none."""
    kinds = {_kind(each) for each in formats}
    groups = {each.group_columns for each in formats}
    if None in kinds or len(groups) > 1:
        return None
    return Format("int8" if "int8" in kinds else "int4", groups.pop())


def keep_codes_together(formats: Sequence[WeightFormat | None]) -> bool:
    """Do weights, some perhaps not quantised, keep their codes below one another as alone?"""
    known = [each for each in formats if each is not None]
    if all(kernel_format([each]) is None for each in known):
        return True
    return len(known) == len(formats) and kernel_format(known) is not None


def _kind(format: WeightFormat) -> str | None:
    """Return the narrowest kind of codes that holds those of a format."""
    if format.permuted or format.group_columns not in _GROUPS or format.values == "e4m3":
        return None
    if format.group_rows not in (1, None):
        return None
    if format.values == "table":
        return None if _integers(format) is None else "int8"
    if format.zero != "none" and format.bits > _MOST_SHIFTED_BITS:
        return None
    return "int4" if format.bits <= 4 else "int8"


def _integers(format: WeightFormat) -> tuple[NDArray[np.int64], float] | None:
    """Return a table as whole numbers of int8 and what they are multiples of; None of others."""
    table = np.array(format.table)
    for factor in (1.0, 0.5):
        numbers = table / factor
        if (numbers == np.rint(numbers)).all() and -128 <= numbers.min() <= numbers.max() < 128:
            return numbers.astype(np.int64), factor
    return None


def pack_quantised(weights: Sequence[QuantizedWeight], format: Format) -> Packed:
    """Return weights[O C] or [N O C] below one another, packed in a `kernel_format` of theirs."""
    return pack_codes([_grouped(weight, format) for weight in weights], format)


def _grouped(weight: QuantizedWeight, format: Format) -> GroupedCodes:
    if len(weight.shape) == 2:
        each = [_grouped_codes(weight, format)]
    else:
        each = [_grouped_codes(weight[number], format) for number in range(weight.shape[0])]
    codes, scales, biases = zip(*each, strict=True)
    return GroupedCodes(np.stack(codes), np.stack(scales), np.stack(biases))


def _grouped_codes(
    weight: QuantizedWeight, format: Format
) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Return unsigned codes [O C], scales and biases [O G] of one weight."""
    rows, columns = weight.shape
    groups = rows, -(-columns // (format.group or columns))
    scales = np.broadcast_to(group_scales(weight), groups)
    if weight.format.values == "table":
        found = _integers(weight.format)
        assert found is not None
        codes, scales = found[0][weight.codes], scales * found[1]
        biases: NDArray[np.float64] = np.zeros(groups)
    else:
        codes, biases = weight.codes.astype(np.int16), _biases(weight, scales)
        if weight.format.zero != "none":
            codes = codes - _middle(weight.format)
    unsigned = (codes + _OFFSET[format.kind]).astype(np.uint8)
    return unsigned, scales.astype(np.float32), biases.astype(np.float32)


def _biases(weight: QuantizedWeight, scales: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return what the middle code of every group stands for; 0 of signed codes."""
    match weight.format.zero:
        case "none":
            return np.zeros(scales.shape)
        case "minimum":
            return _middle(weight.format) * scales - group_minimums(weight)
        case _:
            assert weight.zeros is not None
            return (_middle(weight.format) - weight.zeros.astype(np.float64)) * scales


def _middle(format: WeightFormat) -> int:
    return 1 << (format.bits - 1)
