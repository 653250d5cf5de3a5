"""Kernels of span_attention and spaninfer_kernels_cuda on one GPU."""
