// The shared memory of a thread block of hopper.cu, and the task that producers hand to consumers.

constexpr int kGroup = 4 * kWarp;
constexpr int kThreads = kGroup * (1 + CONSUMERS);
constexpr int kLines = 64 * CONSUMERS;
constexpr int kColumns = ROW_BYTES / 2;  // elements of a row in shared memory
constexpr int kKeyTiles = (KEY_SIZE + kColumns - 1) / kColumns;
constexpr int kValueTiles = (VALUE_SIZE + kColumns - 1) / kColumns;
constexpr int kWidth = RAGGED ? WIDTH : VALUE_SIZE;  // elements of a head of results
constexpr int kFragments = BLOCK / 8, kAccumulators = VALUE_SIZE / 8;
constexpr int kLeastBlocks = 2;  // of keys, in a part of a task
constexpr int kQueryTile = kLines * ROW_BYTES, kTile = BLOCK * ROW_BYTES;  // bytes

using Tile = TileOf<RAGGED>;

// A consumer's task: a tile, its heads and its blocks of keys.
struct Task {
  Tile tile;
  int kv_head, first_head;
  int first_block, last_block;
  int part, num_parts;  // adjacent thread blocks have the parts of a task
  const int* table;     // spans of its request; none where RAGGED

  // Keeps part `which` of up to `most` with kLeastBlocks each: none after the last.
  __device__ __forceinline__ void split(int which, int most) {
    const int blocks = last_block + 1 - first_block, begin = first_block;
    part = which;
    num_parts = max(min(most, blocks / kLeastBlocks), 1);
    first_block = begin + blocks * part / num_parts;
    last_block = begin + blocks * (part + 1) / num_parts - 1;
  }
};

// Barriers of a ring: buffers that copies have filled, and that every consumer has read.
template <int kStages>
struct Ring {
  Barrier full[kStages], empty[kStages];

  __device__ __forceinline__ void init(int readers) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], readers);
    }
  }
};

// A place in a ring, and the parity of its barriers' phase in this round.
template <int kStages>
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

struct Shared {
  alignas(1024) unsigned char query[QUERY_STAGES][kKeyTiles * kQueryTile];
  alignas(1024) unsigned char keys[STAGES][kKeyTiles * kTile];
  alignas(1024) unsigned char values[STAGES][kValueTiles * kTile];
  Ring<QUERY_STAGES> query_ring;
  Ring<STAGES> key_ring, value_ring;
  Barrier posted[QUERY_STAGES];  // the work is there; its queries may still be in flight
  Task task[QUERY_STAGES];       // emptied with the queries; one without parts is the end
};

// The arguments of a launch that both roles need.
struct Launch {
  Slices slices;
  const int* span_tables;
  const int* table_rows;
  int table_stride, span_shift, heads, pack, kv_heads, box_tokens, window, ahead;
  float* workspace;  // of each part sums[kLines VALUE_SIZE], then of each (most, sum)[kLines]

  __device__ __forceinline__ int packs() const { return heads / pack; }

  // A task: a tile and a group of heads.
  __device__ __forceinline__ Task task(int number) const {
    const int which = number % packs();
    const Tile tile(slices, number / packs(), window, ahead);
    const int* table = nullptr;
    if constexpr (!RAGGED) {
      const long long row = __ldcg(&table_rows[tile.slice]);
      table = span_tables + row * table_stride;
    }
    return {tile,
            which / (packs() / kv_heads),
            which * pack,
            tile.first_key / BLOCK,
            tile.last_key / BLOCK,
            0,
            1,
            table};
  }

  // A part's own place in the workspace is that of the thread block that computes it.
  __device__ __forceinline__ float* acc(int block, int line) const {
    return workspace + (static_cast<long long>(block) * kLines + line) * VALUE_SIZE;
  }
  __device__ __forceinline__ float2* states(int block, int line) const {
    return reinterpret_cast<float2*>(acc(gridDim.x, 0)) + block * kLines + line;
  }
};
