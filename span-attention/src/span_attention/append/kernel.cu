// New keys and values into the spans, with norm and rotary embedding on the way.
//
//   query_out[t h] = rope(norm(query[t h]))      keys[slot[t] k] = rope(norm(key[t k]))
//   values[slot[t] k] = value[t k]
//
// norm is x / sqrt(mean(x^2) + eps) * weight over one head (HEAD_NORM). rope turns the first
// `rotary` elements in pairs: (i, i + rotary/2), or (2i, 2i + 1) where INTERLEAVED. Everything
// between loading and storing is float32, rounded once. slot[t] is span * span_len + offset; a
// negative slot marks a padding row, of which nothing is written.
//
// A warp takes one head of one row; lane l holds the pairs l, l + 32, … of that head.
//
// Macros: T (element), KEY_SIZE, VALUE_SIZE (0: values lie in the keys), WARPS (per block),
//         HEAD_NORM, INTERLEAVED (0 or 1).
// Demands: KEY_SIZE and rotary even, rotary <= KEY_SIZE; elements of a head contiguous.

constexpr int kPairs = KEY_SIZE / 2;
constexpr int kPairsPerLane = (kPairs + kWarp - 1) / kWarp;

// Which two elements of a head pair i is. Pairs from rotary/2 on are the elements left as they are.
__device__ __forceinline__ int2 pair_at(int i, int rotary) {
  if constexpr (INTERLEAVED) return make_int2(2 * i, 2 * i + 1);
  const int turned = rotary / 2;
  if (i < turned) return make_int2(i, i + turned);
  const int first = rotary + (i - turned);
  return make_int2(first, first + (KEY_SIZE - rotary) / 2);
}

__device__ __forceinline__ void norm_and_rope(T* to, const T* from, const T* weight, float eps,
                                              const float* cosine, const float* sine, int rotary) {
  const int lane = threadIdx.x;
  float2 held[kPairsPerLane];
  float squares = 0.0f;
#pragma unroll
  for (int k = 0; k < kPairsPerLane; ++k) {
    const int i = lane + k * kWarp;
    if (i >= kPairs) continue;
    const int2 at = pair_at(i, rotary);
    held[k] = make_float2(to_float(from[at.x]), to_float(from[at.y]));
    squares += square(held[k].x) + square(held[k].y);
  }
  float scale = 1.0f;
  if constexpr (HEAD_NORM) scale = rsqrtf(warp_sum(squares) / KEY_SIZE + eps);
#pragma unroll
  for (int k = 0; k < kPairsPerLane; ++k) {
    const int i = lane + k * kWarp;
    if (i >= kPairs) continue;
    const int2 at = pair_at(i, rotary);
    float2 pair = held[k];
    if constexpr (HEAD_NORM) {
      pair.x *= scale * to_float(weight[at.x]);
      pair.y *= scale * to_float(weight[at.y]);
    }
    if (i < rotary / 2) pair = rotate(pair, cosine[i], sine[i]);
    to[at.x] = from_float<T>(pair.x);
    to[at.y] = from_float<T>(pair.y);
  }
}

extern "C" __global__ void __launch_bounds__(kWarp* WARPS)
    append_rows(T* query_out, T* keys, T* values, const T* query, const T* key, const T* value,
                const float* cosine, const float* sine, const int* slot, const T* query_weight,
                const T* key_weight, float eps, int heads, int kv_heads, int rotary, int span_len,
                long long query_stride, long long key_stride, long long value_stride,
                long long key_span, long long key_head, long long key_token, long long value_span,
                long long value_head, long long value_token) {
  const long long row = blockIdx.x;
  const int place = slot[row];
  const int index = blockIdx.y * WARPS + threadIdx.y;
  if (place < 0) return;
  const long long span = place / span_len, token = place % span_len;
  const float* row_cosine = cosine + row * (rotary / 2);
  const float* row_sine = sine + row * (rotary / 2);

  if (index < heads) {
    norm_and_rope(query_out + (row * heads + index) * KEY_SIZE,
                  query + row * query_stride + static_cast<long long>(index) * KEY_SIZE,
                  query_weight, eps, row_cosine, row_sine, rotary);
  } else if (index < heads + kv_heads) {
    const long long head = index - heads;
    norm_and_rope(keys + span * key_span + head * key_head + token * key_token,
                  key + row * key_stride + head * KEY_SIZE, key_weight, eps, row_cosine, row_sine,
                  rotary);
  } else if (VALUE_SIZE > 0 && index < heads + 2 * kv_heads) {
    const long long head = index - heads - kv_heads;
    T* to = values + span * value_span + head * value_head + token * value_token;
    const T* from = value + row * value_stride + head * VALUE_SIZE;
    for (int e = threadIdx.x; e < VALUE_SIZE; e += kWarp) to[e] = from[e];
  }
}
