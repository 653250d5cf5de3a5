// The element type of a kernel's tensors, as the macro T says, and packs of it.
//
// Macros: T is float, half or bfloat16.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using bfloat16 = __nv_bfloat16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(half x) { return __half2float(x); }
__device__ __forceinline__ float to_float(bfloat16 x) { return __bfloat162float(x); }

template <typename Element>
__device__ __forceinline__ Element from_float(float x);

template <>
__device__ __forceinline__ float from_float<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ half from_float<half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ bfloat16 from_float<bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

// N elements that one instruction loads or stores. Their address must be a multiple of their size.
template <typename Element, int N>
struct alignas(N * sizeof(Element)) Pack {
  Element at[N];
};
