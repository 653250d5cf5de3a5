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

// 16 tokens of a tile, counted from the first. Behind the last ones of a request they are these.
struct Group {
  int start, first, last;  // the first one, and those of them that the request sees

  __device__ __forceinline__ Group(const Arguments& of, const Tile& tile, int index) {
    const int end = tile.length - 1;
    start = min(tile.token + index * kTogether, end & -kTogether);
    first = of.window > 0 ? max(tile.length - of.window - start, 0) : 0;
    last = min(end - start, kTogether - 1);
  }

  // This token, or the nearest one that the request sees.
  __device__ __forceinline__ int seen(int token) const { return max(first, min(token, last)); }

  // Where its rows lie in the span with this number.
  __device__ __forceinline__ const char* rows(const char* base, const Strides& by,
                                              const Arguments& of, int kv_head, int span) const {
    const unsigned place = static_cast<unsigned>(start) & ((1u << of.span_shift) - 1);
    return base + kv_head * by.head + static_cast<unsigned>(span) * of.span_stride +
           static_cast<unsigned long long>(place) * by.token;
  }
};

__device__ __forceinline__ const char* row_of(const char* rows, const Strides& by, int token) {
  return rows + static_cast<unsigned long long>(static_cast<unsigned>(token)) * by.token;
}

using Keys = unsigned[TILES][2][kKeyLoads * kKeyWords];
using Values = unsigned[TILES][4][kValueLoads * kValueWords];

// A part of the keys of the tokens g and g + 8 of each 16. What lies behind the last token is hidden
// later on, whatever is read there.
__device__ __forceinline__ void load_keys(Keys& keys, int part, const Arguments& of,
                                          const Tile& tile, const Spans& spans) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const Group group(of, tile, i);
    const char* rows = group.rows(of.keys, of.key, of, tile.kv_head, spans[i]);
    const char* row = row_of(rows, of.key, g) + t * 4 * kKeyWords;
#pragma unroll
    for (int l = 0; l < kKeyLoads; ++l) {
      const int offset = (part * kKeyLoads + l) * 4 * 4 * kKeyWords;
      load<kKeyWords>(&keys[i][0][l * kKeyWords], row + offset);
      load<kKeyWords>(&keys[i][1][l * kKeyWords], row + 8ULL * of.key.token + offset);
    }
  }
}

// A part of the values of the tokens 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16. Of tokens that are
// not seen those of the nearest one that is, because a weight of zero does not hide a NaN.
__device__ __forceinline__ void load_values(Values& values, int part, const Arguments& of,
                                            const Tile& tile, const Spans& spans) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int element = tile.section % (VALUE_SIZE / VALUE_TILE) * VALUE_TILE;
  const char* base = of.values + element * Codes::kBits / 8 + g * 4 * kValueWords;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const Group group(of, tile, i);
    const char* rows = group.rows(base, of.value, of, tile.kv_head, spans[i]);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const char* row = row_of(rows, of.value, group.seen(2 * t + r % 2 + r / 2 * 8));
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

// Zero and scale of the tokens g and g + 8 of each 16, again of tokens that are seen.
struct Numbers {
  unsigned bits[TILES][2][Codes::kNumbers > 0 ? Codes::kNumbers : 1];

  __device__ __forceinline__ void load_all(const char* base, const Strides& by,
                                           const Arguments& of, const Tile& tile, const Spans& spans) {
    if constexpr (Codes::kNumbers > 0) {
      const int g = threadIdx.x % kWarp / 4;
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const Group group(of, tile, i);
        const char* rows = group.rows(base, by, of, tile.kv_head, spans[i]);
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          load<Codes::kNumbers>(bits[i][r], row_of(rows, by, group.seen(8 * r + g)));
        }
      }
    }
  }

  __device__ __forceinline__ float scale(int tile, int half) const {
    if constexpr (Codes::kNumbers == 0) return 1.0f;
    return __uint_as_float(bits[tile][half][Codes::kNumbers - 1]);
  }

  // What is to be taken off the numbers that codes become.
  __device__ __forceinline__ float bias(int tile, int half) const {
    if constexpr (Codes::kNumbers < 2) return 0.0f;
    return __uint_as_float(bits[tile][half][0]) + Codes::kBias;
  }
};

// Asks for the rows of a tile's tokens, of `bytes` each, to come to the L2 cache.
__device__ __forceinline__ void prefetch(const char* base, const Strides& by, int bytes,
                                         const Arguments& of, const Tile& tile,
                                         const Spans& spans) {
  constexpr int kLine = 128;
  const int lines = ceil_div(bytes, kLine);
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const Group group(of, tile, i);
    const char* rows = group.rows(base, by, of, tile.kv_head, spans[i]);
#pragma unroll
    for (int n = threadIdx.x % kWarp; n < kTogether * lines; n += kWarp) {
      const char* line = row_of(rows, by, group.seen(n / lines)) + n % lines * kLine;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }
}
