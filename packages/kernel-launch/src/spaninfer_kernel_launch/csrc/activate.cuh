// Activations of one float, within 1e-6 of the result or of 1: the exponential is the GPU's fast
// one, whose relative error grows with its argument, but where that is large the result is small.

__device__ __forceinline__ float times_sigmoid(float x, float z) {
  return __fdividef(x, 1.0f + __expf(-z));
}

__device__ __forceinline__ float silu(float x) { return times_sigmoid(x, x); }

// The error function for numbers from 0 on, within 2e-7: Abramowitz and Stegun 7.1.26. CUDA's erff
// is nearer, and costs as much as the memory traffic of an element.
__device__ __forceinline__ float erf_of_positive(float x) {
  const float t = __fdividef(1.0f, 1.0f + 0.3275911f * x);
  float sum = fmaf(t, 1.061405429f, -1.453152027f);
  sum = fmaf(t, sum, 1.421413741f);
  sum = fmaf(t, sum, -0.284496736f);
  sum = fmaf(t, sum, 0.254829592f);
  return 1.0f - t * sum * __expf(-x * x);
}

__device__ __forceinline__ float gelu(float x) {
  const float phi = erf_of_positive(0.70710678f * fabsf(x));
  return 0.5f * x + 0.5f * fabsf(x) * phi;  // erf is odd: x erf(x) = |x| erf(|x|)
}

// GELU with tanh in place of erf: (1 + tanh(z)) / 2 is the sigmoid of 2 z.
__device__ __forceinline__ float gelu_tanh(float x) {
  return times_sigmoid(x, 1.5957691f * (x + 0.044715f * x * x * x));
}

__device__ __forceinline__ float quick_gelu(float x) { return times_sigmoid(x, 1.702f * x); }

__device__ __forceinline__ float relu(float x) { return fmaxf(x, 0.0f); }
