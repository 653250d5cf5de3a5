"""Attention over keys and values that lie in spans: their layout, and CUDA kernels on it."""

from span_attention import append
from span_attention.layout import Format, Place, SpanLayout

__all__ = ["Format", "Place", "SpanLayout", "append"]
