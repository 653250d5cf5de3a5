"""Attention over keys and values that lie in spans: their layout, and CUDA kernels on it."""

from span_attention import append, decode, merge, prefill
from span_attention.layout import Format, Place, SpanLayout
from span_attention.spans import Spans

__all__ = ["Format", "Place", "SpanLayout", "Spans", "append", "decode", "merge", "prefill"]
