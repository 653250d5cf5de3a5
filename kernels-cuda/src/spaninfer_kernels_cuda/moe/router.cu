// The logits of experts in float32: logits[t e] = weight[e] . x[t] + bias[e].
//
// A block takes 16 experts and 8 tokens, operands A and B of mma.sync; its warps share channels.
// A lane loads 16 bytes of a row, which are its parts of two fragments: channels are multiplied in
// another order than they lie in, the same for both operands. So nothing passes through shared
// memory but sums. The first weights are loaded while the previous kernel still runs.
//
// A sum depends on neither the other tokens nor their number.
//
// Macros: T (element), CHANNELS, LOADS (of a row that a lane has at once), WARPS (of a block).
// Demands: CHANNELS a multiple of 8; rows 16-byte aligned.

constexpr int kExperts = 16, kTokens = 8;  // of a block, as mma.sync has them
constexpr int kStep = 4 * kVector;         // channels of a load: of four lanes
constexpr int kRound = WARPS * LOADS * kStep;
constexpr bool kIsWhole = CHANNELS % kRound == 0;
constexpr int kPadded = kExperts + 1;  // so that lanes write to different banks

struct Fragments {
  unsigned of[LOADS][4];

  // Loads the channels from `at` on of a row, zeros where it has ended or does not exist.
  __device__ __forceinline__ void load(const T* row, int at, bool exists) {
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int channel = at + n * kStep;
      const Load part = load_if(row + channel, exists && (kIsWhole || channel < CHANNELS));
      memcpy(of[n], &part, sizeof(part));
    }
  }
};

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    moe_router(float* logits, const T* x, const T* weight, const T* bias, int tokens, int experts) {
  __shared__ float parts[WARPS][kTokens][kPadded];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int expert = blockIdx.x * kExperts, token = blockIdx.y * kTokens;
  const T* upper = weight + static_cast<size_t>(min(expert + g, experts - 1)) * CHANNELS;
  const T* lower = weight + static_cast<size_t>(min(expert + g + 8, experts - 1)) * CHANNELS;
  const T* row = x + static_cast<size_t>(min(token + g, tokens - 1)) * CHANNELS;
  float sum[4] = {};
#pragma unroll 1
  for (int begin = 0; begin < CHANNELS; begin += kRound) {
    const int at = begin + warp * LOADS * kStep + t * kVector;
    Fragments above, below, own;
    above.load(upper, at, expert + g < experts);
    below.load(lower, at, expert + g + 8 < experts);
    if (begin == 0) {
      let_next_kernel_start();
      wait_for_kernel_before();
    }
    own.load(row, at, token + g < tokens);
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
#pragma unroll
      for (int pair = 0; pair < 4; pair += 2) {
        const unsigned a[4] = {above.of[n][pair], below.of[n][pair], above.of[n][pair + 1],
                               below.of[n][pair + 1]};
        multiply_add<T>(sum, a, own.of[n][pair], own.of[n][pair + 1]);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) parts[warp][2 * t + i % 2][g + i / 2 * 8] = sum[i];
  __syncthreads();
  const int of_token = threadIdx.x / kExperts, of_expert = threadIdx.x % kExperts;
  if (of_token >= kTokens || token + of_token >= tokens || expert + of_expert >= experts) return;
  float logit = bias ? to_float(bias[expert + of_expert]) : 0.0f;
#pragma unroll
  for (int n = 0; n < WARPS; ++n) logit += parts[n][of_token][of_expert];
  logits[static_cast<size_t>(token + of_token) * experts + expert + of_expert] = logit;
}
