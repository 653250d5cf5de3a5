// A warp's tiles of tokens: scores, softmax, and the sum of weighted values.

using Products = float[TILES][HEAD_TILES][4];

// Adds the products of a part of the keys with the queries.
__device__ __forceinline__ void multiply_keys(Products& scores, const Keys& keys, int part,
                                              const Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int l = 0; l < kKeyLoads; ++l) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      unsigned pairs[2][kKeyWords * Codes::kPairs];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
#pragma unroll
        for (int w = 0; w < kKeyWords; ++w) {
          unsigned of_word[Codes::kPairs];
          Codes::widen(keys[i][r][l * kKeyWords + w], of_word);
#pragma unroll
          for (int p = 0; p < Codes::kPairs; ++p) pairs[r][w * Codes::kPairs + p] = of_word[p];
        }
      }
#pragma unroll
      for (int s = 0; s < kStepsPerLoad; ++s) {
        const unsigned rows[4] = {pairs[0][2 * s], pairs[1][2 * s], pairs[0][2 * s + 1],
                                  pairs[1][2 * s + 1]};
        const int step = (part * kKeyLoads + l) * kStepsPerLoad + s;
#pragma unroll
        for (int n = 0; n < HEAD_TILES; ++n) {
          const uint2 query = shared.query[warp][n][step][lane];
          multiply_add<Number>(scores[i][n], rows, query.x, query.y);
        }
      }
    }
  }
}

// log2(x) by the instruction alone; x is no subnormal number.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// 1 / x by the instruction alone; x is no subnormal number, nor is its inverse.
__device__ __forceinline__ float inverse_fast(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

using Weights = unsigned[TILES][HEAD_TILES][2];

// Adds the products of a part of the values with the weights.
__device__ __forceinline__ void multiply_values(Accumulators& acc, const Values& values, int part,
                                                const Weights& weights) {
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
#pragma unroll
    for (int w = 0; w < kValueLoads * kValueWords; ++w) {
      unsigned pairs[2][2][Codes::kPairs];  // tokens 2t, 2t + 1 or 8 later; low and high elements
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned even = values[i][2 * r][w], odd = values[i][2 * r + 1][w];
        Codes::widen(__byte_perm(even, odd, Codes::kLow), pairs[r][0]);
        Codes::widen(__byte_perm(even, odd, Codes::kHigh), pairs[r][1]);
      }
#pragma unroll
      for (int e = 0; e < kPerWord; e += 2) {
        constexpr int kHalf = Codes::kPairs;
        const unsigned rows[4] = {
            pairs[0][e / kHalf][e % kHalf], pairs[0][(e + 1) / kHalf][(e + 1) % kHalf],
            pairs[1][e / kHalf][e % kHalf], pairs[1][(e + 1) / kHalf][(e + 1) % kHalf]};
        const int row = part * kValueLoads * kRowsPerLoad + (w * kPerWord + e) / 2;
#pragma unroll
        for (int n = 0; n < HEAD_TILES; ++n) {
          multiply_add<Number>(acc.at[row][n], rows, weights[i][n][0], weights[i][n][1]);
        }
      }
    }
  }
}

// Lane (g, t) of the transposed matrix of which it gives the elements 2t and 2t + 1 of row g.
__device__ __forceinline__ unsigned transposed(unsigned pair) {
  unsigned other;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(other) : "r"(pair));
  return other;
}

// Turns products of query and key into scores, masks tokens that are not seen, and computes the
// weights of values (online softmax). Earlier results are rescaled where the maximum has grown.
__device__ __forceinline__ void weigh(Weights& weights, Products& scores, Accumulators& acc,
                                      const Query& query, const Scales& key, const Scales& value,
                                      const Arguments& of, const Tile& tile) {
  const int g = threadIdx.x % kWarp / 4;
  const bool is_capped = of.softcap > 0.0f;
  const float factor = of.scale * (is_capped ? 1.0f : kLog2e) * Codes::kUnit;
  float plus[2 * TILES];  // logarithms of the values' scales
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
    plus[i] = Codes::kScales > 0 ? log2_fast(value.scale(i / 2, i % 2)) : 0.0f;
    const float times = factor * key.scale(i / 2, i % 2), bias = times * key.bias(i / 2, i % 2);
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float first = is_capped ? 0.0f : plus[i];  // costs nothing in a multiply-add
        if constexpr (Codes::kScales == 2) first -= bias * query.sum[n][c];
        float& score = scores[i / 2][n][i % 2 * 2 + c];
        score = score * times + first;
      }
    }
  }
  if (is_capped) {
    const float share = 1.0f / of.softcap;
#pragma unroll
    for (int i = 0; i < TILES * HEAD_TILES * 4; ++i) {
      const int group = i / 4 / HEAD_TILES;
      float& score = scores[group][i / 4 % HEAD_TILES][i % 4];
      score = kLog2e * of.softcap * tanh_exact(score * share) + plus[2 * group + i % 4 / 2];
    }
  }
  if (of.alibi_slopes != nullptr) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      const int own = tile.token + 8 * i + g;
      const float distance = static_cast<float>(own - tile.length + 1);
#pragma unroll
      for (int c = 0; c < 2 * HEAD_TILES; ++c) {
        scores[i / 2][c / 2][i % 2 * 2 + c % 2] += query.slope[c / 2][c % 2] * distance;
      }
    }
  }
  if (!sees_all(of, tile)) {
#pragma unroll
    for (int i = 0; i < 2 * TILES; ++i) {
      if (sees(of, tile, 8 * i + g)) continue;
#pragma unroll
      for (int c = 0; c < 2 * HEAD_TILES; ++c) {
        scores[i / 2][c / 2][i % 2 * 2 + c % 2] = hidden();
      }
    }
  }
  float top[HEAD_TILES][2];
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) top[n][0] = top[n][1] = hidden();
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        top[n][c] = fmaxf(top[n][c], scores[i / 2][n][i % 2 * 2 + c]);
      }
    }
  }
  bool is_larger = false;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) {
        top[n][c] = fmaxf(top[n][c], __shfl_xor_sync(kAll, top[n][c], step));
      }
      is_larger |= top[n][c] > acc.most[n][c];
    }
  }
  if (__any_sync(kAll, is_larger)) {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      float shrunk[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float most = fmaxf(acc.most[n][c], top[n][c]);
        shrunk[c] = power_of_2(acc.most[n][c] - most);
        acc.most[n][c] = most;
        acc.sum[n][c] *= shrunk[c];
        if constexpr (Codes::kScales == 2) acc.bias[n][c] *= shrunk[c];
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < 4; ++e) acc.at[row][n][e] *= shrunk[e % 2];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
    const float share = Codes::kScales > 0 ? inverse_fast(value.scale(i / 2, i % 2)) : 1.0f;
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      float weight[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        weight[c] = power_of_2(scores[i / 2][n][i % 2 * 2 + c] - acc.most[n][c]);
        acc.sum[n][c] += weight[c] * share;
      }
      const unsigned rounded = pack_pair<Number>(weight[0], weight[1]);
      if constexpr (Codes::kScales == 2) {  // of the very weights that values are multiplied by
        acc.bias[n][0] += low_of(rounded) * value.bias(i / 2, i % 2);
        acc.bias[n][1] += high_of(rounded) * value.bias(i / 2, i % 2);
      }
      weights[i / 2][n][i % 2] = transposed(rounded);
    }
  }
}
