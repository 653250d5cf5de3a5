// RMS norm and layer norm of rows, with the residual added first where there is one.
//
//   h = x + residual          rounded to T and written back to residual       (RESIDUAL)
//   m = mean(h)               0 without LAYER
//   y = (h - m) / sqrt(mean((h - m)^2) + eps) * (weight + weight_offset) + bias
//   out = y                   rounded to T, or in codes of CODE with scales[row], or with
//                             scales[channels / GROUP, row], and rounded as well where asked
//
// One block per row. A thread reads its packs once, keeps them in registers through the reductions
// and writes the result: every element is read once and written once. The variance is the mean of
// squared differences, not a difference of means, which would cancel. The largest size of an RMS
// norm without a bias is known with the sum of squares: that of h * weight, times what all share.
//
// Macros: T (element), CODE (of the result, where it is quantised: Fp8 or SymmetricInt8), GROUP (of
//         codes that share a scale; 0: a row), THREADS, VECTOR (elements per load), PACKS (loads
//         per thread), LAYER, RESIDUAL, BIAS (0 or 1).
// Demands: channels % VECTOR == 0; channels <= THREADS * PACKS * VECTOR; rows contiguous.

#ifdef CODE
using Out = unsigned char;
constexpr bool kScalesLast = !LAYER && !BIAS && GROUP == 0;
#else
using Out = T;
constexpr bool kScalesLast = false;
#endif

// Left alone, ptxas spills from rows of several packs to fit another block onto an SM.
constexpr int kBlocksPerSM = PACKS == 1 ? 3 : 1;

extern "C" __global__ void __launch_bounds__(THREADS, kBlocksPerSM)
    norm_rows(Out* __restrict__ out, float* __restrict__ scales, T* __restrict__ rounded,
              T* __restrict__ residual, const T* x, const T* __restrict__ weight,
              const T* __restrict__ bias, int channels, float eps, float weight_offset) {
  const size_t row = static_cast<size_t>(blockIdx.x) * channels;
  const auto begin = [](int k) { return static_cast<int>(threadIdx.x + k * THREADS) * VECTOR; };

  // No earlier kernel writes the weights; more than two packs would take registers from the row.
  constexpr bool kEarly = PACKS <= 2;
  Pack<T, VECTOR> early[PACKS];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (kEarly && begin(k) < channels) early[k] = pack_at<VECTOR>(weight + begin(k));
  }
  const auto weights_of = [&](int k) {
    return kEarly ? early[k] : pack_at<VECTOR>(weight + begin(k));
  };
  let_next_kernel_start();
  wait_for_kernel_before();

  float held[PACKS][VECTOR];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (begin(k) >= channels) continue;
    load_floats<VECTOR>(held[k], x + row + begin(k));
    if constexpr (RESIDUAL) {
      float before[VECTOR];
      load_floats<VECTOR>(before, residual + row + begin(k));
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        held[k][v] = to_float(from_float<T>(held[k][v] + before[v]));
      }
    }
    if constexpr (!kScalesLast) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) sum += LAYER ? held[k][v] : square(held[k][v]);
    }
  }
  if constexpr (RESIDUAL) {  // after all loads, which might otherwise have to wait for them
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (begin(k) < channels) store_floats<VECTOR>(residual + row + begin(k), held[k]);
    }
  }

#ifdef CODE
  if constexpr (kScalesLast) {
    float most = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (begin(k) >= channels) continue;
      const auto weights = weights_of(k);
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        float& h = held[k][v];
        sum += square(h);
        h *= to_float(weights.at[v]) + weight_offset;
        most = fmaxf(most, fabsf(h));
      }
    }
    const SumAndMost of_row = block_sum_and_max<THREADS>(sum, most);
    const float scale = rsqrtf(of_row.sum / channels + eps);
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) held[k][v] *= scale;
      if (rounded && begin(k) < channels) {
        store_floats<VECTOR>(rounded + row + begin(k), held[k]);
      }
    }
    store_row_of_size<CODE, THREADS>(of_row.most * scale, out + row, scales + blockIdx.x, held,
                                     channels);
    return;
  }
#endif

  float mean = 0.0f;
  float mean_square = block_sum<THREADS>(sum) / channels;
  if constexpr (LAYER) {
    mean = mean_square;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (begin(k) >= channels) continue;
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) squares += square(held[k][v] - mean);
    }
    mean_square = block_sum<THREADS>(squares) / channels;
  }
  const float scale = rsqrtf(mean_square + eps);
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    if (begin(k) >= channels) continue;
    const auto weights = weights_of(k);
    float biases[VECTOR];
    if constexpr (BIAS) load_floats<VECTOR>(biases, bias + begin(k));
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      float& y = held[k][v];
      y = (y - mean) * scale * (to_float(weights.at[v]) + weight_offset);
      if constexpr (BIAS) y += biases[v];
    }
#ifdef CODE
    if (rounded) store_floats<VECTOR>(rounded + row + begin(k), held[k]);
#else
    store_floats<VECTOR>(out + row + begin(k), held[k]);
#endif
  }
#ifdef CODE
  store_coded_row<CODE, THREADS, GROUP>(out + row, scales + blockIdx.x, gridDim.x, held, channels);
#endif
}
