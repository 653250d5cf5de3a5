// The queries of an item as fragments of the tensor cores.

// The lane's words of `count` 16-bit elements.
template <int kCount>
__device__ __forceinline__ void load_elements(unsigned (&to)[kCount / 2], const T* from) {
  if constexpr (kCount % 8 == 0) {
#pragma unroll
    for (int i = 0; i < kCount / 8; ++i) {
      const uint4 words = __ldcg(reinterpret_cast<const uint4*>(from) + i);
      to[4 * i] = words.x, to[4 * i + 1] = words.y;
      to[4 * i + 2] = words.z, to[4 * i + 3] = words.w;
    }
  } else {
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      to[i] = __ldcg(reinterpret_cast<const unsigned*>(from) + i);
    }
  }
}

// The halves of a pair.
__device__ __forceinline__ float low_of(unsigned pair) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair)));
}
__device__ __forceinline__ float high_of(unsigned pair) {
  return __half2float(__ushort_as_half(static_cast<unsigned short>(pair >> 16)));
}

// One of two elements of a word as a float.
__device__ __forceinline__ float element_at(const unsigned* words, int index) {
  const Pack<T, 2> pair = *reinterpret_cast<const Pack<T, 2>*>(&words[index / 2]);
  return to_float(pair.at[index % 2]);
}

// Terms of the lane's query heads: the sums of their elements, over kUnit, and ALiBi slopes
// for distances in tokens and scores in units of log2.
struct Query {
  float sum[HEAD_TILES][2], slope[HEAD_TILES][2];

  // Also leaves the queries in shared memory as fragments: the elements of a lane's piece of a key,
  // heads as columns.
  __device__ __forceinline__ void load(Shared& shared, const Arguments& of, const Tile& tile) {
    const int t = threadIdx.x % 4;
    const Heads heads(of, tile.kv_head, tile.section);
    const T* query = of.query + tile.request * of.query_stride + heads.head * KEY_SIZE;
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      const float own = load_head(shared, query, n, heads.count);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int head = 8 * n + 2 * t + c;
        if constexpr (Codes::kScales == 2) {
          sum[n][c] = __shfl_sync(kAll, own, 4 * (2 * t + c)) * (1.0f / Codes::kUnit);
        }
        const bool is_biased = of.alibi_slopes != nullptr && head < heads.count;
        slope[n][c] = is_biased ? kLog2e * of.alibi_slopes[heads.head + head] : 0.0f;
      }
    }
  }

 private:
  // Returns the sum of the elements of head 8n + g.
  __device__ __forceinline__ float load_head(Shared& shared, const T* query, int n, int count) {
    constexpr int kPiece = kKeyWords * kPerWord;  // elements
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
    float sum = 0.0f;
#pragma unroll
    for (int l = 0; l < kKeyLoads * KEY_PARTS; ++l) {
      unsigned words[kPiece / 2] = {};
      if (8 * n + g < count) {
        load_elements<kPiece>(words, query + (8 * n + g) * KEY_SIZE + (4 * l + t) * kPiece);
      }
#pragma unroll
      for (int s = 0; s < kStepsPerLoad; ++s) {
        unsigned pairs[2];
#pragma unroll
        for (int p = 0; p < 2; ++p) {
          const int pair = 2 * s + p;
          // Codes of odd pairs are too large by this factor: these elements are divided by it.
          const float tile = pair % 2 ? Codes::kOddUnit / Codes::kUnit : 1.0f;
          const int first = pair / Codes::kPairs * kPerWord + pair % Codes::kPairs * Codes::kStep;
          pairs[p] = pack_pair<Number>(tile * element_at(words, first),
                                       tile * element_at(words, first + Codes::kGap));
          if constexpr (Codes::kScales == 2) {
            sum += (low_of(pairs[p]) + high_of(pairs[p])) * (1.0f / tile);
          }
        }
        shared.query[warp][n][l * kStepsPerLoad + s][lane] = make_uint2(pairs[0], pairs[1]);
      }
    }
    sum += __shfl_xor_sync(kAll, sum, 1);
    return sum + __shfl_xor_sync(kAll, sum, 2);
  }
};
