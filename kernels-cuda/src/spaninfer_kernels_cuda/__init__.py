"""CUDA kernels for LLM inference, compiled at run time from the sources in this package."""

from spaninfer_kernels_cuda import activation, gemm, inputs, norm, quantize, rope, sample, topk
from spaninfer_kernels_cuda.sample import sample_from_logits

__all__ = [
    "activation",
    "gemm",
    "inputs",
    "norm",
    "quantize",
    "rope",
    "sample",
    "sample_from_logits",
    "topk",
]
