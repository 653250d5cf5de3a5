// The k largest of the keys that a block holds, in their order.

// Sorts the first `size` keys of the shared list, a power of two, largest first (bitonic). Steps
// between neighbours stay inside the 64 keys of a warp and need no barrier of the block.
__device__ __forceinline__ void sort(int size, Shared& shared) {
  for (int length = 2; length <= size; length *= 2) {
    for (int step = length / 2; step > 0; step /= 2) {
      for (int pair = threadIdx.x; pair < size / 2; pair += kThreads) {
        const int i = 2 * pair - (pair & (step - 1));
        const Key left = shared.list[i], right = shared.list[i + step];
        const bool falls = (i & length) == 0;
        if ((left < right) == falls) {
          shared.list[i] = right;
          shared.list[i + step] = left;
        }
      }
      const int next = step > 1 ? step / 2 : length;
      if (max(step, next) > 32) __syncthreads(); else __syncwarp();
    }
  }
  __syncthreads();
}

// A key without the bits that no element sets: the low ones of a widened value, the high ones of an
// index. Equal values then lie as far apart as different ones.
struct Squeeze {
  int index_bits;

  __device__ __forceinline__ explicit Squeeze(int length)
      : index_bits(32 - __clz(length - 1)) {}
  __device__ __forceinline__ Key operator()(Key key) const {
    constexpr int kUnused = sizeof(T) == 4 ? 32 : 45;  // of half, 13 bits; of bfloat16, more
    return key >> kUnused << index_bits | (key & ((1ull << index_bits) - 1));
  }
};

// The number of a bin for a distance from the least key: of those that double in width after every
// 32.
__device__ __forceinline__ int octave_bin(Key distance) {
  constexpr int kBits = 5;  // 60 octaves of 32 bins are fewer than kBins
  const int octave = 63 - __clzll(static_cast<long long>(distance | 1)) - kBits;
  if (octave <= 0) return static_cast<int>(distance);
  return (octave << kBits) + static_cast<int>(distance >> octave);
}

// Writes the k largest of the `size` keys that the block holds, largest first; false, and nothing,
// if the keys are too unevenly spread for it. Keys are dealt out to bins that divide their range
// Keys are distributed to bins that divide their range evenly, or by octaves if few are far from
// the others; a key's place is the number of keys in larger bins and of larger ones in its own.
template <bool kByOctaves>
__device__ __forceinline__ bool deal_out(const Key (&held)[kHeld], int size, int k, int length,
                                         const T* row, T* values, int* indices, Shared& shared) {
  const Squeeze squeeze(length);
  Key least = ~0ull, most = 0;
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kThreads + threadIdx.x >= size) break;
    least = min(least, squeeze(held[j]));
    most = max(most, squeeze(held[j]));
  }
  extremes(&least, &most, shared);
  const int shift = max(64 - kDigitBits - __clzll(static_cast<long long>(most - least)), 0);
  const auto bin_of = [&](Key key) {
    const Key distance = squeeze(key) - least;
    return kByOctaves ? octave_bin(distance) : static_cast<int>(distance >> shift);
  };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    // An atomic add whose result is unused is one operation for all lanes with the same bin.
    if (j * kThreads + threadIdx.x < size) atomicAdd(&shared.bins[bin_of(held[j])], 1);
  }
  __syncthreads();

  // A bin's count becomes that of the keys in larger bins: the offset of its own keys.
  constexpr int kOwn = kBins / kThreads;
  const int largest = kBins - 1 - kOwn * static_cast<int>(threadIdx.x);
  int in_bin[kOwn], own = 0;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) own += in_bin[b] = shared.bins[largest - b];
  int larger = sum_before(own, shared), fullest = 0;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    shared.bins[largest - b] = larger;
    if (larger < k) fullest = max(fullest, in_bin[b]);
    if (larger < k && k <= larger + in_bin[b]) {
      shared.bin = largest - b;
      shared.count = larger + in_bin[b];
    }
    larger += in_bin[b];
  }
  if (__syncthreads_or(fullest > kFullest)) return false;

  // Then it becomes the end of its keys.
  const int last = shared.bin, count = shared.count;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kThreads + threadIdx.x >= size) break;
    const int bin = bin_of(held[j]);
    if (bin >= last) shared.list[atomicAdd(&shared.bins[bin], 1)] = held[j];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const Key key = shared.list[i];
    const int bin = bin_of(key), end = shared.bins[bin];
    int at = bin + 1 < kBins ? shared.bins[bin + 1] : 0;
    for (int j = at; j < end; ++j) at += shared.list[j] > key;
    if (at >= k) continue;
    const unsigned index = ~static_cast<unsigned>(key);
    values[at] = row[index];  // not from the key, which knows neither -0 nor NaN
    indices[at] = static_cast<int>(index);
  }
  return true;
}

// Writes the k largest of the `size` keys that the block holds.
__device__ __forceinline__ void choose(const Key (&held)[kHeld], int size, int k, int length,
                                       const T* row, T* values, int* indices, Shared& shared) {
  if (deal_out<false>(held, size, k, length, row, values, indices, shared)) return;
  if (deal_out<true>(held, size, k, length, row, values, indices, shared)) return;
  // More than k are sorted where that saves a round of selection.
  const int most = SORTED ? min(max(1 << (32 - __clz(k - 1)), 256), kMostChosen) : k;
  const Key bound = size <= most ? 1 : bound_of(Held{held, size}, k, most, shared);
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kThreads >= size) break;
    if (held[j] >= bound) shared.list[take(&shared.count)] = held[j];
  }
  __syncthreads();
  if constexpr (SORTED) {
    const int count = shared.count;
    const int size_of_sort = max(1 << (32 - __clz(count - 1)), 2);
    for (int i = count + threadIdx.x; i < size_of_sort; i += kThreads) shared.list[i] = kAbsent;
    __syncthreads();
    sort(size_of_sort, shared);
  }
  for (int i = threadIdx.x; i < k; i += kThreads) {
    const unsigned index = ~static_cast<unsigned>(shared.list[i]);
    values[i] = row[index];  // not from the key, which knows neither -0 nor NaN
    indices[i] = static_cast<int>(index);
  }
}
