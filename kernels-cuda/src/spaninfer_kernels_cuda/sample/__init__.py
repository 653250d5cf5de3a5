"""From logits to tokens, on the GPU: penalties, masks, cuts, seeded draws, log-probabilities.

Rows logits[R V] of float32, float16 or bfloat16; a row's elements contiguous, rows strided. What
each row wants lies in device memory, one record of `PARAMETERS` per slot; slots[R] int32 names the
slot of a row (-1: a row of padding, for which nothing is read or written) and positions[R] int32
the position of the token that is drawn. So a captured launch serves whatever a batch then asks for:
greedy rows beside drawn ones, cut, penalised and masked ones.

The definition is op-reference's `sample`: the same order of operations, the same random numbers of
(seed, position, token), smaller ids first among equals. Tokens are the same except where rounding
decides between two: probabilities here are exact to 2^-40 of the likeliest, temperatures are not
rounded into the logits. Locally typical sampling is not here.

A row from which nothing can be drawn gets the token 0 and a `Status`; the others are not concerned.
"""

from __future__ import annotations

from spaninfer_kernels_cuda.sample.arguments import Pools, Report, Status
from spaninfer_kernels_cuda.sample.call import sample, sample_from_logits
from spaninfer_kernels_cuda.sample.parameters import PARAMETERS, defaults
from spaninfer_kernels_cuda.sample.prepared import Prepared, prepare
from spaninfer_kernels_cuda.sample.variant import VARIANTS, variant_for

__all__ = [
    "PARAMETERS",
    "VARIANTS",
    "Pools",
    "Prepared",
    "Report",
    "Status",
    "defaults",
    "prepare",
    "sample",
    "sample_from_logits",
    "variant_for",
]
