"""Where keys and values of a layer lie, as Numba functions pass it on: addresses and strides."""

from __future__ import annotations

from typing import NamedTuple

from spaninfer_kernels_cpu.codegen.device_function import device_function


class ArrayStrides(NamedTuple):
    """Where an array of a layer lies: the address for span 0, bytes to the next span, token, head.

    The numbers of one token and head are contiguous. Address 0: there is no such array.
    """

    address: int
    span: int
    token: int
    head: int


class CacheArrays(NamedTuple):
    """Keys, values and, for codes, their zeros and scales (float32, two per token and head).

    Values that are the first numbers of the keys (MLA) have the keys' place.
    """

    keys: ArrayStrides
    values: ArrayStrides
    key_scales: ArrayStrides
    value_scales: ArrayStrides
    span_len: int
    kv_heads: int
    key_size: int
    value_size: int


@device_function
def place_of(place: ArrayStrides, span: int, token: int, head: int) -> int:
    """Return the address of the first number of a token of a span, and a head."""
    return place.address + span * place.span + token * place.token + head * place.head
