"""CUDA kernels for LLM inference, compiled at run time from the sources in this package.

Conventions of all operators:

* `prepare` compiles the kernels of one size, or takes them from the cache, loads them, and returns
  a `PreparedX`. Its `launch` only passes pointers: arrays are not checked, and may be given as
  addresses. The public function does both, and caches what it prepared by shapes, strides, types
  and device.
* Results go to `out` if it is given. Otherwise they are new arrays, allocated in the order of the
  stream: tensors if the first argument is a torch tensor, else arrays for `cupy.from_dlpack`.
* `stream` is a handle or a stream of torch, cupy or any class with `__cuda_stream__`. Without one,
  the current stream of the first argument's framework is used.
* `workspace_bytes` is the size of the workspace that a launch needs, 0 for most operators.
"""

from spaninfer_kernels_cuda import (
    activation,
    delta_rule,
    embedding,
    gemm,
    grouped_gemm,
    inputs,
    moe,
    norm,
    quantize,
    quantized_gemm,
    rope,
    sample,
    scaled_gemm,
    token_logprobs,
    topk,
)
from spaninfer_kernels_cuda.sample import sample_from_logits

__all__ = [
    "activation",
    "delta_rule",
    "embedding",
    "gemm",
    "grouped_gemm",
    "inputs",
    "moe",
    "norm",
    "quantize",
    "quantized_gemm",
    "rope",
    "sample",
    "sample_from_logits",
    "scaled_gemm",
    "token_logprobs",
    "topk",
]
