// RMS norm and layer norm of rows, with the residual added first where there is one.
//
//   h = x + residual          rounded to T and written back to residual       (RESIDUAL)
//   m = mean(h)               0 without LAYER
//   y = (h - m) / sqrt(mean((h - m)^2) + eps) * (weight + weight_offset) + bias
//
// One block per row. A thread reads its packs once, keeps them in registers through both sums and
// writes the result: every element travels once in each direction. The variance is the mean of
// squared differences, not a difference of means, which would cancel.
//
// Macros: T (element), THREADS, VECTOR (elements per load), PACKS (loads per thread),
//         LAYER, RESIDUAL, BIAS (0 or 1).
// Demands: channels % VECTOR == 0; channels <= THREADS * PACKS * VECTOR; rows contiguous.

using Elements = Pack<T, VECTOR>;

extern "C" __global__ void __launch_bounds__(THREADS)
    norm_rows(T* __restrict__ out, T* __restrict__ residual, const T* __restrict__ x,
         const T* __restrict__ weight, const T* __restrict__ bias, int channels, float eps,
         float weight_offset) {
  const int packs = channels / VECTOR;
  const size_t row = static_cast<size_t>(blockIdx.x) * packs;
  const Elements* x_row = reinterpret_cast<const Elements*>(x) + row;
  Elements* out_row = reinterpret_cast<Elements*>(out) + row;
  Elements* residual_row = reinterpret_cast<Elements*>(residual) + row;

  Elements held[PACKS];
  float sum = 0.0f;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= packs) continue;
    held[k] = x_row[i];
    if constexpr (RESIDUAL) {
      const Elements before = residual_row[i];
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) {
        held[k].at[v] = from_float<T>(to_float(held[k].at[v]) + to_float(before.at[v]));
      }
      residual_row[i] = held[k];
    }
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const float h = to_float(held[k].at[v]);
      sum += LAYER ? h : square(h);
    }
  }

  float mean = 0.0f;
  float mean_square = block_sum<THREADS>(sum) / channels;
  if constexpr (LAYER) {
    mean = mean_square;
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < PACKS; ++k) {
      if (threadIdx.x + k * THREADS >= packs) continue;
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) squares += square(to_float(held[k].at[v]) - mean);
    }
    mean_square = block_sum<THREADS>(squares) / channels;
  }
  const float scale = rsqrtf(mean_square + eps);

#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int i = threadIdx.x + k * THREADS;
    if (i >= packs) continue;
    const Elements weights = reinterpret_cast<const Elements*>(weight)[i];
    Elements biases;
    if constexpr (BIAS) biases = reinterpret_cast<const Elements*>(bias)[i];
    Elements result;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      float y = (to_float(held[k].at[v]) - mean) * scale;
      y *= to_float(weights.at[v]) + weight_offset;
      if constexpr (BIAS) y += to_float(biases.at[v]);
      result.at[v] = from_float<T>(y);
    }
    out_row[i] = result;
  }
}
