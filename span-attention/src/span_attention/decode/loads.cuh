// Keys, values and the numbers of codes, from memory to registers.

template <int kWords>
__device__ __forceinline__ void load(unsigned* to, const char* from) {
  if constexpr (kWords == 4) {
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  } else if constexpr (kWords == 2) {
    asm volatile("ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                 : "=r"(to[0]), "=r"(to[1])
                 : "l"(from));
  } else {
    asm volatile("ld.global.L1::no_allocate.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
  }
}

// The address of a token of a span.
__device__ __forceinline__ const char* at(const char* span, const Strides& by, int token,
                                          int span_shift) {
  const unsigned place = static_cast<unsigned>(token) & ((1u << span_shift) - 1);
  return span + static_cast<unsigned long long>(place) * by.token;
}

using Keys = unsigned[TILES][2][kKeyLoads * kKeyWords];
using Values = unsigned[TILES][4][kValueLoads * kValueWords];

// A part of the keys of the tokens g and g + 8 of each 16. What lies behind the range is hidden
// later on, whatever is read there.
__device__ __forceinline__ void load_keys(Keys& keys, int part, const Arguments& of,
                                          const Range& range, int token,
                                          const Spans& spans) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const char* row = at(range.keys + spans[i], of.key, token + i * kTogether, of.span_shift);
#pragma unroll
    for (int l = 0; l < kKeyLoads; ++l) {
      const int offset = (part * kKeyLoads + l) * 4 * 4 * kKeyWords;
      load<kKeyWords>(&keys[i][0][l * kKeyWords], row + offset);
      load<kKeyWords>(&keys[i][1][l * kKeyWords], row + 8ULL * of.key.token + offset);
    }
  }
}

// A part of the values of the tokens 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16. Outside of the range
// those of its first or last token, because a weight of zero does not hide a NaN.
__device__ __forceinline__ void load_values(Values& values, int part, const Arguments& of,
                                            const Range& range, int token,
                                            const Spans& spans) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int own = range.inside(token + i * kTogether + 2 * t + r % 2 + r / 2 * 8);
      const char* row = at(range.values + spans[i], of.value, own, of.span_shift);
#pragma unroll
      for (int l = 0; l < kValueLoads; ++l) {
        const int offset = (part * kValueLoads + l) * 8 * 4 * kValueWords;
        unsigned* to = &values[i][r][l * kValueWords];
        if (offset + 8 * 4 * kValueWords <= kValueBytes ||
            offset + g * 4 * kValueWords < kValueBytes) {
          load<kValueWords>(to, row + offset);
        } else {
#pragma unroll
          for (int w = 0; w < kValueWords; ++w) to[w] = 0;
        }
      }
    }
  }
}

// Zero and scale of the tokens g and g + 8 of each 16, again of a token inside of the range.
struct Numbers {
  unsigned bits[TILES][2][Codes::kNumbers > 0 ? Codes::kNumbers : 1];

  __device__ __forceinline__ void load_all(const char* base, const Strides& by, const Range& range,
                                           int token, const Spans& spans, int span_shift) {
    if constexpr (Codes::kNumbers > 0) {
      const int g = threadIdx.x % kWarp / 4;
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {
        const int own = range.inside(token + i / 2 * kTogether + i % 2 * 8 + g);
        load<Codes::kNumbers>(bits[i / 2][i % 2], at(base + spans[i / 2], by, own, span_shift));
      }
    }
  }

  __device__ __forceinline__ float scale(int tile, int half) const {
    if constexpr (Codes::kNumbers == 0) return 1.0f;
    return __uint_as_float(bits[tile][half][Codes::kNumbers - 1]);
  }

  // What widening takes off the tokens g and g + 8, in the low and the high half.
  __device__ __forceinline__ unsigned offsets(int tile) const {
    if constexpr (Codes::kNumbers < 2) return 0;
    return pack_pair<half>(Codes::offset(__uint_as_float(bits[tile][0][0])),
                           Codes::offset(__uint_as_float(bits[tile][1][0])));
  }
};
