// A chunk of a quantised weight times a chunk of x by mma.sync.
//
// A stage in shared memory has x, in tiles of 128 bytes of each row (half a chunk, all of it in
// e4m3) whose 16-byte vectors are permuted as TMA does, then a record of codes for each group of 64
// weight rows.
//
// Macros: those of codes.cuh; TOKENS, GROUPS, FOLD.
//
// Needs codes.cuh.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kLineColumns = kLineBytes / sizeof(OPERAND);
constexpr int kLineSteps = kLineColumns / kStepColumns;

constexpr int kColumns = TOKENS / 8;
using Sums = float[kColumns][4];  // C fragments (mma.cuh)

constexpr int kHalfBytes = TOKENS * kLineBytes;  // of x: half a chunk, of e4m3 all of it
constexpr int kXBytes = kChunk / kLineColumns * kHalfBytes;
constexpr int kUsedBytes = kXBytes + GROUPS * kRecordBytes;
constexpr int kStageBytes = (kUsedBytes + 1023) / 1024 * 1024;
constexpr bool kFolds = FOLD && GROUP != 0;
static_assert(kFolds || !kInCodes, "scales would not be exact in e4m3");
constexpr int kSumSteps = kFolds ? kGroupSteps : kSteps;  // whose products are summed apart

// A multiplying warp's place, and the factors of its lane's rows.
struct Lane {
  int group, warp, lane;  // warp: of the warpgroup
  float2 factor;

  __device__ __forceinline__ int row() const { return warp * 16 + lane / 4; }
};

// A step's fragment of A: codes where scales are applied to sums, else weights.
__device__ __forceinline__ void make_fragment(unsigned (&a)[4], const unsigned* words,
                                              const GroupNumbers& numbers) {
  if constexpr (kFolds || GROUP == 0) {
    centre(a, words, numbers);
  } else {
    dequantize(a, words, numbers);
  }
}

__device__ __forceinline__ void clear(Sums& acc) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] = 0.0f;
  }
}

// acc += scale * part, where scales are applied to sums.
__device__ __forceinline__ void fold(Sums& acc, const Sums& part,
                                     const GroupNumbers& numbers) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if constexpr (kFolds) {
        acc[j][i] = fmaf(numbers.scale[i / 2], part[j][i], acc[j][i]);
      } else {
        acc[j][i] += part[j][i];
      }
    }
  }
}

// acc *= factor.
__device__ __forceinline__ void scale(Sums& acc, float2 factor) {
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] *= i < 2 ? factor.x : factor.y;
  }
}

__device__ __forceinline__ void multiply_chunk(Sums& acc,
                                               const unsigned char* stage, const Lane& own) {
  const unsigned char* record = stage + kXBytes + own.group * kRecordBytes;
  const unsigned x = shared_address(stage);
  const int line = own.lane % 8, vector = own.lane / 8;
  // Sums of even and odd steps: a warp waits for one product while another is made.
  constexpr int kChains = TOKENS <= 16 && kSumSteps > 1 ? 2 : 1;
  Sums parts[kChains];
  GroupNumbers numbers = GroupNumbers::of(record, 0, own.row(), own.factor);
  unsigned words[4], tokens[kColumns][4];  // tokens: B of two steps
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % kLoadSteps == 0) load_words(words, record, own.warp, step / kLoadSteps);
    if (step % 2 == 0) {
      const unsigned half = x + step / kLineSteps * kHalfBytes;
      const int first = step % kLineSteps * 2 + vector;  // of the 16-byte vectors of a line
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        load_matrices(tokens[j], half + (8 * j + line) * kLineBytes + ((first ^ line) << 4));
      }
    }
    if (GROUP && step > 0 && step % kGroupSteps == 0) {
      numbers = GroupNumbers::of(record, step / kGroupSteps, own.row(), own.factor);
    }
    if (step % kSumSteps < kChains) clear(parts[step % kChains]);
    unsigned a[4];
    make_fragment(a, words + step % kLoadSteps * kStepWords, numbers);
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      multiply_add<OPERAND>(parts[step % kChains][j], a, tokens[j][step % 2 * 2],
                            tokens[j][step % 2 * 2 + 1]);
    }
    if ((step + 1) % kSumSteps == 0) {
#pragma unroll
      for (int chain = 0; chain < kChains; ++chain) fold(acc, parts[chain], numbers);
    }
  }
}
