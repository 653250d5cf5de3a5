// The element type of a kernel's tensors (macro T), and packs of it.
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

template <int N, typename Element>
__device__ __forceinline__ Pack<Element, N> pack_at(const Element* from) {
  return *reinterpret_cast<const Pack<Element, N>*>(from);
}

// Reads N adjacent elements as floats, with loads of 16 bytes where N has as many.
template <int N, typename Element>
__device__ __forceinline__ void load_floats(float* to, const Element* from) {
  constexpr int kMost = 16 / sizeof(Element), kPack = N < kMost ? N : kMost;
#pragma unroll
  for (int i = 0; i < N; i += kPack) {
    const Pack<Element, kPack> pack = pack_at<kPack>(from + i);
#pragma unroll
    for (int n = 0; n < kPack; ++n) to[i + n] = to_float(pack.at[n]);
  }
}

// Rounds two floats, by one instruction where the elements have 16 bits.
__device__ __forceinline__ void round_pair(float* to, float first, float second) {
  *reinterpret_cast<float2*>(to) = make_float2(first, second);
}
__device__ __forceinline__ void round_pair(half* to, float first, float second) {
  *reinterpret_cast<half2*>(to) = __floats2half2_rn(first, second);
}
__device__ __forceinline__ void round_pair(bfloat16* to, float first, float second) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(first, second);
}

// Writes N floats, rounded to adjacent elements, with stores of 16 bytes where N has as many.
template <int N, typename Element>
__device__ __forceinline__ void store_floats(Element* to, const float* from) {
  constexpr int kMost = 16 / sizeof(Element), kPack = N < kMost ? N : kMost;
#pragma unroll
  for (int i = 0; i < N; i += kPack) {
    Pack<Element, kPack> pack;
    if constexpr (kPack == 1) {
      pack.at[0] = from_float<Element>(from[i]);
    } else {
#pragma unroll
      for (int n = 0; n < kPack; n += 2) round_pair(pack.at + n, from[i + n], from[i + n + 1]);
    }
    *reinterpret_cast<Pack<Element, kPack>*>(to + i) = pack;
  }
}
