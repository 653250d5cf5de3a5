"""One query per sequence over its keys and values in spans: the attention of a decode step.

`BatchDecode` plans a step on the GPU, once for all layers of a window, and runs a layer. Lengths
and tables are read on the GPU alone, so that both kernels may be captured into CUDA graphs and
replayed for other lengths.
"""

from __future__ import annotations

from span_attention.decode.batch import BatchDecode
from span_attention.decode.prepared import PreparedDecode, prepare
from span_attention.decode.tuning import Tuning, tune
from span_attention.decode.variant import VARIANTS, DecodeOptions, variant_for

__all__ = [
    "VARIANTS",
    "BatchDecode",
    "DecodeOptions",
    "PreparedDecode",
    "Tuning",
    "prepare",
    "tune",
    "variant_for",
]
