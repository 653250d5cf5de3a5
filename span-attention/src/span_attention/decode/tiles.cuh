// A warp's tiles of tokens: scores, softmax, and the sum of weighted values.

// The queries of an item as fragments: the elements of a lane's piece of a key, heads as columns.
__device__ __forceinline__ void load_query(Shared& shared, const Arguments& of, const Item& item) {
  const T* query = of.query + item.request * of.query_stride + item.head * KEY_SIZE;
  for (int i = threadIdx.x; i < HEAD_TILES * kSteps * kWarp; i += kThreads) {
    const int lane = i % kWarp, step = i / kWarp % kSteps, tile = i / kWarp / kSteps;
    const int head = 8 * tile + lane / 4;
    const int piece = step / kStepsPerLoad * 4 + lane % 4;
    unsigned pairs[2] = {0, 0};
#pragma unroll
    for (int p = 0; p < 2; ++p) {
      const int pair = step % kStepsPerLoad * 2 + p;
      const int first = (piece * kKeyWords + pair / Codes::kPairs) * kPerWord +
                        pair % Codes::kPairs * Codes::kStep;
      if (head >= item.count) continue;
      const float low = to_float(query[head * KEY_SIZE + first]);
      const float high = to_float(query[head * KEY_SIZE + first + Codes::kGap]);
      pairs[p] = pack_pair<Number>(low, high);
    }
    shared.query[tile][step][lane] = make_uint2(pairs[0], pairs[1]);
  }
}

using Products = float[TILES][HEAD_TILES][4];

// Adds the products of a part of the keys with the queries.
__device__ __forceinline__ void multiply_keys(Products& scores, const Keys& keys, int part,
                                              const unsigned (&offsets)[TILES],
                                              const Shared& shared) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int l = 0; l < kKeyLoads; ++l) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      unsigned pairs[2][kKeyWords * Codes::kPairs];
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned offset = __byte_perm(offsets[i], 0, r == 0 ? 0x1010 : 0x3232);
#pragma unroll
        for (int w = 0; w < kKeyWords; ++w) {
          unsigned of_word[Codes::kPairs];
          Codes::widen(keys[i][r][l * kKeyWords + w], offset, of_word);
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
          const uint2 query = shared.query[n][step][lane];
          multiply_add<Number>(scores[i][n], rows, query.x, query.y);
        }
      }
    }
  }
}

using Result = float[kRows][HEAD_TILES][4];
// log2(x) by the instruction alone; x is no subnormal number.
__device__ __forceinline__ float log2_fast(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

using Weights = unsigned[TILES][HEAD_TILES][2];

// Adds the products of a part of the values with the weights.
__device__ __forceinline__ void multiply_values(Result& result, const Values& values, int part,
                                                const unsigned (&offsets)[TILES],
                                                const Weights& weights) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    unsigned offset[2] = {0, 0};
    if constexpr (Codes::kNumbers == 2) {  // of the tokens 2t and 2t + 1, and those 8 behind
      const unsigned even = __shfl_sync(kAll, offsets[i], 8 * t);
      const unsigned odd = __shfl_sync(kAll, offsets[i], 8 * t + 4);
      offset[0] = __byte_perm(even, odd, kLowHalves);
      offset[1] = __byte_perm(even, odd, kHighHalves);
    }
#pragma unroll
    for (int w = 0; w < kValueLoads * kValueWords; ++w) {
      unsigned pairs[2][2][Codes::kPairs];  // tokens 2t, 2t + 1 or 8 behind; low and high elements
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const unsigned even = values[i][2 * r][w], odd = values[i][2 * r + 1][w];
        Codes::widen(__byte_perm(even, odd, kLowHalves), offset[r], pairs[r][0]);
        Codes::widen(__byte_perm(even, odd, kHighHalves), offset[r], pairs[r][1]);
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
          multiply_add<Number>(result[row][n], rows, weights[i][n][0], weights[i][n][1]);
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

// The softmax of a warp so far: of each of the lane's heads, the largest score and, over the tokens
// of the lane alone, the sum of weights.
struct Softmax {
  float most[HEAD_TILES][2], sum[HEAD_TILES][2];
  float slope[HEAD_TILES][2];  // ALiBi
};

// Turns products into scores, `times` each, hides tokens that are not seen, and leaves what the values of each
// token are multiplied by. What was summed up before shrinks where a larger score has come.
__device__ __forceinline__ void weigh(Weights& weights, Products& scores, Softmax& softmax,
                                      Result& result, const float (&times)[TILES][2],
                                      const Numbers& value, const Arguments& of, const Item& item,
                                      int token, int to) {
  const int g = threadIdx.x % kWarp / 4;
  const bool is_inside = token >= item.first && token + kTile <= to;
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      scores[i / 2][n][i % 2 * 2] *= times[i / 2][i % 2];
      scores[i / 2][n][i % 2 * 2 + 1] *= times[i / 2][i % 2];
    }
  }
  if (of.softcap > 0.0f) {
    const float share = 1.0f / of.softcap;
#pragma unroll
    for (int i = 0; i < TILES * HEAD_TILES * 4; ++i) {
      float& score = scores[i / 4 / HEAD_TILES][i / 4 % HEAD_TILES][i % 4];
      score = kLog2e * of.softcap * tanh_exact(score * share);
    }
  }
  float top[HEAD_TILES][2];
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) top[n][0] = top[n][1] = hidden();
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
    const int own = token + i / 2 * kTogether + i % 2 * 8 + g;
    const float distance = static_cast<float>(own - item.length + 1);
    const float plus = Codes::kNumbers > 0 ? log2_fast(value.scale(i / 2, i % 2)) : 0.0f;
    const bool is_seen = is_inside || (own >= item.first && own < to);
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float& score = scores[i / 2][n][i % 2 * 2 + c];
        score = is_seen ? score + (softmax.slope[n][c] * distance + plus) : hidden();
        top[n][c] = fmaxf(top[n][c], score);
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
      is_larger |= top[n][c] > softmax.most[n][c];
    }
  }
  if (__any_sync(kAll, is_larger)) {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      float shrunk[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float most = fmaxf(softmax.most[n][c], top[n][c]);
        shrunk[c] = power_of_2(softmax.most[n][c] - most);
        softmax.most[n][c] = most;
        softmax.sum[n][c] *= shrunk[c];
      }
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < 4; ++e) result[row][n][e] *= shrunk[e % 2];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 2 * TILES; ++i) {
    const float share = Codes::kNumbers > 0 ? __fdividef(1.0f, value.scale(i / 2, i % 2)) : 1.0f;
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      float weight[2];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        weight[c] = power_of_2(scores[i / 2][n][i % 2 * 2 + c] - softmax.most[n][c]);
        softmax.sum[n][c] += weight[c] * share;
      }
      weights[i / 2][n][i % 2] = transposed(pack_pair<Number>(weight[0], weight[1]));
    }
  }
}

// Attends to the tokens of a warp: the tiles warp, warp + WARPS, … of [from, range.to).
__device__ __forceinline__ void attend(Result& result, Softmax& softmax, const Arguments& of,
                                       const Item& item, const Range& range, int from,
                                       Shared& shared) {
  int token = from + threadIdx.x / kWarp * kTile;
  const bool has_tokens = token < range.to;
  const float factor = of.scale * kResultScale * (of.softcap > 0.0f ? 1.0f : kLog2e);
  Keys keys;
  Values values;
  Numbers key_numbers, value_numbers;
  Spans spans, own_spans;
  int next_spans[TILES];  // what is loaded ahead must not be touched before it is needed
  const auto turn_to_next = [&] {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      own_spans[i] = spans[i];
      spans[i] = static_cast<unsigned>(next_spans[i]) * of.span_stride;
    }
  };
  const auto begin = [&](int next) {
    load_keys(keys, 0, of, range, next, spans);
    key_numbers.load_all(range.key_numbers, of.key_number, range, next, spans, of.span_shift);
  };
  const auto follow = [&](int next) {
    load_values(values, 0, of, range, next, spans);
    value_numbers.load_all(range.value_numbers, of.value_number, range, next, spans,
                           of.span_shift);
  };
  if (has_tokens) range.look_up(next_spans, token, of.span_shift);
  wait_for_kernel_before();
  let_next_kernel_start();
  if (has_tokens) {
    turn_to_next();
    begin(token);
    follow(token);
    range.look_up(next_spans, token + WARPS * kTile, of.span_shift);
  }
  __syncthreads();
  load_query(shared, of, item);
  __syncthreads();

  while (token < range.to) {
    const int next = token + WARPS * kTile;
    Products scores = {};
    unsigned offsets[TILES];
    float times[TILES][2];
    turn_to_next();
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      offsets[i] = key_numbers.offsets(i);
      times[i][0] = factor * key_numbers.scale(i, 0);
      times[i][1] = factor * key_numbers.scale(i, 1);
    }
#pragma unroll
    for (int part = 0; part < KEY_PARTS; ++part) {
      multiply_keys(scores, keys, part, offsets, shared);
      if (part + 1 < KEY_PARTS) {
        load_keys(keys, part + 1, of, range, token, own_spans);
      } else if (next < range.to) {
        begin(next);
      }
    }
    Weights weights;
    weigh(weights, scores, softmax, result, times, value_numbers, of, item, token, range.to);
#pragma unroll
    for (int i = 0; i < TILES; ++i) offsets[i] = value_numbers.offsets(i);
#pragma unroll
    for (int part = 0; part < VALUE_PARTS; ++part) {
      multiply_values(result, values, part, offsets, weights);
      if (part + 1 < VALUE_PARTS) {
        load_values(values, part + 1, of, range, token, own_spans);
      } else if (next < range.to) {
        follow(next);
        range.look_up(next_spans, next + WARPS * kTile, of.span_shift);
      }
    }
    token = next;
  }
}
