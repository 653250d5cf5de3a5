"""Addresses and strides of the arrays of a layer's KV cache."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from spaninfer_kernels_cpu.codegen.arguments import Arguments
from spaninfer_kernels_cpu.codegen.device_function import device_function


@dataclass(frozen=True, slots=True)
class StridedArray(Arguments):
    """The address of span 0 of an array of a layer, and bytes to the next span, token and head.

    The numbers of one token and head are contiguous. Address 0: there is no such array.
    """

    address: int
    span: int
    token: int
    head: int


NO_ARRAY = StridedArray(0, 0, 0, 0)


class ArrayStrides(NamedTuple):
    """A StridedArray in registers."""

    address: int
    span: int
    token: int
    head: int


class CacheArrays(NamedTuple):
    """Keys, values and, of quantised ones, zeros and scales (float32, two per token and head).

    Values that are the first numbers of the keys (MLA) have the keys' place. Keys from number
    `key_split` on have a zero and a scale of their own, behind the others.
    """

    keys: ArrayStrides
    values: ArrayStrides
    key_scales: ArrayStrides
    value_scales: ArrayStrides
    span_len: int
    kv_heads: int
    key_size: int
    key_split: int
    value_size: int


@device_function
def strides_of(array: StridedArray) -> ArrayStrides:
    """Read where an array lies."""
    return ArrayStrides(array.address, array.span, array.token, array.head)


@device_function
def place_of(array: ArrayStrides, span: int, token: int, head: int) -> int:
    """Return the address of the first number of a token of a span, and a head."""
    return array.address + span * array.span + token * array.token + head * array.head
