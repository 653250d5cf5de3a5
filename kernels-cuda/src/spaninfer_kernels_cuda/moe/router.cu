// The logits of experts in float32: logits[t e] = weight[e] . x[t] + bias[e].
//
// A warp takes an expert and TOKENS tokens, so that the weight is read once for all of them. A sum
// depends on neither the other tokens nor their number.
//
// Macros: T (element), CHANNELS, LOADS (of the weight at once), TOKENS, WARPS (of a block).
// Demands: CHANNELS a multiple of 8; rows 16-byte aligned.

constexpr int kStep = kWarp * kVector;  // elements of a row that a warp loads at once
constexpr bool kIsWhole = CHANNELS % (kStep * LOADS) == 0;

__device__ __forceinline__ bool is_in(int at) { return kIsWhole || at < CHANNELS; }

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    moe_router(float* logits, const T* x, const T* weight, const T* bias, int tokens, int experts) {
  const int lane = threadIdx.x % kWarp, expert = blockIdx.x * WARPS + threadIdx.x / kWarp;
  const int first = blockIdx.y * TOKENS, count = min(TOKENS, tokens - first);
  const bool exists = expert < experts;
  const T* own = weight + static_cast<size_t>(exists ? expert : 0) * CHANNELS;
  float sum[TOKENS] = {};
#pragma unroll 1
  for (int begin = 0; begin < CHANNELS; begin += LOADS * kStep) {
    Load parts[LOADS];
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int at = begin + n * kStep + lane * kVector;
      parts[n] = load_if(own + at, exists && is_in(at));
    }
    if (begin == 0) {
      let_next_kernel_start();
      wait_for_kernel_before();
    }
#pragma unroll
    for (int t = 0; t < TOKENS; ++t) {
      const T* row = x + static_cast<size_t>(first + min(t, count - 1)) * CHANNELS;
#pragma unroll
      for (int n = 0; n < LOADS; ++n) {
        const int at = begin + n * kStep + lane * kVector;
        sum[t] = dot(parts[n], load_if(row + at, t < count && is_in(at)), sum[t]);
      }
    }
  }
#pragma unroll
  for (int t = 0; t < TOKENS; ++t) {
    const float logit = warp_sum(sum[t]);
    if (lane != t || t >= count || !exists) continue;
    const float add = bias ? to_float(bias[expert]) : 0.0f;
    logits[static_cast<size_t>(first + t) * experts + expert] = logit + add;
  }
}
