"""Launches of kernels on torch tensors of one GPU."""
