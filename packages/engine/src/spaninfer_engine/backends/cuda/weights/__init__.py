"""Weights on the GPU, packed for the kernels that multiply by them."""
