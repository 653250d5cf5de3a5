// The results of a token's experts as one row, in the order of its choices, and its norm:
//
//   s = residual[t] + sum_j shares[t j] y[place[t j]]
//   out[t] = s                                                              rounded to T
//   normed[t] = s / sqrt(mean(s^2) + eps) * (norm_weight + weight_offset)   (NORM)
//
// A block per token. Pairs of no expert (-1) have no row in y.
//
// Macros: T (element), THREADS, CHOICES (top_k), PACKS (loads of a row per thread), NORM (0 or 1).
// Demands: channels a multiple of 8, at most 8 THREADS PACKS; rows 16-byte aligned.

constexpr int kTogether = CHOICES < 8 ? CHOICES : 8;  // rows that are loaded at once
// One block leaves a thread 64 registers where it holds one load, and all where it holds more.
constexpr int kBlocksPerSM = PACKS == 1 ? 1024 / THREADS : 1;

// Adds this token's rows at `at` to `sum`.
__device__ __forceinline__ void add_rows(float (&sum)[kVector], const T* y, const int* ids,
                                         const float* shares, const int* place, int channels,
                                         int at) {
#pragma unroll 1
  for (int first = 0; first < CHOICES; first += kTogether) {
    Load parts[kTogether];
    float weights[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int choice = first + n;
      const bool exists = (CHOICES % kTogether == 0 || choice < CHOICES) && ids[choice] >= 0;
      const size_t row = exists ? place[choice] : 0;
      weights[n] = exists ? shares[choice] : 0.0f;
      parts[n] = load_if(y + row * channels + at, exists);
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) sum[v] = fmaf(weights[n], to_float(parts[n].at[v]), sum[v]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, kBlocksPerSM)
    moe_combine(T* out, const T* y, const int* ids, const float* shares, const int* place,
                const T* residual, T* normed, const T* norm_weight, float eps, float weight_offset,
                int channels) {
  const size_t token = blockIdx.x, pair = token * CHOICES, row = token * channels;
  const auto begin = [](int k) { return static_cast<int>(threadIdx.x + k * THREADS) * kVector; };
  let_next_kernel_start();
  wait_for_kernel_before();
  float held[PACKS][kVector] = {}, squares = 0.0f;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int at = begin(k);
    if (at >= channels) continue;
    if (residual) load_floats<kVector>(held[k], residual + row + at);
    add_rows(held[k], y, ids + pair, shares + pair, place + pair, channels, at);
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      held[k][v] = to_float(from_float<T>(held[k][v]));
      squares = fmaf(held[k][v], held[k][v], squares);
    }
    store_floats<kVector>(out + row + at, held[k]);
  }
#if NORM
  const float scale = rsqrtf(block_sum<THREADS>(squares) / channels + eps);
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int at = begin(k);
    if (at >= channels) continue;
    float weights[kVector];
    load_floats<kVector>(weights, norm_weight + at);
#pragma unroll
    for (int v = 0; v < kVector; ++v) held[k][v] *= scale * (weights[v] + weight_offset);
    store_floats<kVector>(normed + row + at, held[k]);
  }
#endif
}
