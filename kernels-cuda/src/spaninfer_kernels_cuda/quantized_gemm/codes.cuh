// The codes of a packed weight, as fragments of A for the tensor cores.
//
// A record holds 64 rows of the weight by 128 columns, all that a warpgroup needs of a chunk:
//
//   codes    of warp w = 0 .. 3, rows 16 w and on: loads of 16 bytes for each of 32 lanes
//   scales   half [groups of columns][64]; none where a whole row shares its factor
//   shifts   as scales: zero points (unsigned short) or minimums (half), where the format has them
//
// A lane's load has the fragments (mma.cuh) of 4 steps of 16 columns, in 8 bits of 2. A step's
// fragment is registers 0 .. 3 of two columns each. Of 4 bits, number n of the 8 lies at 4 (n % 4),
// plus 16 for the second column of a register, so that one mask cuts out a register's pair; in 8
// bits and in tables the two columns of a register are neighbours.
//
// For x in e4m3, a load has the fragments of 2 steps of 32 columns, and a register four columns. A
// word holds two registers, the second one rotated by 4 bits; each of their bytes has a sign in bit
// 7, and in bits 0 .. 2 code - 8, or 7 - code of what is negative: one less than its size.
//
//   W[n k] = factor[n] * (scale * (code - zero))  or  factor[n] * (scale * code - minimum)
//
// Codes without zero points or minimums are centred on 2^(BITS-1), but for floats (E4M3, E2M1).
//
// Macros: T (half, bfloat16), OPERAND (of x: T or e4m3, for whole numbers of 4 bits in groups from
//         32 columns, SHIFT 0), BITS (4, 8), GROUP (16 to 128 columns that share a scale; 0: all),
//         SHIFT (0 none, 1 zero points, 2 minimums), E4M3 (codes of 8 bits are floats, SHIFT is 0),
//         E2M1 (codes of 4 bits are).
//
// Needs types.cuh, mma.cuh.

constexpr int kChunk = 128;  // columns
constexpr bool kInCodes = sizeof(OPERAND) == 1;  // x, and the weight's fragments
constexpr int kStepColumns = 32 / sizeof(OPERAND);
constexpr int kSteps = kChunk / kStepColumns;
constexpr int kBlockRows = 64;
constexpr int kCodeBytes = kBlockRows * kChunk * BITS / 8;
constexpr int kScaleGroups = GROUP ? kChunk / (GROUP ? GROUP : 1) : 0;
constexpr int kGroupSteps = GROUP ? GROUP / kStepColumns : kSteps;
constexpr int kScaleBytes = kScaleGroups * kBlockRows * 2;
constexpr int kRecordBytes = kCodeBytes + kScaleBytes * (SHIFT ? 2 : 1);
constexpr int kStepWords = kStepColumns * BITS / 64;
constexpr int kLoadSteps = 4 / kStepWords;  // of a load of 16 bytes
constexpr int kLoads = kSteps / kLoadSteps;

static_assert(!kInCodes || (BITS == 4 && GROUP >= 32 && SHIFT == 0 && !E2M1), "codes for e4m3");

template <typename Element>
constexpr bool kIsHalf = false;
template <>
constexpr bool kIsHalf<half> = true;

// 1024 + code as half and 128 + code as bfloat16 are bits beside each other; bfloat16 has too few
// of them for 8, float has 2^23 + code.
constexpr bool kThroughFloat = BITS == 8 && !E4M3 && !kIsHalf<T>;
constexpr unsigned kMagic = kIsHalf<T> ? 0x64006400u : 0x43004300u;
constexpr unsigned kFloatMagic = 0x4b000000u;

// The number that a code's magic number exceeds its value by, as it is subtracted.
__device__ __forceinline__ unsigned origin_of(unsigned zero) {
  return kThroughFloat ? kFloatMagic | zero : kMagic | zero * 0x00010001u;
}

// A lane's numbers of a group: of rows g and g + 8 of its warp's.
struct GroupNumbers {
  unsigned origin[2];
  float scale[2], minimum[2];

  static __device__ __forceinline__ GroupNumbers of(const unsigned char* record, int group, int row,
                                                    float2 factor) {
    constexpr unsigned kCentre = SHIFT == 0 ? 1u << (BITS - 1) : 0u;
    GroupNumbers numbers = {{origin_of(kCentre), origin_of(kCentre)}, {1.0f, 1.0f}, {}};
    if constexpr (GROUP == 0) return numbers;
    const unsigned char* at = record + kCodeBytes + (group * kBlockRows + row) * 2;
    const half* scales = reinterpret_cast<const half*>(at);
    numbers.scale[0] = __half2float(scales[0]) * factor.x;
    numbers.scale[1] = __half2float(scales[8]) * factor.y;
    if constexpr (SHIFT == 1) {
      const auto* zeros = reinterpret_cast<const unsigned short*>(at + kScaleBytes);
      numbers.origin[0] = origin_of(zeros[0]);
      numbers.origin[1] = origin_of(zeros[8]);
    }
    if constexpr (SHIFT == 2) {
      const half* minimums = reinterpret_cast<const half*>(at + kScaleBytes);
      numbers.minimum[0] = __half2float(minimums[0]) * factor.x;
      numbers.minimum[1] = __half2float(minimums[8]) * factor.y;
    }
    return numbers;
  }
};

template <typename Element>
struct PairOf {
  using Type = __nv_bfloat162;
};
template <>
struct PairOf<half> {
  using Type = half2;
};

// The difference of two pairs of T.
__device__ __forceinline__ unsigned subtract(unsigned from, unsigned what) {
  using Pair = PairOf<T>::Type;
  const Pair difference =
      __hsub2(*reinterpret_cast<const Pair*>(&from), *reinterpret_cast<const Pair*>(&what));
  return *reinterpret_cast<const unsigned*>(&difference);
}

// Code number n of a step, less its origin.
__device__ __forceinline__ float exact(const unsigned* words, int n, unsigned origin) {
  const unsigned bits = __byte_perm(words[n / 4], kFloatMagic, 0x7440 + n % 4);
  return __uint_as_float(bits) - __uint_as_float(origin);
}

// bits & mask | kMagic by one instruction: the compiler makes two of it, for want of a register.
__device__ __forceinline__ unsigned cut_out(unsigned bits) {
  unsigned pair;
  asm("lop3.b32 %0, %1, 0x000f000f, %2, 0xea;" : "=r"(pair) : "r"(bits), "r"(kMagic));
  return pair;
}

// Two neighbouring e4m3 codes as a pair of T, exactly: their bits go where T has sign, exponent and
// mantissa, and a power of two makes up for another origin of exponents.
__device__ __forceinline__ unsigned floats_of_codes(unsigned word, bool upper) {
  using Pair = PairOf<T>::Type;
  const unsigned bytes = __byte_perm(word, 0, upper ? 0x3424 : 0x1404);  // upper halves of 16 bits
  const unsigned bits =
      (bytes & 0x80008000u) | (bytes & 0x7f007f00u) >> (kIsHalf<T> ? 1 : 4);
  constexpr unsigned kPower = kIsHalf<T> ? 0x5c005c00u : 0x7b807b80u;  // 2^8, 2^120
  const Pair pair = __hmul2(*reinterpret_cast<const Pair*>(&bits),
                            *reinterpret_cast<const Pair*>(&kPower));
  return *reinterpret_cast<const unsigned*>(&pair);
}

// Pair i of a step's e2m1 codes as a pair of T, exactly, in the same way.
__device__ __forceinline__ unsigned floats_of_nibbles(unsigned word, int i) {
  using Pair = PairOf<T>::Type;
  const unsigned moved = word << (12 - 4 * i);
  const unsigned bits = (moved & 0x80008000u) | (moved & 0x70007000u) >> (kIsHalf<T> ? 3 : 6);
  constexpr unsigned kPower = kIsHalf<T> ? 0x74007400u : 0x7e807e80u;  // 2^14, 2^126
  const Pair pair = __hmul2(*reinterpret_cast<const Pair*>(&bits),
                            *reinterpret_cast<const Pair*>(&kPower));
  return *reinterpret_cast<const unsigned*>(&pair);
}

// With exponents 0 and 1, the bits of an e4m3 count 2^-9: so many of them are one of a code.
constexpr float kCodeUnits = kInCodes ? 512.0f : 1.0f;

// Four codes less 8 as e4m3 in units of 2^-9, exactly: what is negative gets the one that its size
// was stored without, as 8 would not fit into three bits.
__device__ __forceinline__ unsigned e4m3_of_nibbles(unsigned bytes) {
  const unsigned signs = bytes & 0x80808080u;
  return (bytes & 0x87878787u) + (signs >> 7);
}

// A step's codes less their origins: exact.
__device__ __forceinline__ void centre(unsigned (&a)[4], const unsigned* words,
                                       const GroupNumbers& numbers) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned origin = numbers.origin[i % 2];
    if constexpr (kInCodes) {
      const unsigned word = words[i / 2];
      a[i] = e4m3_of_nibbles(i % 2 ? __funnelshift_r(word, word, 4) : word);
    } else if constexpr (E4M3) {
      a[i] = floats_of_codes(words[i / 2], i % 2);
    } else if constexpr (E2M1) {
      a[i] = floats_of_nibbles(words[0], i);
    } else if constexpr (BITS == 4) {
      a[i] = subtract(cut_out(words[0] >> 4 * i), origin);
    } else if constexpr (kThroughFloat) {
      a[i] = pack_pair<T>(exact(words, 2 * i, origin), exact(words, 2 * i + 1, origin));
    } else {
      a[i] = subtract(__byte_perm(words[i / 2], kMagic, i % 2 ? 0x5352 : 0x5150), origin);
    }
  }
}

__device__ __forceinline__ float2 floats_of(unsigned pair) {
  if constexpr (kIsHalf<T>) return __half22float2(*reinterpret_cast<const half2*>(&pair));
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}

// A step's weights, rounded to T.
__device__ __forceinline__ void dequantize(unsigned (&a)[4], const unsigned* words,
                                           const GroupNumbers& numbers) {
  if constexpr (!kThroughFloat) centre(a, words, numbers);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = i % 2;
    float2 codes;
    if constexpr (kThroughFloat) {
      codes = make_float2(exact(words, 2 * i, numbers.origin[row]),
                          exact(words, 2 * i + 1, numbers.origin[row]));
    } else {
      codes = floats_of(a[i]);
    }
    const float scale = numbers.scale[row];
    if constexpr (SHIFT == 2) {
      const float minimum = numbers.minimum[row];
      a[i] = pack_pair<T>(fmaf(codes.x, scale, -minimum), fmaf(codes.y, scale, -minimum));
    } else {
      a[i] = pack_pair<T>(codes.x * scale, codes.y * scale);
    }
  }
}

// A lane's load number `load` of a record.
__device__ __forceinline__ void load_words(unsigned (&words)[4], const unsigned char* record,
                                           int warp, int load) {
  const int at = ((warp * kLoads + load) * kWarp + threadIdx.x % kWarp) * 16;
  const uint4 loaded = *reinterpret_cast<const uint4*>(record + at);
  words[0] = loaded.x;
  words[1] = loaded.y;
  words[2] = loaded.z;
  words[3] = loaded.w;
}
