"""Causal attention of new tokens over keys and values in spans: prompts, chunks, single tokens.

`BatchPrefill` plans a step on the GPU, once for all layers of a window, and runs a layer. Nothing
of a step's arrays is read on the host, so that launches use the values on the device.
"""

from __future__ import annotations

from span_attention.prefill.batch import BatchPrefill
from span_attention.prefill.options import PrefillOptions
from span_attention.prefill.prepared import PreparedPrefill, has_hopper_kernel, prepare
from span_attention.prefill.variants import VARIANTS

__all__ = [
    "VARIANTS",
    "BatchPrefill",
    "PrefillOptions",
    "PreparedPrefill",
    "has_hopper_kernel",
    "prepare",
]
