"""Linear attention by the gated delta rule (Yang et al. 2024), with its states in spans.

`convolve` and `delta_rule` continue the sequences of `Slices` where their states lie, and
`gated_rms_norm` is what follows. Rows are 16-bit floats; states, and all sums, are float32.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
from spaninfer_kernel_launch import Variant

from spaninfer_kernels_cuda.delta_rule import convolution, gated_norm, rule
from spaninfer_kernels_cuda.delta_rule.convolution import convolve
from spaninfer_kernels_cuda.delta_rule.gated_norm import gated_rms_norm
from spaninfer_kernels_cuda.delta_rule.rule import MAX_KEY_SIZE, RuleOptions, delta_rule
from spaninfer_kernels_cuda.delta_rule.slices import Slices

__all__ = ["MAX_KEY_SIZE", "Slices", "convolve", "delta_rule", "gated_rms_norm"]

_DTYPES = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))

VARIANTS: tuple[Variant, ...] = (
    *(
        convolution.variant_for(channels, taps, dtype)
        for channels, taps in ((8192, 4), (90, 2))
        for dtype in _DTYPES
    ),
    *(
        variant(RuleOptions(key_size, value_size, dtype))
        for variant in (rule.decode_variant, rule.prompt_variant)
        for key_size, value_size in ((128, 128), (64, 64), (12, 10))
        for dtype in _DTYPES
    ),
    *(
        gated_norm.variant_for(value_size, dtype)
        for value_size in (128, 10)
        for dtype in (np.float32, *_DTYPES)
    ),
)
"""Every kernel and element type, with heads of published models and odd ones."""
