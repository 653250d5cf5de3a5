"""Sampling on the GPU: penalties, masks, truncation, seeded Gumbel-max, log-probabilities.

Rows logits[R V] of float32, float16 or bfloat16; a row's elements contiguous, rows strided. The
parameters of a row lie in device memory, one record of `PARAMETERS` per slot; slots[R] int32 names
the slot of a row (-1 for padding: nothing is read or written) and positions[R] int32 the position
of the token that is sampled. One captured launch thus serves any mix of requests: greedy, sampled,
truncated (typical_p included), penalised and masked rows.

The definition is op-reference's `sample`: the same order of operations, the same random numbers of
(seed, position, token), smaller ids first among equals. Tokens are the same except where rounding
decides between two: probabilities here are exact to 2^-40 of the largest, temperatures are not
rounded into the logits.

A row without a token to sample gets token 0 and a `Status`; other rows are unaffected.
"""

from __future__ import annotations

from spaninfer_kernels_cuda.sample.arguments import Busy, Logprobs, SampleBatch, Status, TokenLists
from spaninfer_kernels_cuda.sample.call import sample, sample_from_logits
from spaninfer_kernels_cuda.sample.parameters import PARAMETERS, defaults
from spaninfer_kernels_cuda.sample.prepared import PreparedSample, prepare
from spaninfer_kernels_cuda.sample.variant import VARIANTS, variant_for

__all__ = [
    "PARAMETERS",
    "VARIANTS",
    "Busy",
    "Logprobs",
    "PreparedSample",
    "SampleBatch",
    "Status",
    "TokenLists",
    "defaults",
    "prepare",
    "sample",
    "sample_from_logits",
    "variant_for",
]
