// The tile of wide.cu, and which tiles a block takes.
//
// Macros: as in wide.cu.
//
// Needs reduce.cuh, wgmma.cuh, scales.cuh.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(OPERAND);
constexpr int kStepBytes = 32, kSteps = kLineBytes / kStepBytes;
constexpr Scaling kScaling = Scaling::SCALES;
constexpr int kGroup = 4 * kWarp;
constexpr int kMultiply = GROUPS * kGroup;  // consumer threads; the producer group follows
constexpr int kFirstTurn = 2;  // of the named barriers by which groups alternate
constexpr int kFirstGroup = kFirstTurn + GROUPS;  // of those that a group has to itself
constexpr int kBlockRows = 64;              // of x

constexpr int kSharing = ALTERNATE ? 1 : GROUPS;  // groups that have one tile
constexpr int kGroupTokens = BLOCKS * kBlockRows, kTokens = kSharing * kGroupTokens;
constexpr int kFragments = ROWS / 8;       // of accumulators, side by side
constexpr int kPerResult = GATED ? 2 : 1;  // of those, what makes 8 columns of results
constexpr int kResults = kFragments / kPerResult;

constexpr int kWeightBytes = ROWS * kLineBytes;
constexpr int kStageBytes = kWeightBytes + kTokens * kLineBytes;

// Registers of a thread: consumers take what the producer group gives up.
constexpr int kKept = GROUPS == 2 ? 232 : 160, kLeft = GROUPS == 2 ? 40 : 24;
static_assert((GROUPS * kKept + kLeft) * kGroup <= 65536, "registers of an SM");
static_assert(SPLITS == 1 || !ALTERNATE, "groups of a split tile share it");
static_assert(SPLITS == 1 || kTokens * ROWS * 4 <= STAGES * kStageBytes, "room for acc");

template <typename Sum>
using SumsOf = Sum[BLOCKS][kFragments][4];
using Sums = SumsOf<SumOf<OPERAND>>;

// A block's next chunk and its unit of work: a weight tile with a tile of x.
struct ChunkCursor {
  int unit, chunk;
  int token, tile;  // the unit's first row of x, and its tile of the weight
};

// A block's share of the work: a part of the chunks of some units.
struct WorkRange {
  int begin, end;          // chunks
  int first, step, units;  // first, first + step, .. below units
  int of_x, of_weight;     // tiles
  int band;                // tiles of x that have one tile of the weight in turn

  static __device__ __forceinline__ WorkRange of(int tokens, int rows, int inner, int band) {
    const int chunks = (inner + kChunk - 1) / kChunk, split = blockIdx.x % SPLITS;
    const int of_x = (tokens + kTokens - 1) / kTokens, of_weight = (rows + ROWS - 1) / ROWS;
    return {chunks * split / SPLITS,
            chunks * (split + 1) / SPLITS,
            static_cast<int>(blockIdx.x) / SPLITS,
            static_cast<int>(gridDim.x) / SPLITS,
            of_x * of_weight,
            of_x,
            of_weight,
            band};
  }

  __device__ __forceinline__ int count() const {
    return (units - first + step - 1) / step * (end - begin);
  }
  __device__ __forceinline__ ChunkCursor start() const { return at(first); }
  __device__ __forceinline__ void advance(ChunkCursor& place) const {
    if (++place.chunk == end) place = at(place.unit + step);
  }
  __device__ __forceinline__ ChunkCursor at(int unit) const {
    const int before = unit / (band * of_weight) * band;  // tiles of x, in earlier bands
    const int here = max(min(band, of_x - before), 1), in_band = unit - before * of_weight;
    return {unit, begin, (before + in_band % here) * kTokens, in_band / here};
  }
};
