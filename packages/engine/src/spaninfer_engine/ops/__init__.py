"""Operators: their table, operations on their way to kernels, and the step that they read."""
