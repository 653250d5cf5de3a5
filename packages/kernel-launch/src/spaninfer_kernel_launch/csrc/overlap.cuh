// Programmatic dependent launch: a kernel that starts while the one before it still runs (launched
// with Launch.overlaps). Before Hopper both are nothing, and kernels run one after another.

// Lets the next kernel of the stream start as soon as every block of this one has come here.
__device__ __forceinline__ void let_next_kernel_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

// Waits until the kernel before this one has finished and all that it wrote can be read.
__device__ __forceinline__ void wait_for_kernel_before() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
