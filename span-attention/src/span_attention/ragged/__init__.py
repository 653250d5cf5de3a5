"""Attention of packed sequences without a KV cache, each row to all of its own (encoders)."""

from span_attention.ragged.batch import BatchRagged
from span_attention.ragged.options import MAX_HEAD_SIZE, RaggedOptions
from span_attention.ragged.prepared import PreparedRagged, prepare
from span_attention.ragged.variants import VARIANTS

__all__ = ["MAX_HEAD_SIZE", "VARIANTS", "BatchRagged", "PreparedRagged", "RaggedOptions", "prepare"]
