// Prefetch from device memory into L2, asynchronously.

// A multiple of 16 bytes from an address aligned to 16. Before Hopper nothing.
__device__ __forceinline__ void prefetch_to_l2(const void* from, unsigned bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}
