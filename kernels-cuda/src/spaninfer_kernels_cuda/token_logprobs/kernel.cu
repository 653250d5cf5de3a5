// Log-probabilities of given tokens, and the most likely tokens beside them: a block per token.
//
//   chosen[n] = x[t] - log(sum over i of exp(x[i])),  x = logits[rows[n]], t = token_ids[n]
//   ranks[n]  = 1 + number of x[i] > x[t], and of x[i] == x[t] with i < t
//   top_ids[n k], top[n k]: the k + 1st most likely token, of equally likely ones the smaller id
//
// A row is read once. Every thread keeps the maximum of what it has read, and the sum relative to
// it. The `num_top`th largest maximum of groups of threads is a bound that at least so many
// elements reach: threads whose maximum reaches it, few of all, read their elements again and list
// them. If the list overflows (thousands of equal logits), the largest are found one by one.
//
// Macros: T (element), THREADS.
// Demands: num_top <= kGroups; elements of a row contiguous.

using Key = unsigned long long;

constexpr int kVector = 16 / sizeof(T);
constexpr int kAhead = 4;               // packs that a thread has in flight
constexpr int kLanes = 8;               // of a group
constexpr int kGroups = THREADS / kLanes;
constexpr int kList = 2048;
constexpr float kBitsPerNat = 1.44269504f;
constexpr float kLeast = -1.0e38f;      // below all logits that count; finite in bits as well

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Larger for larger values, and of equal ones for smaller ids; never 0.
__device__ __forceinline__ Key key_of(float x, int id) {
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0 becomes +0
  const unsigned sign = static_cast<unsigned>(static_cast<int>(bits) >> 31);
  const unsigned ordered = bits ^ (sign | 0x80000000u);
  return static_cast<Key>(ordered) << 32 | ~static_cast<unsigned>(id);
}

__device__ __forceinline__ float value_of(Key key) {
  const unsigned ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}

// The least float above a finite one.
__device__ __forceinline__ float next_above(float x) {
  const int bits = __float_as_int(x + 0.0f);
  return __int_as_float(bits >= 0 ? bits + 1 : bits - 1);
}

// A row as a block reads it: aligned packs, and single elements in front of them and behind.
struct Row {
  const T* at;
  int length, lead, packs;

  __device__ __forceinline__ Row(const T* at, int length) : at(at), length(length) {
    const unsigned skipped = static_cast<unsigned>(-reinterpret_cast<size_t>(at)) % 16 / sizeof(T);
    lead = min(static_cast<int>(skipped), length);
    packs = (length - lead) / kVector;
  }
  __device__ __forceinline__ int first_of(int pack) const { return lead + pack * kVector; }

  // The single element of this thread; -1: none.
  __device__ __forceinline__ int single() const {
    const int i = static_cast<int>(threadIdx.x), behind = first_of(packs);
    if (i < lead) return i;
    return i < lead + length - behind ? behind + i - lead : -1;
  }

  // Calls visit(value, id) for every element that this thread reads.
  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int pack = threadIdx.x; pack < packs; pack += THREADS) {
      const int first = first_of(pack);
      const Pack<T, kVector> here = pack_at<kVector>(at + first);
#pragma unroll
      for (int v = 0; v < kVector; ++v) visit(to_float(here.at[v]), first + v);
    }
    if (const int id = single(); id >= 0) visit(to_float(at[id]), id);
  }
};

// What a thread knows of the elements that it has read.
struct Tally {
  float most, shift, sum;  // shift: of `most`, in bits
  int ahead;

  __device__ __forceinline__ void raise(float to) {
    if (!(to > most)) return;
    sum *= exp2_fast((most - to) * kBitsPerNat);
    most = to;
    shift = to * kBitsPerNat;
  }
  __device__ __forceinline__ void add(float x) { sum += exp2_fast(fmaf(x, kBitsPerNat, -shift)); }
};

extern "C" __global__ void __launch_bounds__(THREADS, 2)
    token_logprobs(float* chosen, int* ranks, int* top_ids, float* top, const T* logits,
                   const int* rows, const int* token_ids, int num_top, int length,
                   long long stride) {
  __shared__ Key list[kList];
  __shared__ float most_of_group[kGroups];
  __shared__ float shared_bound;
  __shared__ int shared_count;
  __shared__ Key shared_best;
  wait_for_kernel_before();
  let_next_kernel_start();
  const Row row(logits + rows[blockIdx.x] * stride, length);
  const int token = token_ids[blockIdx.x];
  const float own = to_float(row.at[token]), above = next_above(own);

  Tally mine{kLeast, kLeast * kBitsPerNat, 0.0f, 0};
  const auto take = [&](const Pack<T, kVector>& here, int first) {
    float x[kVector];
#pragma unroll
    for (int v = 0; v < kVector; ++v) x[v] = to_float(here.at[v]);
    float most = x[0];
#pragma unroll
    for (int v = 1; v < kVector; ++v) most = fmaxf(most, x[v]);
    mine.raise(most);
    const float at_least = first <= token ? own : above;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      mine.add(x[v]);
      mine.ahead += x[v] >= at_least;
    }
    if (first <= token && token < first + kVector) {  // those from it on count only above it
#pragma unroll
      for (int v = 0; v < kVector; ++v) mine.ahead -= first + v >= token && x[v] == own;
    }
  };
  int pack = threadIdx.x;
#pragma unroll 1
  for (; pack + (kAhead - 1) * THREADS < row.packs; pack += kAhead * THREADS) {
    Pack<T, kVector> here[kAhead];
#pragma unroll
    for (int n = 0; n < kAhead; ++n) {
      here[n] = pack_at<kVector>(row.at + row.first_of(pack + n * THREADS));
    }
#pragma unroll
    for (int n = 0; n < kAhead; ++n) take(here[n], row.first_of(pack + n * THREADS));
  }
#pragma unroll 1
  for (; pack < row.packs; pack += THREADS) {
    take(pack_at<kVector>(row.at + row.first_of(pack)), row.first_of(pack));
  }
  if (const int id = row.single(); id >= 0) {
    const float x = to_float(row.at[id]);
    mine.raise(x);
    mine.add(x);
    mine.ahead += x > own || (x == own && id < token);
  }

  const auto larger = [](float a, float b) { return fmaxf(a, b); };
  const float most = over_block<THREADS>(mine.most, kLeast, larger);
  const float sum = block_sum<THREADS>(mine.sum * exp2_fast((mine.most - most) * kBitsPerNat));
  const float ahead = block_sum<THREADS>(static_cast<float>(mine.ahead));  // whole, below 2^24
  const float log_sum = logf(sum);
  if (threadIdx.x == 0) {
    chosen[blockIdx.x] = own - most - log_sum;
    ranks[blockIdx.x] = 1 + static_cast<int>(ahead);
    shared_count = 0;
  }
  if (num_top == 0) return;

  const float of_group = lanes_max<kLanes>(mine.most);
  if (threadIdx.x % kLanes == 0) most_of_group[threadIdx.x / kLanes] = of_group;
  __syncthreads();
  if (threadIdx.x < kGroups) {
    const float x = most_of_group[threadIdx.x];
    int before = 0;
#pragma unroll 8
    for (int i = 0; i < kGroups; ++i) {
      const float other = most_of_group[i];
      before += other > x || (other == x && i < static_cast<int>(threadIdx.x));
    }
    if (before == num_top - 1) shared_bound = x;
  }
  __syncthreads();
  const float bound = shared_bound;
  if (mine.most >= bound) {
    row.each([&](float x, int id) {
      if (!(x >= bound)) return;
      const int slot = atomicAdd(&shared_count, 1);
      if (slot < kList) list[slot] = key_of(x, id);
    });
  }
  __syncthreads();
  int count = shared_count;
  if (count > kList) {  // the same in all threads
    Key last = ~0ull;
#pragma unroll 1
    for (count = 0; count < num_top; ++count) {
      __syncthreads();
      if (threadIdx.x == 0) shared_best = 0;
      __syncthreads();
      Key best = 0;
      row.each([&](float x, int id) {
        const Key key = x >= kLeast ? key_of(x, id) : 0;
        if (key < last) best = max(best, key);
      });
      atomicMax(&shared_best, best);
      __syncthreads();
      last = shared_best;
      if (threadIdx.x == 0) list[count] = last;
    }
    __syncthreads();
  }

  // The place of each of the few listed keys is the number of larger ones.
  top_ids += static_cast<size_t>(blockIdx.x) * num_top;
  top += static_cast<size_t>(blockIdx.x) * num_top;
  for (int i = threadIdx.x; i < count; i += THREADS) {
    const Key key = list[i];
    int place = 0;
#pragma unroll 1
    for (int j = 0; j < count && place < num_top; ++j) place += list[j] > key;
    if (place < num_top) {
      top_ids[place] = id_of(key);
      top[place] = value_of(key) - most - log_sum;
    }
  }
  for (int place = count + threadIdx.x; place < num_top; place += THREADS) {
    top_ids[place] = -1;
    top[place] = -__int_as_float(0x7f800000);
  }
}
