// The gates of the delta rule, and the length of queries and keys.

// What is added to the sum of squares of a query or a key (op_reference.UNIT_EPS).
constexpr float kUnitEps = 1e-6f;

// The logarithm of a state's decay: -exp(a_log) * softplus(a + dt_bias).
__device__ __forceinline__ float log_decay(float a, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0f ? x : log1pf(expf(x));
  return -expf(a_log) * softplus;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// One over the length of a row whose squares have this sum.
__device__ __forceinline__ float unit_scale(float squares) { return rsqrtf(squares + kUnitEps); }
