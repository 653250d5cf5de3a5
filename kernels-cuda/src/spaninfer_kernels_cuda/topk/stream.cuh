// The stream of a row's elements, each read once, and the list of those that reach the bound.

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

// The packs that a thread reads in one turn. They are loaded together, those of the first turn
// while the bound is computed.
struct Batch {
  Pack<T, kVector> packs[kBatch];

  // Loads pack number `first`, and those `step` and more further on, where there are any.
  __device__ __forceinline__ void load(const Body& body, unsigned first, unsigned step) {
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const unsigned number = first + b * step;
      if (number < body.packs) packs[b] = body.at[number];
    }
  }
};

// A bound as a float, which rejects most elements with one comparison: they must exceed it. Up to
// the bound's own element that is the value below the bound's; after it, equal values do not count.
struct Floor {
  unsigned last;
  float until, beyond;  // NaN, which all exceed here, where only keys can be compared

  __device__ __forceinline__ explicit Floor(Key bound)
      : last(~static_cast<unsigned>(bound)), beyond(floor_of(bound)) {
    const int below = beyond == 0.0f ? 2 : 1;  // -0 lies between +0 and smaller values
    until = floor_of(bound - (static_cast<Key>(below) << 32));
  }
  __device__ __forceinline__ float at(unsigned index) const {
    return index <= last ? until : beyond;
  }
};

// Collects a key that reaches the bound: in the shared list or, if that is full, in the row's.
__device__ __forceinline__ void collect(Key key, Key bound, Row* state, Key* collected,
                                        int capacity, Shared& shared) {
  if (key < bound) return;
  const int slot = take(&shared.count);
  if (slot < kMostChosen) {
    shared.list[slot] = key;
    return;
  }
  const int overflow = take(&state->count);
  if (overflow < capacity) collected[overflow] = key;
}

// True if this block is the last of its row to arrive; it then sees what the others wrote.
__device__ __forceinline__ bool is_last(Row* state, Shared& shared) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) shared.base = atomicAdd(&state->finished, 1);
  __syncthreads();
  __threadfence();
  return shared.base == static_cast<int>(gridDim.x) - 1;
}

// Keys in memory: of a row's elements, or as listed by other threads.
struct Lying {
  const T* row;
  const Key* list;  // null: the elements
  int size;

  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int first = threadIdx.x; first < size; first += kAtOnce * kThreads) {
      Key loaded[kAtOnce];
      // The source is decided once, so that all loads are in flight together.
      if (list == nullptr) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int i = first + u * kThreads;
          loaded[u] = i < size ? key_of(row[i], i) : kAbsent;
        }
      } else {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const int i = first + u * kThreads;
          loaded[u] = i < size ? __ldcg(&list[i]) : kAbsent;
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) visit(loaded[u]);
    }
  }
};

// Puts the k largest keys into the shared list, and a few more that fit; returns their number. By
// one block alone.
__device__ __forceinline__ int narrow(const Lying& keys, int k, Shared& shared) {
  const Key bound = bound_of(keys, k, kMostChosen, shared);
  __syncthreads();
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  keys.each([&](Key key) {
    if (key >= bound) shared.list[take(&shared.count)] = key;
  });
  __syncthreads();
  return shared.count;
}
