// Blocks that run together and see each other's shared memory (Launch.cluster, along x). Before
// Hopper a cluster is one block.

__device__ __forceinline__ int blocks_of_cluster() {
#if __CUDA_ARCH__ >= 900
  unsigned count;
  asm("mov.u32 %0, %%cluster_nctaid.x;" : "=r"(count));
  return static_cast<int>(count);
#else
  return 1;
#endif
}

__device__ __forceinline__ int rank_in_cluster() {
#if __CUDA_ARCH__ >= 900
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return static_cast<int>(rank);
#else
  return 0;
#endif
}

// A barrier for all threads of the cluster; writes before it are visible to all of them after it. A
// block must not end while others may still look into it.
__device__ __forceinline__ void sync_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The same where all that other blocks will look at was written by the first warp, or before a
// barrier of the block: one warp's fence is enough then, and others do not wait for theirs.
__device__ __forceinline__ void sync_cluster_after_block() {
#if __CUDA_ARCH__ >= 900
  if (threadIdx.x < 32) {
    asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  } else {
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
  }
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#else
  __syncthreads();
#endif
}

// The two halves of such a barrier, before Hopper nothing: threads that arrive need not wait at
// once.
__device__ __forceinline__ void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive;" ::: "memory");
#endif
}
// The first half where the barrier orders no writes, as when blocks begin or end.
__device__ __forceinline__ void arrive_without_fence() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}
__device__ __forceinline__ void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait;" ::: "memory");
#endif
}

// The shared-memory address in block `rank` of the cluster that corresponds to `mine` here.
template <typename Thing>
__device__ __forceinline__ Thing* in_block(Thing* mine, int rank) {
#if __CUDA_ARCH__ >= 900
  Thing* theirs;
  asm("mapa.u64 %0, %1, %2;" : "=l"(theirs) : "l"(mine), "r"(rank));
  return theirs;
#else
  return mine;
#endif
}
