// A row as its elements are read, each once, and what becomes of those that reach the bound.

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

// Collects a key that reaches the bound: in the shared list, and where that is full in the row's.
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

// The packs of a row that a thread looks at: copied ahead to shared memory, each by its own thread, so
// that many are under way and none in registers. Before Ampere they are loaded one by one.
struct Stream {
  const Body& body;
  unsigned next, step;
  int stage;
  Pack<T, kVector>* ring;

  __device__ __forceinline__ Stream(const Body& body, unsigned first, unsigned step, void* memory)
      : body(body), next(first), step(step), stage(0),
        ring(static_cast<Pack<T, kVector>*>(memory) + threadIdx.x) {
#pragma unroll
    for (int ahead = 0; ahead < kStages - 1; ++ahead) ask(ahead);
  }

  // The pack whose turn it is, the one with this number.
  __device__ __forceinline__ const Pack<T, kVector>& take(unsigned pack) {
    if constexpr (kStages == 0) return body.at[pack];
    const int here = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    ask(here == 0 ? kStages - 1 : here - 1);
    wait_for_copies<kStages - 1>();
    return ring[here * kThreads];
  }

 private:
  __device__ __forceinline__ void ask(int at) {
    if (next < body.packs) copy_16(&ring[at * kThreads], body.at + next, true);
    commit_copies();
    next += step;
  }
};

// What most elements that do not reach a bound are recognised by: they do not exceed a value. Up to
// the element that the bound is, that is the one below the bound's; further on equal ones are late.
struct Floor {
  unsigned last;
  float until, beyond;  // NaN, which all exceed here, where only keys can be compared

  __device__ __forceinline__ explicit Floor(Key bound)
      : last(~static_cast<unsigned>(bound)), beyond(floor_of(bound)) {
    const int below = beyond == 0.0f ? 2 : 1;  // between +0 and what is less there is -0
    until = floor_of(bound - (static_cast<Key>(below) << 32));
  }
  __device__ __forceinline__ float at(unsigned index) const {
    return index <= last ? until : beyond;
  }
};
