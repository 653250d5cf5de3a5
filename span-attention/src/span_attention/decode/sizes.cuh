// Sizes of a decode that the macros give, what the kernel is called with, what its blocks share.

using Codes = CODES;
using Number = Codes::Number;

constexpr int kThreads = WARPS * kWarp;
constexpr int kHeads = 8 * HEAD_TILES;
constexpr int kTile = TILES * kMmaTokens;
constexpr int kPerWord = 32 / Codes::kBits;
constexpr unsigned kAll = 0xffffffffu;

// Of a lane's `bytes` of a row: the words of 4 bytes of the widest load that fits them.
__device__ constexpr int words_of_load(int bytes) {
  return bytes % 16 == 0 ? 4 : bytes % 8 == 0 ? 2 : 1;
}

constexpr int kKeyBytes = KEY_SIZE * Codes::kBits / 8, kValueBytes = VALUE_TILE * Codes::kBits / 8;
constexpr int kKeyWords = words_of_load(kKeyBytes / 4);
constexpr int kValueWords = words_of_load(kValueBytes / 8);
constexpr int kKeyLoads = kKeyBytes / (4 * 4 * kKeyWords) / KEY_PARTS;
constexpr int kValueLoads = ceil_div(kValueBytes, 8 * 4 * kValueWords) / VALUE_PARTS;

constexpr int kSteps = KEY_SIZE / 16;  // products along the elements of a key
constexpr int kStepsPerLoad = kKeyWords * Codes::kPairs / 2;
constexpr int kRowsPerLoad = kValueWords * kPerWord / 2;       // 16 elements of a result each
constexpr int kRows = kRowsPerLoad * kValueLoads * VALUE_PARTS;

static_assert(kSteps * 16 == KEY_SIZE && kSteps == kStepsPerLoad * kKeyLoads * KEY_PARTS, "keys");
static_assert(kKeyWords * Codes::kPairs % 2 == 0, "a load of keys is whole products");
static_assert(kRows * 16 >= VALUE_TILE && kRows * 16 < VALUE_TILE + 8 * kRowsPerLoad * 2, "values");
static_assert(VALUE_SIZE % VALUE_TILE == 0, "value tiles");

struct Arguments {
  T* out;
  const T* query;
  const int *span_tables, *table_rows, *seq_lens;
  Plan plan;
  float4* parts;
  const char *keys, *values, *key_scales, *value_scales;
  const float *alibi_slopes, *sinks;
  float scale, softcap;
  int window, requests, group, kv_heads, span_shift;  // group: query heads of a key head
  long long table_stride, query_stride;
  unsigned span_stride;  // in bytes, as are those from head to head
  unsigned key_head, value_head, key_scale_head, value_scale_head;
  float* lse;
};


// A lane's softmax and result of an item: of its heads, over the tokens that
// its warp has seen, the largest score (that of the warp), the sum of weights (over the lane's
// tokens) and the weighted sum of values, as fragments. Two of them become one by `join`.
struct Accumulators {
  float most[HEAD_TILES][2], sum[HEAD_TILES][2];
  float bias[HEAD_TILES][2];  // what is to be taken off the result: of the lane's tokens, in kUnit
  float at[kRows][HEAD_TILES][4];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      most[n][0] = most[n][1] = hidden();
      sum[n][0] = sum[n][1] = bias[n][0] = bias[n][1] = 0.0f;
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
#pragma unroll
        for (int e = 0; e < 4; ++e) at[row][n][e] = 0.0f;
      }
    }
  }
};

// The same in memory: for each 8 heads, first the sums of softmax, then the rows of the result.
constexpr int kPartRows = HEAD_TILES * (1 + kRows);
using Part = float4[kPartRows][kWarp];

// The merge at a block's end: its own part of an item with those of its sources.
struct Merge {
  int request, kv_head, section;
  int first;  // the block that the item begins in; -1: nothing to merge
};

struct Shared {
  uint2 query[WARPS][HEAD_TILES][kSteps][kWarp];  // fragments: each lane reads what it wrote
  Part parts[WARPS + 1];                          // of items open at a warp's end; of `merge`
  int begins[WARPS];                              // the first tile of each warp
  Merge merge;
};

// The query heads that a warp computes together, and the elements of their results.
struct Heads {
  int head, count;  // query heads
  int element;      // the first of VALUE_TILE

  __device__ __forceinline__ Heads(const Arguments& of, int kv_head, int section) {
    const int skipped = section / (VALUE_SIZE / VALUE_TILE) * kHeads;
    head = kv_head * of.group + skipped;
    count = min(of.group - skipped, kHeads);
    element = section % (VALUE_SIZE / VALUE_TILE) * VALUE_TILE;
  }
};
