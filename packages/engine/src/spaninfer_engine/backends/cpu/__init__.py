"""Kernels of spaninfer_kernels_cpu on a thread pool."""
