// Stored elements -> pairs of 16-bit floats, which the tensor cores take.
//
// Each type says of a 32-bit word of stored elements, lowest first:
//   kBits      bits of an element;  kNumbers  float32 beside those of a token: 0, scale, zero + scale
//   Number     the 16-bit float that elements become;  kPairs  pairs that a word becomes
//   kStep, kGap    pair r holds the elements r * kStep and r * kStep + kGap of the word
//   kExponent  an element is 2^kExponent times the Number it becomes (and times its scale)
//   widen      the pairs of a word; `bias` holds offset(zero) of the pair's two tokens
//
// Of the low (or high) halves of words of two tokens, joined to a word, the pairs hold the same
// element of both.
//
// Codes become whole numbers minus their zero, exactly: halves are exact up to 2048. The trick with
// 0x64: a half whose high byte is 0x64 is 1024 + its low byte.
//
// Needs types.cuh.

__device__ __forceinline__ unsigned bits_of(half2 pair) {
  return *reinterpret_cast<const unsigned*>(&pair);
}
__device__ __forceinline__ half2 halves_of(unsigned bits) {
  return *reinterpret_cast<const half2*>(&bits);
}

// (x & mask) ^ with, in one instruction: of two constants the compiler makes two.
template <unsigned kMask, unsigned kWith>
__device__ __forceinline__ unsigned masked_xor(unsigned x) {
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "n"(kMask), "r"(kWith));
  return y;
}

template <typename Element>
struct Plain {
  static constexpr int kBits = 16, kNumbers = 0, kPairs = 1, kStep = 2, kGap = 1, kExponent = 0;
  using Number = Element;

  static __device__ __forceinline__ float offset(float) { return 0.0f; }
  static __device__ __forceinline__ void widen(unsigned word, unsigned, unsigned (&pairs)[1]) {
    pairs[0] = word;
  }
};

// e4m3 has the bits of a half whose exponent is 8 smaller, subnormal numbers included.
struct Fp8Codes {
  static constexpr int kBits = 8, kNumbers = 1, kPairs = 2, kStep = 1, kGap = 2, kExponent = 8;
  using Number = half;

  static __device__ __forceinline__ float offset(float) { return 0.0f; }
  static __device__ __forceinline__ void widen(unsigned word, unsigned, unsigned (&pairs)[2]) {
    pairs[0] = ((word << 8) & 0x80008000u) | ((word << 7) & 0x3f803f80u);
    pairs[1] = (word & 0x80008000u) | ((word >> 1) & 0x3f803f80u);
  }
};

struct Int8Codes {
  static constexpr int kBits = 8, kNumbers = 2, kPairs = 2, kStep = 1, kGap = 2, kExponent = 0;
  using Number = half;

  static __device__ __forceinline__ float offset(float zero) { return 1024.0f + 128.0f + zero; }
  static __device__ __forceinline__ void widen(unsigned word, unsigned bias, unsigned (&pairs)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned raised = masked_xor<0x00ff00ffu, 0x64806480u>(word >> (8 * r));
      pairs[r] = bits_of(__hsub2(halves_of(raised), halves_of(bias)));  // from 1024 + code + 128
    }
  }
};

struct Uint4Codes {
  static constexpr int kBits = 4, kNumbers = 2, kPairs = 4, kStep = 1, kGap = 4, kExponent = 0;
  using Number = half;

  static __device__ __forceinline__ float offset(float zero) { return 1024.0f + zero; }
  static __device__ __forceinline__ void widen(unsigned word, unsigned bias, unsigned (&pairs)[4]) {
    const half2 low = halves_of(bias), sixteenth = __float2half2_rn(1.0f / 16);
    const half2 high = __hsub2(__float2half2_rn(960.0f), low);  // -(1024 / 16 + zero)
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      const unsigned part = word >> (4 * r);
      const unsigned even = masked_xor<0x000f000fu, 0x64006400u>(part);  // 1024 + code
      const unsigned odd = masked_xor<0x00f000f0u, 0x64006400u>(part);   // 1024 + 16 * code
      pairs[r] = bits_of(__hsub2(halves_of(even), low));
      pairs[r + 1] = bits_of(__hfma2(halves_of(odd), sixteenth, high));
    }
  }
};
