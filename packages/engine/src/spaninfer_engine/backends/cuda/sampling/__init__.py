"""Sampling on the GPU."""
