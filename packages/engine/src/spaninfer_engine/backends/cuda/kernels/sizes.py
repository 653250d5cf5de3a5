"""Sizes of steps that stand for all others when kernels are prepared at the start."""

from spaninfer_kernels_cuda import gemm

ROWS = (8, 16, 32, 48, *range(64, gemm.MAX_ROWS + 1, 32))
"""Numbers of rows that have all kernels of small-M GEMMs, and of decodes, between them."""

EXPERT_TOKENS = (1, 6, *ROWS, 1024, 1536, 2048, 4096, 8192)
"""Numbers of tokens that have all kernels of experts between them."""
