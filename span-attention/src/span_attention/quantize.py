"""Quantisation of the KV cache to 8 and 4 bits: the meaning of codes, zero points and scales.

Beside the codes of a token and KV head lie P float32 numbers (`SpanLayout.key_scales` and
`value_scales`), by which a code is dequantised:

    format   P             x                       codes
    fp8      scale         code * scale            e4m3, one per byte
    int8     zero, scale   (code - zero) * scale   -128 to 127, one per byte
    uint4    zero, scale   (code - zero) * scale   0 to 15, two per byte: the even one lower

Over the elements of one token and head, with all arithmetic in float32:

    fp8      scale = max |x| / 448, or 1 where that is 0;  code = e4m3(x / scale), ±448 beyond it
    int8,    least = min(x, 0), most = max(x, 0)
    uint4    scale = max((most - least) / (last - first), 1e-5)
             zero = whole(first - least / scale);  code = whole(x / scale + zero)

whole() rounds to the nearest code, to even in the middle, and stops at the first and the last one.
A zero point is therefore a code itself, and 0 is exact. Keys are quantised after norm and rotary
embedding, without rounding in between. `quantize_cache`, `quantize_fp8` and `pack_nibbles` of
spaninfer_op_reference are the same in numpy.
"""

from __future__ import annotations

from typing import Final

from span_attention.layout import Format

CODES: Final = {Format.FP8: "Fp8", Format.INT8: "Int8", Format.UINT4: "Uint4"}
"""The types of csrc/codes.cuh, by format; floats have none."""
