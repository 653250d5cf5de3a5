// A bound that is drawn: of elements at random places, and of the keys that several blocks offer.

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

// What about `least` of the keys offered reach; if only one is, it is that.
__device__ __forceinline__ Key bound_of_offers(const Key* offers, int count, int least,
                                               Shared& shared) {
  if (count == 1) return above_nothing(*offers);
  Key held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < count ? offers[i] : kAbsent;
  }
  return above_nothing(bound_of(held, count, least, least + least / 8, shared));
}
