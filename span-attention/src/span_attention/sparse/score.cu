// Scores of an indexer on Hopper: of each token and each key that it sees, the sum over heads of
// weight * relu(query . key).
//
// Products are transposed: keys along the 64 rows of a wgmma, the heads of a tile's tokens along
// its columns, so that a thread adds most heads of a key by itself, and four lanes the rest. The
// order of adding is the same whatever else is computed.
//
// A tile is TOKENS adjacent tokens of one sequence. All tiles' blocks of kBlock keys are one line,
// of which each thread block gets an equal piece.
//
// Macros: T (half or bfloat16), HEADS, TOKENS, STAGES, KEEPS, LEAVES (registers of a thread of a
//         consumer, of the producer).
// Demands: at most kMostTiles tiles.

constexpr int kGroup = 4 * kWarp, kThreads = 3 * kGroup;  // the first warpgroup's first warp copies
constexpr int kBlock = 128, kSize = 128;                  // keys, channels
constexpr int kRowBytes = 128, kColumns = 64, kParts = kSize / kColumns;
constexpr int kKeyTile = kBlock * kRowBytes, kLines = HEADS * TOKENS;
constexpr int kQueryTile = kLines * kRowBytes;
constexpr int kMostTiles = 2048;
static_assert(kLines <= 256 && kLines % 16 == 0, "columns of a wgmma");

struct Shared {
  alignas(1024) unsigned char keys[STAGES][kParts * kKeyTile];
  alignas(1024) unsigned char query[kParts * kQueryTile];
  Barrier full[STAGES], empty[STAGES], query_full, query_empty;
  int ends[kMostTiles];  // of each tile's blocks in the line
  int of_warp[kThreads / kWarp];
};

struct Arguments {
  float* scores;
  long long stride;
  const float* weights;
  const int *span_tables, *table_rows, *lengths;
  long long table_stride;
  int tokens, span_shift, box_tokens;

  __device__ __forceinline__ int tiles() const { return (tokens + TOKENS - 1) / TOKENS; }
  // What the last token of a tile sees.
  __device__ __forceinline__ int seen(int tile) const {
    return lengths[min(tile * TOKENS + TOKENS, tokens) - 1];
  }
};

// Fills shared.ends; all threads call it.
__device__ __forceinline__ void find_ends(Shared& shared, const Arguments& of) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int before = 0;
  for (int first = 0; first < of.tiles(); first += kThreads) {
    const int tile = first + threadIdx.x;
    int sum = tile < of.tiles() ? (of.seen(tile) + kBlock - 1) / kBlock : 0;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int lower = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += lower;
    }
    if (lane == kWarp - 1) shared.of_warp[warp] = sum;
    __syncthreads();
    int all = 0;
    for (int w = 0; w < kThreads / kWarp; ++w) {
      if (w == warp) sum += all;
      all += shared.of_warp[w];
    }
    if (tile < of.tiles()) shared.ends[tile] = before + sum;
    before += all;
    __syncthreads();
  }
}

// Calls `work` with each tile of this thread block, its first block of keys and the end of them.
template <typename Work>
__device__ __forceinline__ void for_each_tile(const Shared& shared, const Arguments& of,
                                              Work work) {
  const int tiles = of.tiles();
  const long long total = shared.ends[tiles - 1];
  int at = static_cast<int>(total * blockIdx.x / gridDim.x);
  const int end = static_cast<int>(total * (blockIdx.x + 1) / gridDim.x);
  if (at >= end) return;
  int tile = 0, high = tiles - 1;
  while (tile < high) {
    const int middle = (tile + high) / 2;
    if (shared.ends[middle] > at) {
      high = middle;
    } else {
      tile = middle + 1;
    }
  }
  for (; at < end; ++tile) {
    const int begins = tile ? shared.ends[tile - 1] : 0, stops = min(shared.ends[tile], end);
    if (at < stops) work(tile, at - begins, stops - begins);
    at = stops;
  }
}

// The number of a stage of the ring, and the parity of its turn.
struct Turn {
  int stage = 0, parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
};

// The warp that copies queries and keys.
__device__ __forceinline__ void bring(Shared& shared, const Arguments& of,
                                      const TensorMap& query_map, const TensorMap& key_map) {
  const int lane = threadIdx.x % kWarp, boxes = kBlock / of.box_tokens;
  Turn turn;
  int query_parity = 1;
  for_each_tile(shared, of, [&](int tile, int first, int end) {
    const int* const table =
        of.span_tables + of.table_rows[tile * TOKENS] * of.table_stride;
    const int last_box = (of.seen(tile) - 1) / of.box_tokens;
    wait(&shared.query_empty, query_parity);
    query_parity ^= 1;
    if (lane == 0) {
      arrive_expecting(&shared.query_full, kParts * kQueryTile);
      for (int i = 0; i < kParts; ++i) {
        copy_box(shared.query + i * kQueryTile, query_map, i * kColumns, tile * kLines, 0,
                 &shared.query_full);
      }
    }
    __syncwarp();
    const bool copies = lane < kParts * boxes;
    // Boxes past the last one are that one again: it is there.
    const auto token_of = [&](int block) {
      return min(block * boxes + lane / kParts, last_box) * of.box_tokens;
    };
    const auto span_of = [&](int block) {
      return copies ? table[token_of(block) >> of.span_shift] : 0;
    };
    int span = span_of(first);
    for (int block = first; block < end; ++block) {
      const int next = span_of(block + 1), token = token_of(block);
      wait(&shared.empty[turn.stage], turn.parity ^ 1);
      if (lane == 0) arrive_expecting(&shared.full[turn.stage], kParts * kKeyTile);
      __syncwarp();
      if (copies) {
        const int part = lane % kParts;
        copy_box(shared.keys[turn.stage] + part * kKeyTile +
                     lane / kParts * of.box_tokens * kRowBytes,
                 key_map, part * kColumns, token & ((1 << of.span_shift) - 1), span,
                 &shared.full[turn.stage]);
      }
      span = next;
      turn.next();
    }
  });
}

// A number's relu, NaN of NaN.
__device__ __forceinline__ float positive(float x) {
  float most;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(most) : "f"(x));
  return most;
}

// A warpgroup that has 64 keys of every block.
__device__ __forceinline__ void consume(Shared& shared, const Arguments& of, int group) {
  constexpr int kFragments = kLines / 8, kPerToken = HEADS / 8;
  const int lane = threadIdx.x % kWarp, column = lane % 4;
  const int own = group * 64 + threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  const unsigned query = shared_address(shared.query);
  Turn turn;
  int query_parity = 0;
  for_each_tile(shared, of, [&](int tile, int first, int end) {
    float2 weights[TOKENS == 1 ? kPerToken : 1];
    const int token = tile * TOKENS;
    const auto weights_at = [&](int t, int n) {
      const float* const from = of.weights + (min(token + t, of.tokens - 1)) * HEADS;
      return *reinterpret_cast<const float2*>(from + 8 * n + 2 * column);
    };
    if constexpr (TOKENS == 1) {
#pragma unroll
      for (int n = 0; n < kPerToken; ++n) weights[n] = weights_at(0, n);
    }
    wait(&shared.query_full, query_parity);
    query_parity ^= 1;
    for (int block = first; block < end; ++block) {
      float products[kFragments][4];
      wait(&shared.full[turn.stage], turn.parity);
      const unsigned keys = shared_address(shared.keys[turn.stage]) + group * 64 * kRowBytes;
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kSize / 16; ++k) {
        const int part = k / 4, within = k % 4 * 32;
        Wgmma<T, kFragments>::of_tiles(
            products, tile_at<kRowBytes>(keys + part * kKeyTile + within, 16),
            tile_at<kRowBytes>(query + part * kQueryTile + within, 16), k > 0);
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(products);
      __syncwarp();
      arrive_if(lane == 0, &shared.empty[turn.stage]);
      if (block + 1 == end) arrive_if(lane == 0, &shared.query_empty);
      turn.next();
#pragma unroll
      for (int t = 0; t < TOKENS; ++t) {
        float sums[2] = {0.0f, 0.0f};
#pragma unroll
        for (int n = 0; n < kPerToken; ++n) {
          const float (&of_heads)[4] = products[t * kPerToken + n];
          const float2 weight = TOKENS == 1 ? weights[TOKENS == 1 ? n : 0] : weights_at(t, n);
#pragma unroll
          for (int row = 0; row < 2; ++row) {
            sums[row] = fmaf(weight.x, positive(of_heads[2 * row]), sums[row]);
            sums[row] = fmaf(weight.y, positive(of_heads[2 * row + 1]), sums[row]);
          }
        }
        const bool writes = t % 4 == column && token + t < of.tokens;
        const int seen = writes ? of.lengths[token + t] : 0;
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          sums[row] += __shfl_xor_sync(0xffffffffu, sums[row], 1);
          sums[row] += __shfl_xor_sync(0xffffffffu, sums[row], 2);
          const int position = block * kBlock + own + 8 * row;
          if (position < seen) of.scores[(token + t) * of.stride + position] = sums[row];
        }
      }
    }
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_score(float* scores, long long stride, const __grid_constant__ TensorMap query_map,
                 const __grid_constant__ TensorMap key_map, const float* weights,
                 const int* span_tables, long long table_stride, const int* table_rows,
                 const int* lengths, int tokens, int span_shift, int box_tokens) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Arguments of{scores,  stride,       weights, span_tables, table_rows,
                     lengths, table_stride, tokens,  span_shift,  box_tokens};
  if (threadIdx.x == 0) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], 8);
    }
    init_barrier(&shared.query_full, 1);
    init_barrier(&shared.query_empty, 8);
    publish_barriers();
  }
  wait_for_kernel_before();
  find_ends(shared, of);
  __syncthreads();
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEAVES));
    if (threadIdx.x < kWarp) bring(shared, of, query_map, key_map);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    consume(shared, of, group - 1);
  }
  let_next_kernel_start();
}
