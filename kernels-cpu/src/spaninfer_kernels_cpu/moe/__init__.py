"""Mixtures of experts: routing and grouped GEMM."""
