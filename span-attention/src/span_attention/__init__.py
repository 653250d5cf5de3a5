"""Attention over a KV cache in spans (pages, blocks): its layout, and CUDA kernels on it.

Conventions of all operators:

* `prepare` compiles the kernels of one size, or takes them from the cache, loads them, and returns
  a `PreparedX`, whose launches only pass pointers: arrays are not checked, and may be given as
  addresses. The public functions check arrays once per shapes, strides, types and device.
* Results go to `out` if it is given. Otherwise they are new arrays, allocated in the order of the
  stream: tensors if the query is a torch tensor, else arrays for `cupy.from_dlpack`.
* `stream` is a handle or a stream of torch, cupy or any class with `__cuda_stream__`. Without one,
  the current stream of the first array's framework is used.
"""

from span_attention import append, decode, expand, merge, mla, prefill, ragged, sparse
from span_attention.decode import BatchDecode
from span_attention.layout import ArrayStrides, Format, SpanLayout
from span_attention.mla import BatchMLA
from span_attention.prefill import BatchPrefill
from span_attention.ragged import BatchRagged
from span_attention.spans import Spans
from span_attention.sparse import BatchSelected, Readers, attend_selected, select_keys

__all__ = [
    "ArrayStrides",
    "BatchDecode",
    "BatchMLA",
    "BatchPrefill",
    "BatchRagged",
    "BatchSelected",
    "Format",
    "Readers",
    "SpanLayout",
    "Spans",
    "append",
    "attend_selected",
    "decode",
    "expand",
    "merge",
    "mla",
    "prefill",
    "ragged",
    "select_keys",
    "sparse",
]
