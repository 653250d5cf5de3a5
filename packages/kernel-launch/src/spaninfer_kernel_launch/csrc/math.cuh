// Small arithmetic that several kernels share.

__device__ __forceinline__ float square(float x) { return x * x; }

// The pair (x, y) rotated by an angle, given as its cosine and sine.
__device__ __forceinline__ float2 rotate(float2 pair, float cosine, float sine) {
  return make_float2(pair.x * cosine - pair.y * sine, pair.y * cosine + pair.x * sine);
}
