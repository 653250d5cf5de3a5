"""Attention over keys and values that lie in spans: their layout, and CUDA kernels on it."""

from span_attention import append, decode, merge, prefill
from span_attention.decode import BatchDecode
from span_attention.layout import ArrayStrides, Format, SpanLayout
from span_attention.prefill import BatchPrefill
from span_attention.spans import Spans

__all__ = [
    "ArrayStrides",
    "BatchDecode",
    "BatchPrefill",
    "Format",
    "SpanLayout",
    "Spans",
    "append",
    "decode",
    "merge",
    "prefill",
]
