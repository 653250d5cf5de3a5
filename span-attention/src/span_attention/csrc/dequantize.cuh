// Dequantisation of the KV cache (codes.cuh), 16 bytes at a time.
//
// Needs types.cuh, codes.cuh.

// The format of elements in the cache: bits of each, float32 scales per token and head.
template <typename Stored>
struct Storage {
  static constexpr int kBits = Stored::kBits, kScales = Stored::kScales;
};
template <>
struct Storage<half> {
  static constexpr int kBits = 16, kScales = 0;
};
template <>
struct Storage<bfloat16> {
  static constexpr int kBits = 16, kScales = 0;
};

// Code number `index` of `word` as a number, before zero point and scale.
template <typename Code>
__device__ __forceinline__ float code_value(unsigned word, int index) {
  const unsigned code = word >> (index * Code::kBits);
  if constexpr (Code::kBits == 4) {
    return static_cast<float>(code & 15u);
  } else if constexpr (Code::kScales == 2) {
    return static_cast<float>(static_cast<signed char>(code & 255u));
  } else {
    // The bits of a half whose exponent is 8 smaller, subnormal numbers included.
    const unsigned short bits = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
    return 256.0f * __half2float(__ushort_as_half(bits));
  }
}

// Dequantises 16 bytes of codes to `to`, aligned to 16 bytes. `numbers` are the scales of the token
// and head.
template <typename Element, typename Code>
__device__ __forceinline__ void dequantize_16(Element* to, uint4 codes, const float* numbers) {
  constexpr int kPerWord = 32 / Code::kBits, kPacks = 4 * kPerWord / 8;
  float zero = 0.0f, scale;
  if constexpr (Code::kScales == 2) {
    const float2 both = *reinterpret_cast<const float2*>(numbers);
    zero = both.x, scale = both.y;
  } else {
    scale = *numbers;
  }
  const unsigned words[4] = {codes.x, codes.y, codes.z, codes.w};
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack) {
    Pack<Element, 8> wide;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const int index = pack * 8 + i;
      const float code = code_value<Code>(words[index / kPerWord], index % kPerWord);
      wide.at[i] = from_float<Element>((code - zero) * scale);
    }
    reinterpret_cast<Pack<Element, 8>*>(to)[pack] = wide;
  }
}
