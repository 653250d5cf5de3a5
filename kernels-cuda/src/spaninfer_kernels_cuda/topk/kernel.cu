// The k largest elements of rows, exactly; of equal ones those with the smaller index.
//
// Every element has a key of 64 bits, its value above, its complemented index below, so that no two
// keys of a row are equal and "larger key" is the order asked for. Which bound is found does not
// depend on how values are distributed: a row of one value is as good as any other.
//
//   topk_bound     one block per row, or several where rows are long: of `samples` elements at
//                  random places, a key that between `least` and 9/8 of `least` of them reach; of
//                  several blocks, each offers all the keys that do
//   topk_filter    many blocks per row, each element read once: the keys that reach the bound are
//                  collected; the block that comes last selects among them
//   topk_short     rows that one block can hold are selected directly
//
// Host code chooses `samples` and `least` so that a bound fails (fewer than k keys reach it, or
// more than `capacity`) once in 10^12 rows; the last block then draws anew, by itself, until it
// holds. Selecting is a radix select over keys in registers, whose digit begins at the highest bit
// in which the keys in question differ (after RadiK, arXiv 2501.14336, which rescales instead).
//
// NaN counts as smaller than everything else, -0 as equal to +0: as in numpy's argsort(-x).
//
// Macros: T (element), SORTED (0 or 1: in any order).
// Demands: 1 <= k <= 4096, k <= length < 2^31; topk_short: length <= 8192; the elements of a row
// contiguous, their address a multiple of their size.

using Key = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kHeld = 8;                       // keys that a thread holds: 16 registers of its 64
constexpr int kHeldByBlock = kThreads * kHeld;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr unsigned kMostSamplers = 16;         // blocks that sample a row: tuning.py
constexpr int kAtOnce = 8;                     // keys that a block loads together when it is alone
constexpr int kMostChosen = 4096;              // of one row
constexpr int kFullest = 64;                   // keys of a bin that are compared with each other
constexpr int kRoom = kMostChosen + kFullest;  // what the shared list holds
constexpr int kVector = 16 / sizeof(T), kLoads = 2;
constexpr Key kAbsent = 0;                     // no element has it: indices are below 2^31

struct Row {      // in the workspace, one per row; topk_bound clears it
  int count;      // keys collected so far
  int finished;   // blocks that have no more to add
};

struct Shared {
  Key list[kRoom];
  int bins[kBins];
  Key all_of_warp[kWarps], any_of_warp[kWarps];
  Key bound;
  int sum_of_warp[kWarps];
  int bin, larger, in_bin;
  int fullest;
  int count;
  int base;
};

__device__ __forceinline__ Key key_of(T value, unsigned index) {
  const float x = to_float(value) + 0.0f;  // -0 becomes +0
  const unsigned bits = __float_as_uint(x);
  const unsigned sign = static_cast<unsigned>(static_cast<int>(bits) >> 31);  // in every bit
  const unsigned ordered = bits ^ (sign | 0x80000000u);
  return static_cast<Key>(x == x ? ordered : 0u) << 32 | ~index;
}

// The value part of `bound` as a float: elements above it reach the bound, those below it do not.
__device__ __forceinline__ float floor_of(Key bound) {
  const unsigned ordered = static_cast<unsigned>(bound >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

// The next number of a counter for each lane that is here: one atomic for all of them.
__device__ __forceinline__ int take(int* counter) {
  const unsigned lanes = __activemask();
  const int leader = __ffs(lanes) - 1, lane = threadIdx.x % kWarp;
  int first = 0;
  if (lane == leader) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(lanes, first, leader) + __popc(lanes & ((1u << lane) - 1));
}

// Leaves in every lane the bits that all keys of a warp have, and those that any has.
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

// The bits that all keys of the block have, and those that any has, of the keys in [low, high].
__device__ __forceinline__ void common_bits(const Key (&held)[kHeld], int size, Key low, Key high,
                                            Key* all, Key* any, Shared& shared) {
  Key in_all = ~0ull, in_any = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kThreads >= size) break;
    if (held[j] < low || held[j] > high) continue;
    in_all &= held[j];
    in_any |= held[j];
  }
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

// The sum over the threads before this one.
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
// in it and how many in larger ones. A thread looks at neighbouring bins, the first at the largest.
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

// Leaves in every thread of the block the least and the largest of its threads' keys.
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

// A bound that at least `least` of the `size` keys held by the block reach, and at most `most`
// different ones. Key i is held by thread i % kThreads.
__device__ __forceinline__ Key bound_of(const Key (&held)[kHeld], int size, int least, int most,
                                        Shared& shared) {
  Key low = 1, high = ~0ull;  // what is still in question; `larger` keys are above it
  int larger = 0;
  while (true) {
    Key all, any;
    for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
    common_bits(held, size, low, high, &all, &any, shared);
    const Key differing = all ^ any;
    if (differing == 0) return all;
    const int shift = max(64 - kDigitBits - __clzll(static_cast<long long>(differing)), 0);
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      if (j * kThreads >= size) break;
      if (held[j] < low || held[j] > high) continue;
      // Adding one, the result unused, is one operation for all lanes that name the same bin.
      atomicAdd(&shared.bins[static_cast<int>(held[j] >> shift) & (kBins - 1)], 1);
    }
    __syncthreads();
    find_bin(least - larger, shared);
    low = ((all >> shift & ~static_cast<Key>(kBins - 1)) | shared.bin) << shift;
    high = low | ((1ull << shift) - 1);
    larger += shared.larger;
    if (larger + shared.in_bin <= most) return low;
  }
}

// A place below `size`, the same in every run.
__device__ __forceinline__ unsigned place(unsigned number, unsigned size) {
  unsigned x = number * 0x9e3779b9u + 0x7f4a7c15u;  // Weyl sequence, then the lowbias32 mixer
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return __umulhi(x ^ x >> 16, size);
}

// Keys to select among: those of a row's elements, or those that other threads have listed.
struct Keys {
  const T* row;
  const Key* list;  // null: the elements
  unsigned size;

  // Loads key place_of(0), place_of(1), … where there is one. What is loaded is decided once, so
  // that all loads are under way together.
  template <int N, typename Place>
  __device__ __forceinline__ void load(Key (&loaded)[N], Place place_of) const {
    if (list == nullptr) {
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const unsigned i = place_of(u);
        loaded[u] = i < size ? key_of(row[i], i) : kAbsent;
      }
    } else {
#pragma unroll
      for (int u = 0; u < N; ++u) {
        const unsigned i = place_of(u);
        loaded[u] = i < size ? __ldcg(&list[i]) : kAbsent;
      }
    }
  }
};

// Loads `samples` keys at random places, other ones for each draw.
__device__ __forceinline__ void sample(const Keys& keys, int samples, unsigned draw,
                                       Key (&held)[kHeld]) {
  keys.load(held, [&](int j) {
    const int i = j * kThreads + threadIdx.x;
    return i < samples ? place(draw * kHeldByBlock + i, keys.size) : keys.size;
  });
}

// Between NaN and minus infinity there is nothing, but the edge of a bin may lie there.
__device__ __forceinline__ Key above_nothing(Key bound) {
  constexpr Key kLeastNumber = 0x007fffffull << 32;
  return bound >> 32 != 0 && bound < kLeastNumber ? kLeastNumber : bound;
}

// Writes the keys that reach a bound of their own to `to`, at least k and at most `capacity`, and
// returns how many. The block does it by itself.
__device__ __forceinline__ int narrow(const Keys& keys, Key* to, int capacity, int k,
                                      Shared& shared) {
  const float expected = static_cast<float>(k) * kHeldByBlock / keys.size;  // of the k largest
  const int least = static_cast<int>(expected + 5.0f * sqrtf(expected) + 8.0f);
  for (unsigned draw = kMostSamplers;; ++draw) {
    Key held[kHeld];
    sample(keys, kHeldByBlock, draw, held);
    const Key bound = above_nothing(bound_of(held, kHeldByBlock, least, least + least / 8, shared));
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    for (unsigned first = threadIdx.x; first < keys.size; first += kAtOnce * kThreads) {
      Key loaded[kAtOnce];
      keys.load(loaded, [&](int u) { return first + u * kThreads; });
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if (loaded[u] < bound) continue;
        const int slot = take(&shared.count);
        if (slot < capacity) to[slot] = loaded[u];
      }
    }
    __syncthreads();
    const int count = shared.count;
    __syncthreads();
    if (k <= count && count <= capacity) return count;
  }
}

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

// A key without the bits that no element sets: the low ones of a widened value, the high ones of
// an index. Equal values then lie as far apart as different ones.
struct Squeeze {
  int index_bits;

  __device__ __forceinline__ explicit Squeeze(int length)
      : index_bits(32 - __clz(length - 1)) {}
  __device__ __forceinline__ Key operator()(Key key) const {
    constexpr int kUnused = sizeof(T) == 4 ? 32 : 45;  // of half, 13 bits; of bfloat16, more
    return key >> kUnused << index_bits | (key & ((1ull << index_bits) - 1));
  }
};

// Writes the k largest of the `size` keys that the block holds, largest first; false, and nothing,
// if the keys are too unevenly spread for it. Keys are dealt out to bins that divide their range
// evenly; a key's place is the number of keys in larger bins and of larger ones in its own.
__device__ __forceinline__ bool deal_out(const Key (&held)[kHeld], int size, int k, int length,
                                         const T* row, T* values, int* indices, Shared& shared) {
  const Squeeze squeeze(length);
  Key least = ~0ull, most = 0;
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
  if (threadIdx.x == 0) shared.fullest = 0;
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (j * kThreads + threadIdx.x >= size) break;
    least = min(least, squeeze(held[j]));
    most = max(most, squeeze(held[j]));
  }
  extremes(&least, &most, shared);
  const int shift = max(64 - kDigitBits - __clzll(static_cast<long long>(most - least)), 0);
  const auto bin_of = [&](Key key) { return static_cast<int>((squeeze(key) - least) >> shift); };
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    // Adding one, the result unused, is one operation for all lanes that name the same bin.
    if (j * kThreads + threadIdx.x < size) atomicAdd(&shared.bins[bin_of(held[j])], 1);
  }
  __syncthreads();

  // A bin's number becomes that of the keys in larger bins: where its own keys begin.
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
  if (fullest > kFullest) shared.fullest = fullest;
  __syncthreads();
  if (shared.fullest > 0) return false;

  // Then it becomes where they end.
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
  if (deal_out(held, size, k, length, row, values, indices, shared)) return;
  // More than k are sorted where that spares a round of selection.
  const int most = SORTED ? min(max(1 << (32 - __clz(k - 1)), 256), kMostChosen) : k;
  const Key bound = size <= most ? 1 : bound_of(held, size, k, most, shared);
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

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_short(T* values, int* indices, const T* x, int length, long long stride, int k) {
  __shared__ Shared shared;
  const T* row = x + blockIdx.x * stride;
  Key held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < length ? key_of(row[i], i) : kAbsent;
  }
  const long long out = static_cast<long long>(blockIdx.x) * k;
  choose(held, length, k, length, row, values + out, indices + out, shared);
}

// A row as head | packs of 16 bytes, aligned | tail.
struct Body {
  const Pack<T, kVector>* at;
  unsigned head, packs, tail;

  __device__ __forceinline__ Body(const T* row, unsigned length) {
    const unsigned misaligned = reinterpret_cast<size_t>(row) % 16 / sizeof(T);
    head = min(misaligned ? kVector - misaligned : 0u, length);
    packs = (length - head) / kVector;
    tail = head + packs * kVector;
    at = reinterpret_cast<const Pack<T, kVector>*>(row + head);
  }
};

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_bound(Row* rows, Key* offers, const T* x, int length, long long stride, int samples,
               int least, int offered) {
  __shared__ Shared shared;
  let_next_kernel_start();
  const Keys keys{x + blockIdx.y * stride, nullptr, static_cast<unsigned>(length)};
  offers += (static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * offered;
  Key held[kHeld];
  sample(keys, samples, blockIdx.x, held);
  const Key bound = bound_of(held, samples, least, least + least / 8, shared);
  if (threadIdx.x == 0) {
    shared.count = 0;
    if (blockIdx.x == 0) rows[blockIdx.y] = Row{0, 0};
    if (offered == 1) *offers = bound;
  }
  if (offered == 1) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (held[j] < bound) continue;
    const int slot = take(&shared.count);
    if (slot < offered) offers[slot] = held[j];
  }
  __syncthreads();
  for (int i = shared.count + threadIdx.x; i < offered; i += kThreads) offers[i] = kAbsent;
}

// What `least` of the keys offered reach; if only one is, it is that.
__device__ __forceinline__ Key bound_of_offers(const Key* offers, int count, int least,
                                               Shared& shared) {
  if (count == 1) return above_nothing(*offers);
  for (int i = threadIdx.x; i < count; i += kThreads) shared.list[i] = offers[i];
  __syncthreads();
  for (int i = threadIdx.x; i < count; i += kThreads) {
    int larger = 0, equal = 0;  // an element may have been drawn twice
    for (int j = 0; j < count; ++j) {
      larger += shared.list[j] > shared.list[i];
      equal += shared.list[j] == shared.list[i];
    }
    if (larger < least && least <= larger + equal) shared.bound = shared.list[i];
  }
  __syncthreads();
  return above_nothing(shared.bound);
}

// Collects element i of a row if its key reaches the bound: in the shared list, and where that is
// full in the row's.
__device__ __forceinline__ void collect(const T* row, unsigned i, Key bound, Row* state,
                                        Key* collected, int capacity, Shared& shared) {
  const Key key = key_of(row[i], i);
  if (key < bound) return;
  const int slot = take(&shared.count);
  if (slot < kMostChosen) {
    shared.list[slot] = key;
    return;
  }
  const int overflow = take(&state->count);
  if (overflow < capacity) collected[overflow] = key;
}

__device__ __forceinline__ void swap(Key*& a, Key*& b) {
  Key* const kept = a;
  a = b;
  b = kept;
}

// Whether this block is the last of its row to come here; it then sees what the others wrote.
__device__ __forceinline__ bool is_last(Row* state, Shared& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.base = atomicAdd(&state->finished, 1);
  __syncthreads();
  __threadfence();
  return shared.base == static_cast<int>(gridDim.x) - 1;
}

// Loads packs first, first + step, … of a row, where there are any.
__device__ __forceinline__ void load_packs(Pack<T, kVector> (&loaded)[kLoads], const Body& body,
                                           unsigned first, unsigned step) {
#pragma unroll
  for (int u = 0; u < kLoads; ++u) {
    if (first + u * step < body.packs) loaded[u] = body.at[first + u * step];
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_filter(T* values, int* indices, Row* rows, const Key* offers, Key* lists, const T* x,
                int length, long long stride, int k, int offers_of_row, int least, int capacity,
                int list_stride) {
  __shared__ Shared shared;
  const T* row = x + blockIdx.y * stride;
  Row* state = rows + blockIdx.y;
  Key* collected = lists + static_cast<long long>(blockIdx.y) * list_stride;
  const Body body(row, length);
  if (threadIdx.x == 0) shared.count = 0;

  // Loads of the next turn are under way while this one's elements are compared; those of the first
  // while the bound is found.
  const unsigned step = gridDim.x * kThreads;
  unsigned first = blockIdx.x * kThreads + threadIdx.x;
  Pack<T, kVector> next[kLoads];
  load_packs(next, body, first, step);
  __syncthreads();
  wait_for_kernel_before();
  offers += static_cast<long long>(blockIdx.y) * offers_of_row;
  const Key bound = bound_of_offers(offers, offers_of_row, least, shared);
  const float floor = floor_of(bound);  // NaN where only keys can be compared
  const bool unclear = floor != floor;
  const int last = static_cast<int>(~static_cast<unsigned>(bound));  // of those equal to floor

  while (first < body.packs) {
    Pack<T, kVector> here[kLoads];
#pragma unroll
    for (int u = 0; u < kLoads; ++u) here[u] = next[u];
    load_packs(next, body, first + kLoads * step, step);
    unsigned hits = 0;
#pragma unroll
    for (int u = 0; u < kLoads; ++u) {
      const unsigned pack = first + u * step;
      const int left = last - static_cast<int>(body.head + pack * kVector);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const float x = to_float(here[u].at[v]);
        if (x > floor || (x == floor && v <= left) || unclear) hits |= 1u << (u * kVector + v);
      }
      if (pack >= body.packs) hits &= (1u << u * kVector) - 1;
    }
    // What reaches the bound is rare: it is read again rather than picked out of registers.
    while (hits != 0) {
      const unsigned hit = __ffs(hits) - 1;
      hits &= hits - 1;
      const unsigned pack = first + hit / kVector * step;
      collect(row, body.head + pack * kVector + hit % kVector, bound, state, collected, capacity,
              shared);
    }
    first += kLoads * step;
  }
  if (blockIdx.x == 0 && threadIdx.x < body.head + (length - body.tail)) {
    const unsigned i = threadIdx.x < body.head ? threadIdx.x : body.tail + threadIdx.x - body.head;
    collect(row, i, bound, state, collected, capacity, shared);
  }
  __syncthreads();
  const int own = min(shared.count, kMostChosen);
  if (threadIdx.x == 0 && own > 0) shared.base = atomicAdd(&state->count, own);
  __syncthreads();
  for (int i = threadIdx.x; i < own; i += kThreads) {
    if (shared.base + i < capacity) collected[shared.base + i] = shared.list[i];
  }

  if (!is_last(state, shared)) return;
  int count = __ldcg(&state->count);
  bool failed = count < k || count > capacity;
  Key* other = collected + capacity;  // the host left room where there can be too many
  while (failed || count > kHeldByBlock) {
    const Keys keys{row, failed ? nullptr : collected,
                    static_cast<unsigned>(failed ? length : count)};
    count = narrow(keys, failed ? collected : other, capacity, k, shared);
    if (!failed) swap(collected, other);
    failed = false;
  }
  Key held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < count ? __ldcg(&collected[i]) : kAbsent;
  }
  const long long out = static_cast<long long>(blockIdx.y) * k;
  choose(held, count, k, length, row, values + out, indices + out, shared);
}
