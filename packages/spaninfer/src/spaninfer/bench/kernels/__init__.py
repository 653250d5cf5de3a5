"""Kernels at the sizes that our targets are about, with the ceilings of the same run."""
