"""The request for a variant of prefill, and its element types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import DTypeError, Element, element_of

from span_attention.layout import Format
from span_attention.quantize import CODES

_DTYPES: Final = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
_SAME: Final = {"float16": Format.FLOAT16, "bfloat16": Format.BFLOAT16}


@dataclass(frozen=True, slots=True)
class PrefillOptions:
    """A request for a variant: `dtype` is the element type of queries and results.

    "float16" or "bfloat16". With `lse`, log-sum-exps of scores are a second result.
    """

    dtype: str
    lse: bool = False


def element_for(options: PrefillOptions, format: Format) -> Element:
    """Return the element type of the products: that of the queries.

    Raises DTypeError for types that tensor cores do not take, and for floats of another type in the
    spans.
    """
    if options.dtype not in _DTYPES:
        raise DTypeError(f"query holds {options.dtype}; prefill takes {' and '.join(_DTYPES)}")
    if format not in CODES and format is not _SAME[options.dtype]:
        raise DTypeError(
            f"spans hold {format.label}, but query {options.dtype}; they must be the same, or codes"
        )
    return element_of(_DTYPES[options.dtype])


def stored_as(element: Element, format: Format) -> str:
    """Return the C++ type of the elements in spans."""
    return CODES.get(format, element.name)
