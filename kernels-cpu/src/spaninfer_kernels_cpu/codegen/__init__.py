"""Code generation: Numba functions, LLVM intrinsics and instruction-set levels."""
