"""CUDA kernels for LLM inference, compiled at run time from the sources in this package."""

from spaninfer_kernels_cuda import norm, topk

__all__ = ["norm", "topk"]
