// Argmax over the threads of a block, or of a cluster.

__device__ __forceinline__ bool is_better(const Best& a, const Best& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other = {__shfl_xor_sync(0xffffffffu, best.score, step),
                        __shfl_xor_sync(0xffffffffu, best.id, step)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

// The best of the block, in every thread.
__device__ __forceinline__ Best best_of_block(Best best, Shared& shared) {
  const int lane = threadIdx.x % kWarp;
  best = best_of_warp(best);
  __syncthreads();
  if (lane == 0) shared.best_of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  return best_of_warp(shared.best_of_warp[lane % kWarps]);
}

// The best of the cluster, in every thread of its first block.
__device__ __forceinline__ Best best_of_cluster(Best best, Shared& shared) {
  best = best_of_block(best, shared);
  if (threadIdx.x == 0) shared.best = best;
  sync_cluster();
  if (rank_in_cluster() == 0) {
#pragma unroll 1
    for (int rank = 1; rank < blocks_of_cluster(); ++rank) {
      const Best other = *in_block(&shared.best, rank);
      if (is_better(other, best)) best = other;
    }
  }
  return best;
}

// The argmax of the row, its value as the score.
__device__ __forceinline__ Best argmax(const Row& row, Shared& shared) {
  float best = -kInfinity;
  int id = row.length;
  const auto visit = [&](const Neighbours& here) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (here.x[v] > best) {
        best = here.x[v];
        id = here.first + v;
      }
    }
  };
  const int worst = row.each(visit, shared);
  if (worst) atomicMax(&shared.status, worst);
  return best_of_cluster({best, id}, shared);
}
