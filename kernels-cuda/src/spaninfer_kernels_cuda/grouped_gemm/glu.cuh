// Gated activations of two floats, the gate's and up's.
//
// Needs activate.cuh.

template <float (*kAct)(float)>
__device__ __forceinline__ float glu(float gate, float up) {
  return kAct(gate) * up;
}

// That of gpt-oss: gates are at most 7, up within 7 of zero.
__device__ __forceinline__ float clamped_swiglu(float gate, float up) {
  return quick_gelu(fminf(gate, 7.0f)) * (fminf(fmaxf(up, -7.0f), 7.0f) + 1.0f);
}
