// A bound that a given number of keys reach: a radix select by one block, whose digit begins at the
// highest bit in which the keys in question differ.

// Keys in a block's registers: number i is held by thread i % kThreads.
struct Held {
  const Key (&keys)[kHeld];
  int size;

  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (j * kThreads >= size) break;
      visit(keys[j]);
    }
  }
};

// Gives every lane the AND and the OR of all keys of a warp.
__device__ __forceinline__ void common_bits_of_warp(Key* all, Key* any) {
#if __CUDA_ARCH__ >= 800
  const unsigned all_low = __reduce_and_sync(0xffffffffu, static_cast<unsigned>(*all));
  const unsigned all_high = __reduce_and_sync(0xffffffffu, static_cast<unsigned>(*all >> 32));
  const unsigned any_low = __reduce_or_sync(0xffffffffu, static_cast<unsigned>(*any));
  const unsigned any_high = __reduce_or_sync(0xffffffffu, static_cast<unsigned>(*any >> 32));
  *all = static_cast<Key>(all_high) << 32 | all_low;
  *any = static_cast<Key>(any_high) << 32 | any_low;
#else
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    *all &= __shfl_xor_sync(0xffffffffu, *all, step);
    *any |= __shfl_xor_sync(0xffffffffu, *any, step);
  }
#endif
}

// The AND and the OR of all keys in [low, high].
template <typename Keys>
__device__ __forceinline__ void common_bits(const Keys& keys, Key low, Key high, Key* all, Key* any,
                                            Shared& shared) {
  Key in_all = ~0ull, in_any = 0;
  keys.each([&](Key key) {
    if (key < low || key > high) return;
    in_all &= key;
    in_any |= key;
  });
  common_bits_of_warp(&in_all, &in_any);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (lane == 0) {
    shared.all_of_warp[warp] = in_all;
    shared.any_of_warp[warp] = in_any;
  }
  __syncthreads();
  in_all = shared.all_of_warp[lane % kWarps];
  in_any = shared.any_of_warp[lane % kWarps];
  common_bits_of_warp(&in_all, &in_any);
  *all = in_all;
  *any = in_any;
}

// The exclusive prefix sum over the threads.
__device__ __forceinline__ int sum_before(int own, Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarp - 1) shared.sum_of_warp[warp] = sum;
  __syncthreads();
  return sum - own + warp_sum(lane < warp ? shared.sum_of_warp[lane] : 0);
}

// Finds the bin that holds the `wanted`-th key, largest bins first: shared.bin, how many keys are
// in it and how many in larger ones. A thread reads adjacent bins, the first thread the largest.
__device__ __forceinline__ void find_bin(int wanted, Shared& shared) {
  constexpr int kOwn = kBins / kThreads;
  const int largest = kBins - 1 - kOwn * static_cast<int>(threadIdx.x);
  int in_bin[kOwn], own = 0;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) own += in_bin[b] = shared.bins[largest - b];
  int larger = sum_before(own, shared);
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    if (larger < wanted && wanted <= larger + in_bin[b]) {
      shared.bin = largest - b;
      shared.larger = larger;
      shared.in_bin = in_bin[b];
    }
    larger += in_bin[b];
  }
  __syncthreads();
}

// Gives every thread of the block the least and the largest of its threads' keys.
__device__ __forceinline__ void extremes(Key* least, Key* most, Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    *least = min(*least, __shfl_xor_sync(0xffffffffu, *least, step));
    *most = max(*most, __shfl_xor_sync(0xffffffffu, *most, step));
  }
  if (lane == 0) {
    shared.all_of_warp[warp] = *least;
    shared.any_of_warp[warp] = *most;
  }
  __syncthreads();
  *least = shared.all_of_warp[lane % kWarps];
  *most = shared.any_of_warp[lane % kWarps];
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    *least = min(*least, __shfl_xor_sync(0xffffffffu, *least, step));
    *most = max(*most, __shfl_xor_sync(0xffffffffu, *most, step));
  }
}

// A bound that at least `least` of the keys reach, and at most `most` different ones.
template <typename Keys>
__device__ __forceinline__ Key bound_of(const Keys& keys, int least, int most, Shared& shared) {
  Key low = 1, high = ~0ull;  // the candidates; `larger` keys are above them
  int larger = 0;
  while (true) {
    Key all, any;
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
    common_bits(keys, low, high, &all, &any, shared);
    const Key differing = all ^ any;
    if (differing == 0) return all;
    const int shift = max(64 - kDigitBits - __clzll(static_cast<long long>(differing)), 0);
    keys.each([&](Key key) {
      if (key < low || key > high) return;
      // An atomic add whose result is unused is one operation for all lanes with the same bin.
      atomicAdd(&shared.bins[static_cast<int>(key >> shift) & (kBins - 1)], 1);
    });
    __syncthreads();
    find_bin(least - larger, shared);
    low = ((all >> shift & ~static_cast<Key>(kBins - 1)) | shared.bin) << shift;
    high = low | ((1ull << shift) - 1);
    larger += shared.larger;
    if (larger + shared.in_bin <= most) return low;
  }
}
