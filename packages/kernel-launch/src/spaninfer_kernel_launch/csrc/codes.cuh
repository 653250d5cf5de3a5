// Quantisation to codes of 8 and 4 bits.
//
// A code type is made from the least and the largest element of a group that shares its kScales
// float32 (scale, or zero point and scale), and then quantises elements. Codes of equal inputs
// equal those of numpy in float32.
//
// Needs types.cuh.
#include <cuda_fp8.h>

// Correctly rounded division (IEEE 754) in three instructions instead of a dozen: the product with
// the inverse, and one correction of it (Markstein 1990).
struct Divisor {
  float value, inverse;

  __device__ __forceinline__ explicit Divisor(float by)
      : value(by), inverse(fminf(1.0f / by, 3.4e38f)) {}  // finite for divisors below 3e-39 too
  __device__ __forceinline__ float quotient(float x) const {
    const float near = x * inverse;
    return fmaf(fmaf(-near, value, x), inverse, near);
  }
};

// The scale that maps numbers up to `size` to at most `last`.
__device__ __forceinline__ float symmetric_scale(float size, float last) {
  const float scale = size / last;
  return scale == 0.0f ? 1.0f : scale;
}

// e4m3(x / scale), scale = largest size / 448. Value: code * scale.
struct Fp8 {
  static constexpr int kBits = 8, kScales = 1;
  Divisor scale;

  __device__ __forceinline__ Fp8(float least, float most)
      : scale(symmetric_scale(fmaxf(-least, most), 448.0f)) {}
  __device__ __forceinline__ unsigned code(float x) const {
    return __nv_cvt_float_to_fp8(scale.quotient(x), __NV_SATFINITE, __NV_E4M3);
  }
  __device__ __forceinline__ void keep(float* numbers) const { *numbers = scale.value; }
};

// whole(x / scale), scale = largest size / 127. Value: code * scale.
struct SymmetricInt8 {
  static constexpr int kBits = 8, kScales = 1;
  Divisor scale;

  __device__ __forceinline__ SymmetricInt8(float least, float most)
      : scale(symmetric_scale(fmaxf(-least, most), 127.0f)) {}
  __device__ __forceinline__ unsigned code(float x) const {
    return static_cast<unsigned>(__float2int_rn(scale.quotient(x))) & 0xffu;
  }
  __device__ __forceinline__ void keep(float* numbers) const { *numbers = scale.value; }
};

// whole(x / scale + zero) from kFirst to kLast; the zero point is such a code. Value: (code - zero)
// * scale.
template <int kWidth, int kFirst>
struct Asymmetric {
  static constexpr int kBits = kWidth, kScales = 2;
  static constexpr float kLast = kFirst + (1 << kWidth) - 1;
  Divisor scale;
  float zero;

  __device__ __forceinline__ Asymmetric(float least, float most)
      : scale(fmaxf((fmaxf(most, 0.0f) - fminf(least, 0.0f)) / (kLast - kFirst), 1e-5f)),
        zero(nearest(kFirst - scale.quotient(fminf(least, 0.0f)))) {}
  __device__ __forceinline__ unsigned code(float x) const {
    const int whole = static_cast<int>(nearest(scale.quotient(x) + zero));
    return static_cast<unsigned>(whole) & ((1u << kBits) - 1);
  }
  __device__ __forceinline__ void keep(float* numbers) const {
    *reinterpret_cast<float2*>(numbers) = make_float2(zero, scale.value);
  }
  static __device__ __forceinline__ float nearest(float x) {
    return rintf(fminf(fmaxf(x, kFirst), kLast));
  }
};

using Int8 = Asymmetric<8, -128>;
using Uint4 = Asymmetric<4, 0>;

// The codes of two elements, the first one lower.
template <typename Code>
__device__ __forceinline__ unsigned codes_of(const Code& by, float first, float second) {
  return by.code(first) | by.code(second) << Code::kBits;
}
template <>
__device__ __forceinline__ unsigned codes_of<Fp8>(const Fp8& by, float first, float second) {
  const float2 pair = make_float2(by.scale.quotient(first), by.scale.quotient(second));
  return __nv_cvt_float2_to_fp8x2(pair, __NV_SATFINITE, __NV_E4M3);  // by one instruction
}

template <int kBits>
struct PairOf {
  using Word = unsigned short;
};
template <>
struct PairOf<4> {
  using Word = unsigned char;
};

// Writes the codes of N elements, first one lowest, as whole bytes in one store.
template <int N, typename Code>
__device__ __forceinline__ void store_codes(unsigned char* to, const Code& by, const float* x) {
  if constexpr (N % 2 == 0) {
    using Word = typename PairOf<Code::kBits>::Word;
    Pack<Word, N / 2> words;
#pragma unroll
    for (int n = 0; n < N; n += 2) {
      words.at[n / 2] = static_cast<Word>(codes_of(by, x[n], x[n + 1]));
    }
    *reinterpret_cast<Pack<Word, N / 2>*>(to) = words;
  } else {
    static_assert(Code::kBits == 8, "whole bytes");
#pragma unroll
    for (int n = 0; n < N; ++n) to[n] = static_cast<unsigned char>(by.code(x[n]));
  }
}
