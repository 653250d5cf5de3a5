// A bound from a random sample: of elements at random places, or of the keys that blocks offer.

// A pseudo-random place below `size`, the same in every run.
__device__ __forceinline__ unsigned place(unsigned number, unsigned size) {
  unsigned x = number * 0x9e3779b9u + 0x7f4a7c15u;  // Weyl sequence, then the lowbias32 mixer
  x = (x ^ x >> 16) * 0x7feb352du;
  x = (x ^ x >> 15) * 0x846ca68bu;
  return __umulhi(x ^ x >> 16, size);
}

// Loads `samples` keys of the row's elements at random places, different ones for each block.
__device__ __forceinline__ void sample(const T* row, unsigned length, int samples, unsigned draw,
                                       Key (&held)[kHeld]) {
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    const unsigned at = place(draw * kHeldByBlock + i, length);
    held[j] = i < samples ? key_of(row[at], at) : kAbsent;
  }
}

// Between NaN and minus infinity there are no values, but the edge of a bin may lie there.
__device__ __forceinline__ Key above_nothing(Key bound) {
  constexpr Key kLeastNumber = 0x007fffffull << 32;
  return bound >> 32 != 0 && bound < kLeastNumber ? kLeastNumber : bound;
}

// A bound that about `least` of the offered keys reach; the offered key if there is only one.
__device__ __forceinline__ Key bound_of_offers(const Key* offers, int count, int least,
                                               Shared& shared) {
  if (count == 1) return above_nothing(*offers);
  Key held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < count ? offers[i] : kAbsent;
  }
  return above_nothing(bound_of(Held{held, count}, least, least + least / 8, shared));
}
