"""Queries, keys and values of rows on the GPU, as kernels take them: by addresses and strides."""

from __future__ import annotations

from typing import NamedTuple

from span_attention import SpanLayout
from torch import Tensor


class Heads(NamedTuple):
    """Queries, keys and values of T rows, by addresses, and elements from row to row of each.

    The heads of a row lie one after another. `owners` are the tensors that must not go away.
    """

    rows: int
    query_heads: int
    addresses: tuple[int, int, int]
    strides: tuple[int, int, int]
    owners: tuple[Tensor, ...]

    @classmethod
    def of(cls, query: Tensor, key: Tensor, value: Tensor) -> Heads:
        """Return those of query[T H D], key[T K D] and value[T K E]."""
        rows, heads, _ = query.shape
        q, k, v = (dense_rows(x) for x in (query, key, value))
        pointers = q.data_ptr(), k.data_ptr(), v.data_ptr()
        return cls(rows, heads, pointers, (q.stride(0), k.stride(0), v.stride(0)), (q, k, v))

    @classmethod
    def of_row(cls, row: Tensor, query_heads: int, kv_heads: int, layout: SpanLayout) -> Heads:
        """Return those of row[T X]: a projection's queries, then keys, then values."""
        rows, width = row.shape
        query = row.data_ptr()
        key = query + query_heads * layout.key_size * row.itemsize
        value = key + kv_heads * layout.key_size * row.itemsize
        return cls(rows, query_heads, (query, key, value), (width, width, width), (row,))

    @classmethod
    def of_keys(cls, row: Tensor, kv_heads: int, layout: SpanLayout) -> Heads:
        """Return those of row[T X]: a projection's keys, then values. Keys pass for queries."""
        rows, width = row.shape
        key = row.data_ptr()
        value = key + kv_heads * layout.key_size * row.itemsize
        return cls(rows, kv_heads, (key, key, value), (width, width, width), (row,))


def dense_rows(x: Tensor) -> Tensor:
    """Return x[T H D] with the heads of a row one after another, a view where they are."""
    _, heads, dim = x.shape
    dense = x.stride(2) == 1 and (heads == 1 or x.stride(1) == dim)
    aligned = not (x.stride(0) * x.itemsize % 16 or x.data_ptr() % 16)
    return x if dense and aligned else x.contiguous()
