// Sizes of a decode that the macros give, what the kernel is called with, what its blocks share.

using Codes = CODES;
using Number = Codes::Number;

constexpr int kThreads = WARPS * kWarp;
constexpr int kHeads = 8 * HEAD_TILES;
constexpr int kTile = TILES * kTogether;
constexpr int kPerWord = 32 / Codes::kBits;
constexpr unsigned kAll = 0xffffffffu;
constexpr unsigned kLowHalves = 0x5410, kHighHalves = 0x7632;  // of two words, for prmt

// Of a lane's `bytes` of a row: the words of 4 bytes of the widest load that fits them.
__device__ constexpr int words_of_load(int bytes) { return bytes % 16 == 0 ? 4 : bytes % 8 == 0 ? 2 : 1; }

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

// Pairs of neighbouring elements are added up over warps, some rows at a time. The pitches spread
// what half a warp writes, and what it reads, over all banks.
constexpr int kAtOnce = kRows < 4 ? kRows : 4;
constexpr int kHeadPitch = 20, kRowPitch = 8 * kHeadPitch + 8;  // floats
constexpr int kSlot = kHeads * (2 + VALUE_TILE);  // floats of a part: sums of softmax, then result
constexpr float kResultScale = 1 << Codes::kExponent;

struct Strides {  // in bytes
  long long head;
  unsigned token;
};

struct Arguments {
  T* out;
  const T* query;
  const int *tables, *rows, *lengths;
  const Work* works;
  float* parts;
  const char *keys, *values, *key_numbers, *value_numbers;
  const float *alibi, *sinks;
  float scale, softcap;
  int window, requests, heads, kv_heads, span_shift;
  long long table_stride, query_stride, span_stride;
  Strides key, value, key_number, value_number;
};

struct Shared {
  uint2 query[HEAD_TILES][kSteps][kWarp];  // as fragments
  Rest stats[WARPS][kHeads];
  Rest total[kHeads];
  union {
    float sums[WARPS][kAtOnce][kRowPitch];
    Part part[kThreads];
  };
  bool is_last;
};

// The query heads of a request that a block computes together, and the tokens they see.
struct Item {
  int request, kv_head;
  int head, count;     // query heads
  int element;         // the first of the VALUE_TILE elements of the results
  int first, length;   // they see the tokens [first, length)
  int begin, end;      // units
  int number;          // among those of all requests
  const int* table;
};

using Spans = long long[TILES];  // bytes from the first span to those of a tile

// A range of an item's tokens, as a lane sees it.
struct Range {
  const char *keys, *values, *key_numbers, *value_numbers;  // of the lane's part of span 0
  const int* table;
  int from, to;  // its tokens, those of the item's window alone

  // This token, or the nearest one of the range.
  __device__ __forceinline__ int inside(int token) const { return max(from, min(token, to - 1)); }

  // The spans of a tile. Those behind the range are that of its last token: they can be read.
  __device__ __forceinline__ void look_up(int (&spans)[TILES], int token, int span_shift) const {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      spans[i] = __ldcg(&table[min(token + i * kTogether, to - 1) >> span_shift]);
    }
  }
};
