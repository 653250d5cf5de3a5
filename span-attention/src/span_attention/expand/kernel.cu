// Codes of the KV cache -> floats, for kernels that read floats alone: the spans of some sequences,
// in their order (expand/plan.cu).
//
//   to[s] = sources[s], every code times its scale, rounded to T         for s < num_spans
//
// What lies behind a sequence's last token in its last span is expanded, too. A thread expands 16
// bytes of codes. A block has one of the KV heads' keys or values of a span, and then of the span
// gridDim.x behind it: how many there are is read from the plan, so that a launch that was captured
// into a CUDA graph expands what each step has.
//
// The plan is older than the previous kernel: it is read without waiting for it. So may the next
// kernel read what is older than this one; it starts no sooner than this one's wait has ended.
//
// Macros: T (half or bfloat16), CODE (Fp8, Int8 or Uint4), KEY_SIZE, VALUE_SIZE, THREADS.
// Demands: heads of whole 16 bytes of codes; to[S | keys K L D, values K L E] contiguous.

// Expands the tokens of one head, kSize elements each.
template <int kSize>
__device__ __forceinline__ void expand(T* to, const unsigned char* codes, const float* scales,
                                       long long codes_token, long long scales_token, int tokens) {
  constexpr int kCodes = 128 / CODE::kBits, kParts = kSize / kCodes;
  for (int i = threadIdx.x; i < tokens * kParts; i += THREADS) {
    const int token = i / kParts, part = i % kParts;
    const uint4 own = *reinterpret_cast<const uint4*>(codes + token * codes_token + part * 16);
    dequantize_16<T, CODE>(to + i * kCodes, own, scales + token * scales_token);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    expand_spans(T* to, const unsigned char* keys, const unsigned char* values,
                 const float* key_scales, const float* value_scales, const int* plan, int span_len,
                 int kv_heads, long long span_stride, long long key_head, long long key_token,
                 long long value_head, long long value_token, long long scales_span,
                 long long key_scales_head, long long key_scales_token,
                 long long value_scales_head, long long value_scales_token) {
  const int num_spans = __ldcg(plan), first = blockIdx.x;
  long long span = first < num_spans ? __ldcg(plan + 1 + first) : 0;
  wait_for_kernel_before();
  let_next_kernel_start();
  const long long head = blockIdx.y % kv_heads;
  for (int place = first; place < num_spans; place += gridDim.x) {
    if (place > first) span = __ldcg(plan + 1 + place);
    T* const own = to + place * (static_cast<long long>(kv_heads * span_len) *
                                 (KEY_SIZE + VALUE_SIZE));
    if (blockIdx.y < kv_heads) {
      expand<KEY_SIZE>(own + head * span_len * KEY_SIZE,
                       keys + span * span_stride + head * key_head,
                       key_scales + span * scales_span + head * key_scales_head, key_token,
                       key_scales_token, span_len);
    } else {
      expand<VALUE_SIZE>(own + kv_heads * span_len * KEY_SIZE + head * span_len * VALUE_SIZE,
                         values + span * span_stride + head * value_head,
                         value_scales + span * scales_span + head * value_scales_head, value_token,
                         value_scales_token, span_len);
    }
  }
}
