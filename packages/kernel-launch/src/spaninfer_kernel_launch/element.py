"""The element types of csrc/types.cuh: their C++ names, sizes and architectures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from spaninfer_kernel_launch.errors import DTypeError
from spaninfer_kernel_launch.variant import ARCHITECTURES, WITH_BFLOAT16


@dataclass(frozen=True, slots=True)
class Element:
    """A type that the macro T may name, and the architectures that compute with it."""

    name: str
    itemsize: int
    architectures: tuple[str, ...] = ARCHITECTURES


_ELEMENTS: dict[np.dtype[Any], Element] = {
    np.dtype(np.float32): Element("float", 4),
    np.dtype(np.float16): Element("half", 2),
    np.dtype(ml_dtypes.bfloat16): Element("bfloat16", 2, WITH_BFLOAT16),
}


def element_of(dtype: object) -> Element:
    """Return the element type of a numpy or ml_dtypes type. Raises DTypeError for others."""
    given = np.dtype(dtype)  # type: ignore[call-overload]
    if given not in _ELEMENTS:
        allowed = ", ".join(known.name for known in _ELEMENTS)
        raise DTypeError(f"no kernel for elements of type {given}; there are {allowed}")
    return _ELEMENTS[given]
