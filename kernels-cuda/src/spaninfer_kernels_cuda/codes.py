"""The 8-bit codes that rows of activations are quantised to, by their names in csrc/codes.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import DTypeError, ShapeError

from spaninfer_kernels_cuda.rows import Division

Code = Literal["int8", "fp8"]
CODES: tuple[Code, ...] = get_args(Code)


@dataclass(frozen=True, slots=True)
class CodeType:
    """A symmetric code: its type in C++, and that of its elements."""

    name: str
    dtype: np.dtype[Any]


_CODES: dict[Code, CodeType] = {
    "int8": CodeType("SymmetricInt8", np.dtype(np.int8)),
    "fp8": CodeType("Fp8", np.dtype(ml_dtypes.float8_e4m3fn)),
}


def code_type(code: Code) -> CodeType:
    """Return the type of `code`. Raises DTypeError for other names."""
    if code not in _CODES:
        raise DTypeError(f"there are no codes {code!r}; there are {', '.join(_CODES)}")
    return _CODES[code]


GROUPS: tuple[int, ...] = (32, 64, 128)
"""The numbers of adjacent codes that may share a scale."""


def check_group(group: int | None, division: Division) -> None:
    """Raise ShapeError for groups that no row divided so can have."""
    if group is None:
        return
    if group not in GROUPS:
        raise ShapeError(f"no groups of {group} codes; there are {', '.join(map(str, GROUPS))}")
    if group > 32 * division.vector:
        raise ShapeError(
            f"groups of {group} codes in rows loaded by {division.vector}; a warp loads a group"
        )


def scales_shape(rows: int, channels: int, group: int | None) -> tuple[int, ...]:
    """Return the shape of the scales: [T], or of groups [ceil(C/group) T]."""
    return (rows,) if group is None else (-(-channels // group), rows)
