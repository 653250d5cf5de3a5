"""CUDA graphs of steps: their shapes, the memory that they read, their capture."""
