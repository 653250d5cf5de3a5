"""Matrix products with packed weights (GEMM; GEMV at one token)."""
