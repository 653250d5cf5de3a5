// Stored elements -> pairs of 16-bit floats, which the tensor cores take.
//
// Each type describes a 32-bit word of stored elements, lowest first:
//   kBits      bits of an element;  kScales  float32 per token: 0, scale, zero point + scale
//   Number     the 16-bit float that elements become;  kPairs  pairs that a word becomes
//   kStep, kGap    pair r holds the elements r * kStep and r * kStep + kGap of the word
//   kLow, kHigh    prmt selectors that join words of two tokens so that pair r of the joined words
//                  holds element r, or r + kPairs, of both
//   kUnit      the element is (number - kBias) * kUnit, before zero point and scale
//   kOddUnit   the same for pairs of odd r
//   widen      the pairs of a word
//
// Integer codes become halves with the code as mantissa and an exponent of 0: subnormal numbers,
// which tensor cores multiply exactly. Zero points and biases are never applied to elements either:
// the sums of queries and of weights, times them, are subtracted from the products.
//
// Needs types.cuh.

// (x & mask) ^ with, in one instruction: from two constants the compiler makes two.
template <unsigned kMask, unsigned kWith>
__device__ __forceinline__ unsigned masked_xor(unsigned x) {
  unsigned y;
  asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(y) : "r"(x), "n"(kMask), "r"(kWith));
  return y;
}

template <typename Element>
struct Plain {
  static constexpr int kBits = 16, kScales = 0, kPairs = 1, kStep = 2, kGap = 1;
  static constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
  static constexpr float kUnit = 1.0f, kOddUnit = kUnit, kBias = 0.0f;
  using Number = Element;

  static __device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[1]) {
    pairs[0] = word;
  }
};

struct Fp8Codes {
  static constexpr int kBits = 8, kScales = 1, kPairs = 2, kStep = 2, kGap = 1;
  static constexpr unsigned kLow = 0x5140, kHigh = 0x7362;
  static constexpr float kBias = 0.0f;
  using Number = half;

#if __CUDA_ARCH__ >= 890
  static constexpr float kUnit = 1.0f, kOddUnit = kUnit;

  static __device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[2]) {
    asm("{\n.reg .b16 low, high;\nmov.b32 {low, high}, %2;\n"
        "cvt.rn.f16x2.e4m3x2 %0, low;\ncvt.rn.f16x2.e4m3x2 %1, high;\n}"
        : "=r"(pairs[0]), "=r"(pairs[1])
        : "r"(word));
  }
#else
  // e4m3 has the bits of a half whose exponent is 8 smaller, subnormal numbers included.
  static constexpr float kUnit = 256.0f, kOddUnit = kUnit;

  static __device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[2]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const unsigned raised = __byte_perm(word, 0, r == 0 ? 0x1404 : 0x3424);
      pairs[r] = (raised & 0x80008000u) | ((raised >> 1) & 0x3f803f80u);
    }
  }
#endif
};

struct Int8Codes {
  static constexpr int kBits = 8, kScales = 2, kPairs = 2, kStep = 1, kGap = 2;
  static constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
  static constexpr float kUnit = 1 << 24, kOddUnit = kUnit, kBias = 128.0f;
  using Number = half;

  static __device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[2]) {
    pairs[0] = masked_xor<0x00ff00ffu, 0x00800080u>(word);
    pairs[1] = masked_xor<0x00ff00ffu, 0x00800080u>(word >> 8);
  }
};

struct Uint4Codes {
  static constexpr int kBits = 4, kScales = 2, kPairs = 4, kStep = 1, kGap = 4;
  static constexpr unsigned kLow = 0x5410, kHigh = 0x7632;
  static constexpr float kUnit = 1 << 24, kOddUnit = 1 << 20, kBias = 0.0f;
  using Number = half;

  static __device__ __forceinline__ void widen(unsigned word, unsigned (&pairs)[4]) {
#pragma unroll
    for (int r = 0; r < 4; r += 2) {
      pairs[r] = (word >> (4 * r)) & 0x000f000fu;
      pairs[r + 1] = (word >> (4 * r)) & 0x00f000f0u;
    }
  }
};
