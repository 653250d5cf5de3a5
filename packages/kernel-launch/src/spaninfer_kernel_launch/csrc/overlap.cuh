// Programmatic dependent launch: a kernel that starts while the one before it still runs (launched
// with Launch.overlaps). Before Hopper both are nothing, and kernels run one after another.
//
// Three rules. Before it waits, a kernel touches only what no kernel of the stream writes, such as
// weights, or what was written and fenced by one that let the next start after that. Every block
// waits, one without work too: a kernel that ends without having waited lets the next one start
// while the previous one still runs. And what the previous kernel wrote is not read through `const
// T* __restrict__`: that may become a load from the read-only path (ld.global.nc), which sees what
// was in memory when this kernel started.

// Lets the next kernel of the stream start as soon as every block of this one has called this, or
// has ended. The first thread of a block to call it counts.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the previous kernel has finished and all that it wrote is visible.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
