// Sums over the threads of a warp and of a block. Every thread gets the result.

constexpr int kWarp = 32;

template <typename Number>
__device__ __forceinline__ Number warp_sum(Number x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

// The sum over a block of kThreads threads, a multiple of 32 and at most 1024. All of them must
// call it. The first barrier lets a block call it again while slow warps still read the last sum.
template <int kThreads>
__device__ __forceinline__ float block_sum(float x) {
  static_assert(kThreads % kWarp == 0 && kThreads <= kWarp * kWarp, "whole warps, at most 32");
  constexpr int kWarps = kThreads / kWarp;
  x = warp_sum(x);
  if constexpr (kWarps > 1) {
    __shared__ float of_warp[kWarps];
    const int lane = threadIdx.x % kWarp;
    __syncthreads();
    if (lane == 0) of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = warp_sum(lane < kWarps ? of_warp[lane] : 0.0f);
  }
  return x;
}
