// Loads of keys, values and scales, from memory to registers.

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

// The first token that the tile's request sees.
__device__ __forceinline__ int first_seen(const Arguments& of, const Tile& tile) {
  return of.window > 0 ? max(tile.length - of.window, 0) : 0;
}

// True if the request sees all tokens of the tile.
__device__ __forceinline__ bool sees_all(const Arguments& of, const Tile& tile) {
  return tile.token >= first_seen(of, tile) && tile.token + kTile <= tile.length;
}

// True if the request sees the tile's token of this number.
__device__ __forceinline__ bool sees(const Arguments& of, const Tile& tile, int index) {
  const int token = tile.token + index;
  return token >= first_seen(of, tile) && token < tile.length;
}

// The address of the tile's key head in a span.
__device__ __forceinline__ const char* head_of(const char* base, unsigned stride,
                                               const Tile& tile) {
  return base + static_cast<unsigned long long>(stride) * static_cast<unsigned>(tile.kv_head);
}

// The addresses of the rows of 16 tokens of a tile, kStride bytes each; past the last ones of a
// request, those again. Masked tokens are read like the rest, as their span is the request's, and
// hidden later. With compile-time strides, addresses take 2 instructions per 16 tokens.
template <int kStride>
__device__ __forceinline__ const char* rows_of(const char* base, const Arguments& of,
                                               const Tile& tile, int index, int span) {
  const int start = min(tile.token + index * kMmaTokens, (tile.length - 1) & -kMmaTokens);
  const unsigned place = static_cast<unsigned>(start) & ((1u << of.span_shift) - 1);
  return base + static_cast<unsigned long long>(of.span_stride) * static_cast<unsigned>(span) +
         static_cast<unsigned long long>(place) * kStride;
}

using Keys = unsigned[TILES][2][kKeyLoads * kKeyWords];
using Values = unsigned[TILES][4][kValueLoads * kValueWords];

// A part of the keys of the tokens g and g + 8 of each 16.
__device__ __forceinline__ void load_keys(Keys& keys, int part, const Arguments& of,
                                          const Tile& tile, const Spans& spans) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const char* base = head_of(of.keys, of.key_head, tile) + g * KEY_STRIDE + t * 4 * kKeyWords;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const char* row = rows_of<KEY_STRIDE>(base, of, tile, i, spans[i]);
#pragma unroll
    for (int l = 0; l < kKeyLoads; ++l) {
      const int offset = (part * kKeyLoads + l) * 4 * 4 * kKeyWords;
      load<kKeyWords>(&keys[i][0][l * kKeyWords], row + offset);
      load<kKeyWords>(&keys[i][1][l * kKeyWords], row + 8LL * KEY_STRIDE + offset);
    }
  }
}

// The number, of 16, of the token in row r of a lane's values.
__device__ __forceinline__ int token_of_row(int r) {
  return threadIdx.x % 4 * 2 + r % 2 + r / 2 * 8;
}

// A part of the values of the tokens 2t, 2t + 1, 2t + 8 and 2t + 9 of each 16.
__device__ __forceinline__ void load_values(Values& values, int part, const Arguments& of,
                                            const Tile& tile, const Spans& spans) {
  const int g = threadIdx.x % kWarp / 4;
  const int element = tile.section % (VALUE_SIZE / VALUE_TILE) * VALUE_TILE;
  const char* base = head_of(of.values, of.value_head, tile) + element * Codes::kBits / 8 +
                     token_of_row(0) * VALUE_STRIDE + g * 4 * kValueWords;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const char* rows = rows_of<VALUE_STRIDE>(base, of, tile, i, spans[i]);
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const char* row = rows + (r % 2 + r / 2 * 8LL) * VALUE_STRIDE;
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

// Zeros for the values of masked tokens: a weight of zero does not hide a NaN.
__device__ __forceinline__ void hide(Values& values, const Arguments& of, const Tile& tile) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      if (sees(of, tile, i * kMmaTokens + token_of_row(r))) continue;
#pragma unroll
      for (int w = 0; w < kValueLoads * kValueWords; ++w) values[i][r][w] = 0;
    }
  }
}

// Zero and scale of the tokens g and g + 8 of each 16.
struct Scales {
  unsigned bits[TILES][2][Codes::kScales > 0 ? Codes::kScales : 1];

  template <int kStride>
  __device__ __forceinline__ void load_all(const char* numbers, unsigned head, const Arguments& of,
                                           const Tile& tile, const Spans& spans) {
    if constexpr (Codes::kScales > 0) {
      const char* base = head_of(numbers, head, tile) + threadIdx.x % kWarp / 4 * kStride;
#pragma unroll
      for (int i = 0; i < TILES; ++i) {
        const char* row = rows_of<kStride>(base, of, tile, i, spans[i]);
        load<Codes::kScales>(bits[i][0], row);
        load<Codes::kScales>(bits[i][1], row + 8LL * kStride);
      }
    }
  }

  // A zero point of 0 and a scale of 1 for masked tokens.
  __device__ __forceinline__ void hide(const Arguments& of, const Tile& tile) {
    if constexpr (Codes::kScales > 0) {
#pragma unroll
      for (int i = 0; i < 2 * TILES; ++i) {
        if (sees(of, tile, i * 8 + threadIdx.x % kWarp / 4)) continue;
        bits[i / 2][i % 2][0] = 0;
        bits[i / 2][i % 2][Codes::kScales - 1] = __float_as_uint(1.0f);
      }
    }
  }

  __device__ __forceinline__ float scale(int tile, int half) const {
    if constexpr (Codes::kScales == 0) return 1.0f;
    return __uint_as_float(bits[tile][half][Codes::kScales - 1]);
  }

  // The zero point of the numbers that codes are widened to.
  __device__ __forceinline__ float bias(int tile, int half) const {
    if constexpr (Codes::kScales < 2) return 0.0f;
    const float zero = __uint_as_float(bits[tile][half][0]);
    return Codes::kBias == 0.0f ? zero : zero + Codes::kBias;  // adding 0 would take an instruction
  }
};

// Prefetches kBytes of each row of a tile's tokens into L2.
template <int kStride, int kBytes>
__device__ __forceinline__ void prefetch(const char* base, const Arguments& of, const Tile& tile,
                                         const Spans& spans) {
  constexpr int kLine = 128, kLines = ceil_div(kBytes, kLine);
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    const char* rows = rows_of<kStride>(base, of, tile, i, spans[i]);
#pragma unroll
    for (int n = threadIdx.x % kWarp; n < kMmaTokens * kLines; n += kWarp) {
      const char* line = rows + n / kLines * static_cast<long long>(kStride) + n % kLines * kLine;
      asm volatile("prefetch.global.L2 [%0];" ::"l"(line));
    }
  }
}
