// Sums and extremes over lanes, warps and blocks. Every thread gets the result.

constexpr int kWarp = 32;

template <typename Number>
__device__ __forceinline__ Number warp_sum(Number x) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    x += __shfl_xor_sync(0xffffffffu, x, step);
  }
  return x;
}

// The reduction by `join` of the numbers of kLanes adjacent lanes, a power of two: all of them must
// call it, the other lanes of the warp need not.
template <int kLanes, typename Join>
__device__ __forceinline__ float over_lanes(float x, Join join) {
  static_assert(kLanes <= kWarp && (kLanes & (kLanes - 1)) == 0, "a power of two, at most 32");
  const unsigned first = threadIdx.x % kWarp / kLanes * kLanes;
  const unsigned together = (0xffffffffu >> (kWarp - kLanes)) << first;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2) {
    x = join(x, __shfl_xor_sync(together, x, step));
  }
  return x;
}

template <int kLanes>
__device__ __forceinline__ float lanes_sum(float x) {
  return over_lanes<kLanes>(x, [](float a, float b) { return a + b; });
}

template <int kLanes>
__device__ __forceinline__ float lanes_max(float x) {
  return over_lanes<kLanes>(x, [](float a, float b) { return fmaxf(a, b); });
}

template <int kLanes>
__device__ __forceinline__ float lanes_min(float x) {
  return over_lanes<kLanes>(x, [](float a, float b) { return fminf(a, b); });
}

// The reduction by `join` over a block of kThreads threads, a multiple of 32 and at most 1024;
// `none` is its identity. All threads must call it. The first barrier lets a block call it again
// while slow warps still read the last result.
template <int kThreads, typename Join>
__device__ __forceinline__ float over_block(float x, float none, Join join) {
  static_assert(kThreads % kWarp == 0 && kThreads <= kWarp * kWarp, "whole warps, at most 32");
  constexpr int kWarps = kThreads / kWarp;
  x = over_lanes<kWarp>(x, join);
  if constexpr (kWarps > 1) {
    __shared__ float of_warp[kWarps];
    const int lane = threadIdx.x % kWarp;
    __syncthreads();
    if (lane == 0) of_warp[threadIdx.x / kWarp] = x;
    __syncthreads();
    x = over_lanes<kWarp>(lane < kWarps ? of_warp[lane] : none, join);
  }
  return x;
}

template <int kThreads>
__device__ __forceinline__ float block_sum(float x) {
  return over_block<kThreads>(x, 0.0f, [](float a, float b) { return a + b; });
}

// The maximum of numbers that are at least 0.
template <int kThreads>
__device__ __forceinline__ float block_max(float x) {
  return over_block<kThreads>(x, 0.0f, [](float a, float b) { return fmaxf(a, b); });
}

struct SumAndMost {
  float sum, most;
};

// The sum of `sum` and the maximum of `most`, numbers that are at least 0, by the barriers of one
// reduction. kThreads is a power of two. A kernel may call it once.
template <int kThreads>
__device__ __forceinline__ SumAndMost block_sum_and_max(float sum, float most) {
  constexpr int kWarps = kThreads / kWarp;
  sum = lanes_sum<kWarp>(sum);
  most = lanes_max<kWarp>(most);
  if constexpr (kWarps > 1) {
    __shared__ SumAndMost of_warp[kWarps];
    if (threadIdx.x % kWarp == 0) of_warp[threadIdx.x / kWarp] = {sum, most};
    __syncthreads();
    const SumAndMost other = of_warp[threadIdx.x % kWarps];
    sum = lanes_sum<kWarps>(other.sum);
    most = lanes_max<kWarps>(other.most);
  }
  return {sum, most};
}
