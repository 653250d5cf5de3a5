// The inclusive prefix sum over the kThreads threads of a block; `all` becomes the sum over all.
//
// Needs reduce.cuh.

template <int kThreads>
__device__ __forceinline__ int running_sum(int x, int& all) {
  __shared__ int of_warp[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += before;
  }
  __syncthreads();
  if (lane == kWarp - 1) of_warp[warp] = x;
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w == warp) before = total;
    total += of_warp[w];
  }
  all = total;
  return before + x;
}
