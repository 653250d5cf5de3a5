// The row of logits that a cluster reads: each element once, by one thread of one block.

// The packs of a row that a thread reads: prefetched into shared memory by the thread that uses
// them, so that many are in flight, none in registers, and the loop over them is short enough for
// the instruction cache. A pack that cannot be copied is loaded when its turn comes.
struct Stream {
  const T* row;
  unsigned length, next, step;
  bool is_aligned;
  int stage;
#if STAGES > 0
  Pack<T, kVector>* ring;
#endif

  __device__ __forceinline__ Stream(const T* row, int length, unsigned first, unsigned step,
                                    Shared& shared)
      : row(row), length(length), next(first), step(step),
        is_aligned(reinterpret_cast<size_t>(row) % 16 == 0), stage(0) {
#if STAGES > 0
    ring = packs_behind(shared) + threadIdx.x;
#pragma unroll 1
    for (int ahead = 0; ahead < kStages - 1; ++ahead) ask(ahead);
#endif
  }

  // Moves to the pack that begins at `first`; true if `held` then has it.
  __device__ __forceinline__ bool take(int first, Pack<T, kVector>& pack) {
    const bool is_whole = is_aligned && first + kVector <= length;
#if STAGES > 0
    const int last = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    ask(last == 0 ? kStages - 1 : last - 1);
    wait_for_copies<kStages - 1>();
    if (is_whole) {
      pack = ring[last * kThreads];
      return true;
    }
#else
    if (is_whole) {
      pack = *reinterpret_cast<const Pack<T, kVector>*>(row + first);
      return false;
    }
#endif
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      pack.at[v] = first + v < length ? row[first + v] : from_float<T>(-kInfinity);
    }
    return false;
  }

#if STAGES > 0
  // Element v of the pack it is at.
  __device__ __forceinline__ float held(int v) const { return to_float(ring[current()].at[v]); }

  // Puts a pack in the place of the one it is at.
  __device__ __forceinline__ void hold(const Pack<T, kVector>& pack) { ring[current()] = pack; }
#endif

 private:
#if STAGES > 0
  __device__ __forceinline__ int current() const {
    return (stage == 0 ? kStages - 1 : stage - 1) * kThreads;
  }
  __device__ __forceinline__ void ask(int at) {
    const unsigned first = next * kVector;
    if (is_aligned && first + kVector <= length) copy_16(&ring[at * kThreads], row + first, true);
    commit_copies();
    next += step;
  }
#endif
};

// A row of logits with mask and processed values applied. Absent elements are -inf.
struct Row {
  const T* raw;
  int length;
  const unsigned* allowed;  // a bit per token; null: all are
  const unsigned* changed;  // a bit per token whose value is in `processed`; null: none
  const float* processed;

  __device__ __forceinline__ bool is_processed() const { return allowed || changed; }

  // Prefetches what this block will read first, 256 KiB at most.
  __device__ __forceinline__ void prefetch() const {
    constexpr unsigned kBytes = kThreads * sizeof(Pack<T, kVector>), kMost = (1u << 18) / kBytes;
    const unsigned chunk = threadIdx.x * blocks_of_cluster() + rank_in_cluster();
    const char* from = reinterpret_cast<const char*>(raw) + static_cast<size_t>(chunk) * kBytes;
    const bool is_whole = (chunk + 1) * kThreads * kVector <= static_cast<unsigned>(length);
    if (threadIdx.x < kMost && is_whole && reinterpret_cast<size_t>(raw) % 16 == 0) {
      prefetch_to_l2(from, kBytes);
    }
  }

  __device__ __forceinline__ float read(int id) const {
    if (allowed && !(allowed[id / 32] >> (id % 32) & 1)) return -kInfinity;
    if (changed && changed[id / 32] >> (id % 32) & 1) return processed[id];
    return to_float(raw[id]);
  }

  // Calls visit(Neighbours) for this block's packs; returns the worst Status among this thread's.
  template <typename Visit>
  __device__ __forceinline__ int each(Visit visit, Shared& shared) const;

  __device__ __forceinline__ void replace(int id, float (&x)[kVector]) const {
    const unsigned open = allowed ? allowed[id / 32] >> (id % 32) : ~0u;
    const unsigned other = changed ? changed[id / 32] >> (id % 32) : 0u;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (other >> v & 1) x[v] = processed[id + v];
      if (!(open >> v & 1)) x[v] = -kInfinity;
    }
  }

  __device__ __forceinline__ static int worst_of(const float (&x)[kVector]) {
    int worst = kSampled;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (!(x[v] < kInfinity)) worst = max(worst, x[v] == kInfinity ? kInfinite : kNaN);
    }
    return worst;
  }
};

// kVector adjacent logits: x[v] is the value of token first + v.
struct Neighbours {
  const Row& row;
  const Stream& stream;
  bool is_held;
  int first;
  float x[kVector];

  // Value v, for a v unknown at compile time: x lies in registers, which cannot be indexed. Past
  // the end of the row, where the next one begins, -inf as in x.
  __device__ __forceinline__ float at(int v) const {
#if STAGES > 0
    if (is_held) return stream.held(v);
#endif
    return first + v < row.length ? row.read(first + v) : -kInfinity;
  }
};

template <typename Visit>
__device__ __forceinline__ int Row::each(Visit visit, Shared& shared) const {
  const unsigned packs = (length + kVector - 1) / kVector;
  const unsigned step = blocks_of_cluster() * kThreads;
  unsigned pack = rank_in_cluster() * kThreads + threadIdx.x;
  Stream stream(raw, length, pack, step, shared);
  int worst = kSampled;
#pragma unroll 1
  for (; pack < packs; pack += step) {
    const int first = static_cast<int>(pack * kVector);
    Pack<T, kVector> here;
    const bool is_held = stream.take(first, here);
    const bool differs = kHoldsMasked ? changed != nullptr : is_processed();  // from what is held
    Neighbours values{*this, stream, is_held && !differs, first};
#pragma unroll
    for (int v = 0; v < kVector; ++v) values.x[v] = to_float(here.at[v]);
    worst = max(worst, worst_of(values.x));
    if (is_processed()) {
      replace(first, values.x);
      worst = max(worst, worst_of(values.x));
#if STAGES > 0
      if (kHoldsMasked && values.is_held) {  // by a mask alone: the values are exact
#pragma unroll
        for (int v = 0; v < kVector; ++v) here.at[v] = from_float<T>(values.x[v]);
        stream.hold(here);
      }
#endif
    }
    visit(values);
  }
  return worst;
}

// The next number of a counter for each active lane: one atomic for all of them.
__device__ __forceinline__ int take(int* counter) {
  const unsigned lanes = __activemask();
  const int leader = __ffs(lanes) - 1, lane = threadIdx.x % kWarp;
  int first = 0;
  if (lane == leader) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(lanes, first, leader) + __popc(lanes & ((1u << lane) - 1));
}

// Row `number` of all.
__device__ __forceinline__ Row row_of(const T* logits, unsigned number, int length,
                                      long long stride, const SamplingParams& params, int slot,
                                      int position, const unsigned* allowed,
                                      const unsigned* changed, const float* processed) {
  const size_t words = (length + 31) / 32;
  const bool is_processed = changed && params.is_processed(position);
  const bool is_masked = allowed && params.masked;
  return {logits + number * stride, length, is_masked ? allowed + slot * words : nullptr,
          is_processed ? changed + number * words : nullptr,
          processed + static_cast<size_t>(number) * length};
}
