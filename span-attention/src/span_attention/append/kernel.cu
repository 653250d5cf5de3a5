// Append: head norm, rotary embedding and the write of new keys and values into spans.
//
//   query_out[t h] = rope(norm(query[t h]))      keys[slot[t] k] = rope(norm(key[t k]))
//   values[slot[t] k] = value[t k]
//
// norm is x / sqrt(mean(x^2) + eps) * (weight + weight_offset) over one head (HEAD_NORM). rope
// rotates the first ROTARY elements in pairs: (i, i + ROTARY/2), or (2i, 2i + 1) where INTERLEAVED.
// Everything between loading and storing is float32, rounded once: to T, or to the codes of CODE
// with scale, or zero point and scale, beside them. slot[t] is span * span_len + offset; a negative
// slot marks a padding row, for which nothing is written.
//
// LANES adjacent lanes take one head of one row, called a task.
//
// Macros: T (element), CODE (of spans that hold codes: Fp8, Int8 or Uint4), KEY_SIZE, VALUE_SIZE,
//         ROTARY, VECTOR, VALUE_VECTOR (elements per load), LANES, THREADS, VALUES_IN_KEYS,
//         HEAD_NORM, INTERLEAVED (0 or 1).
// Demands: 2 VECTOR divides KEY_SIZE and ROTARY, 2 VALUE_VECTOR divides VALUE_SIZE; elements of a
//          head contiguous; rows begin at multiples of a vector.

using Rotated = Head<T, KEY_SIZE, VECTOR, ROTARY, LANES, INTERLEAVED>;
using Value = Head<T, VALUE_SIZE, VALUE_VECTOR, 0, LANES, false>;

#ifdef CODE
using Cached = unsigned char;

template <typename Held>
__device__ __forceinline__ void keep(const Held& head, Cached* to, float* numbers) {
  constexpr int kVector = Held::kUnit / 2;
  float least = 0.0f, most = 0.0f;
#pragma unroll
  for (int k = 0; k < Held::kPerLane; ++k) {
#pragma unroll
    for (int n = 0; n < Held::kUnit; ++n) {
      least = fminf(least, head.x[k][n]);
      most = fmaxf(most, head.x[k][n]);
    }
  }
  const CODE code(lanes_min<LANES>(least), lanes_max<LANES>(most));
#pragma unroll
  for (int k = 0; k < Held::kPerLane; ++k) {
    if (Held::unit(k) >= Held::kUnits) continue;
    const int2 begin = Held::begins(Held::unit(k));
    store_codes<kVector>(to + begin.x * CODE::kBits / 8, code, head.x[k]);
    store_codes<kVector>(to + begin.y * CODE::kBits / 8, code, head.x[k] + kVector);
  }
  if (threadIdx.x % LANES == 0) code.keep(numbers);
}
#else
using Cached = T;

template <typename Held>
__device__ __forceinline__ void keep(const Held& head, Cached* to, float*) {
  head.store(to);
}
#endif

// For latents (576 elements) ptxas would spill to fit more blocks on a multiprocessor; with a limit
// of one it takes 76 registers. 0 sets no limit.
extern "C" __global__ void __launch_bounds__(THREADS, KEY_SIZE > 256 ? 1 : 0)
    append_rows(T* query_out, Cached* keys, Cached* values, float* key_scales, float* value_scales,
                const T* query, const T* key, const T* value, const float* cosine,
                const float* sine, const int* slot_mapping, const T* query_weight,
                const T* key_weight, float eps, float weight_offset, int heads, int kv_heads,
                int span_len, long long query_stride, long long key_stride, long long value_stride,
                long long key_span, long long key_head, long long key_token, long long value_span,
                long long value_head, long long value_token, long long scales_span,
                long long key_scales_head, long long key_scales_token, long long value_scales_head,
                long long value_scales_token) {
  let_next_kernel_start();
  wait_for_kernel_before();
  constexpr int kTasks = THREADS / LANES;  // that a block works on at once
  const long long row = blockIdx.x;
  const int place = slot_mapping[row];
  const float* row_cosine = cosine + row * (ROTARY / 2);
  const float* row_sine = sine + row * (ROTARY / 2);
  const int tasks = heads + kv_heads * (VALUES_IN_KEYS ? 1 : 2);

  for (int task = blockIdx.y * kTasks + threadIdx.x / LANES; task < tasks;
       task += gridDim.y * kTasks) {
    if (task < heads + kv_heads) {
      const bool is_key = task >= heads;
      const long long number = is_key ? task - heads : task;
      const T* from = is_key ? key + row * key_stride : query + row * query_stride;
      Rotated head;
      head.load(from + number * KEY_SIZE);
      if (place < 0) return;  // after the load, so that both latencies are one
      if constexpr (HEAD_NORM) head.norm(is_key ? key_weight : query_weight, weight_offset, eps);
      head.rope(row_cosine, row_sine);
      if (is_key) {
        const long long span = place / span_len, token = place % span_len;
        keep(head, keys + span * key_span + number * key_head + token * key_token,
             key_scales + span * scales_span + number * key_scales_head + token * key_scales_token);
      } else {
        head.store(query_out + (row * heads + number) * KEY_SIZE);
      }
    } else if constexpr (!VALUES_IN_KEYS) {
      const long long number = task - heads - kv_heads;
      Value head;
      head.load(value + row * value_stride + number * VALUE_SIZE);
      if (place < 0) return;
      const long long span = place / span_len, token = place % span_len;
      keep(head, values + span * value_span + number * value_head + token * value_token,
           value_scales + span * scales_span + number * value_scales_head +
               token * value_scales_token);
    }
  }
}
