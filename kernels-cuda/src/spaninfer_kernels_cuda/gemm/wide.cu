// GEMM on Hopper in tiles of 128, 192 or 256 tokens by 64 to 256 weight rows, for M of 65 and more.
//
// out[M C] from x[M K] and weight[N K]. Here multiplying costs as much as reading the weight. Rows
// of x are operand A of a wgmma, 64 each; weight rows, any multiple of 16 of them, are operand B,
// so that tiles divide a weight among SMs as evenly as possible. A producer warp copies chunks of
// both by TMA into a ring of STAGES buffers; GROUPS consumer warpgroups multiply. A thread has
// adjacent columns of the result, gates with their up rows.
//
// A block takes one tile after another, and the producer runs ahead across tile boundaries. Where
// tiles are few, the SPLITS blocks of a cluster have a part of K each of one tile, and add their
// accumulators through shared memory (split-K). Weights do not depend on the previous kernel: the
// ring is filled while that one runs.
//
// Tiles are taken in bands: `band` tiles of x, whose rows stay in the L2 cache, with one tile of
// the weight after the other. Where M is large (MANY), a band is one tile, and the weight stays.
//
// Macros: T (half, bfloat16), OPERAND (of x and the weight: T, e4m3 or int8), SCALES (of codes:
//         rows or blocks of scales.cuh; none), GROUPS (2 or 3), ALTERNATE (whether each has tiles
//         of its own), BLOCKS (of 64 rows of x that a warpgroup has), ROWS (of the weight that a
//         tile has; a size of Wgmma; with blocks 128 or less, 144 or 192), STAGES, SPLITS, MANY
//         (0 or 1), VECTORS (whether results are written by 16 bytes), GATED, ACT (a function of
//         activate.cuh, or nothing).
// Demands: rows of whole 16 bytes; N % 8 == 0, GATED: N % 16 == 0; bias, residual and out at
//          multiples of 4 bytes, VECTORS: out of 16; SPLITS > 1: groups do not alternate, a cluster
//          for every tile, and SPLITS chunks or more; maps whose boxes are kChunk elements of
//          kTokens rows of x, and of ROWS rows of the weight (GATED: of 8 of the gate, then their 8
//          of up, and so on).

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(OPERAND);
constexpr int kStepBytes = 32, kSteps = kLineBytes / kStepBytes;
constexpr Scaling kScaling = Scaling::SCALES;
constexpr int kGroup = 4 * kWarp;
constexpr int kMultiply = GROUPS * kGroup;  // consumer threads; the producer group follows
constexpr int kFirstTurn = 2;  // of the named barriers by which groups alternate
constexpr int kBlockRows = 64;              // of x

constexpr int kSharing = ALTERNATE ? 1 : GROUPS;  // groups that have one tile
constexpr int kTokens = kSharing * BLOCKS * kBlockRows;
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

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
};

using Turn = TurnOf<STAGES>;

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

__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const TensorMap& weight,
                                            const ChunkCursor& place, CachePolicy policy) {
  arrive_expecting(&shared.full[stage], kStageBytes);
  const int row = place.tile * ROWS;
  const int x = place.chunk * kChunk, y = GATED ? 0 : row, w = GATED ? row / 16 : 0;
  if constexpr (MANY) {
    copy_box(shared.stages[stage], weight, x, y, 0, w, &shared.full[stage]);
  } else {
    copy_box(shared.stages[stage], weight, x, y, 0, w, &shared.full[stage], policy);
  }
}

__device__ __forceinline__ void copy_x(Shared& shared, int stage, const TensorMap& x,
                                       const ChunkCursor& place) {
  copy_box(shared.stages[stage] + kWeightBytes, x, place.chunk * kChunk, place.token, 0,
           &shared.full[stage]);
}

// The producer.
__device__ __forceinline__ void copy_chunks(Shared& shared, const TensorMap& weight,
                                            const TensorMap& x, const WorkRange& range) {
  const CachePolicy once = read_once();
  fill_ring<STAGES, false>(
      shared, range,
      [&](int stage, const ChunkCursor& place) {
        copy_weight(shared, stage, weight, place, once);
      },
      [&](int stage, const ChunkCursor& place) { copy_x(shared, stage, x, place); });
}

// Gives a buffer back to the producer.
__device__ __forceinline__ void release(Barrier* empty) {
  if (threadIdx.x % kWarp == 0) arrive(empty);
}

// Issues the wgmmas of a chunk. `adds` is false for the first one of a tile.
__device__ __forceinline__ void multiply_chunk(Sums& sums, const unsigned char* stage, int group,
                                               bool adds) {
  const unsigned weight = shared_address(stage);
  const unsigned x = weight + kWeightBytes + group * BLOCKS * kBlockRows * kLineBytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int step = k * kStepBytes;
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      Wgmma<OPERAND, kFragments>::of_tiles(
          sums[block], tile_at<kLineBytes>(x + block * kBlockRows * kLineBytes + step, 0),
          tile_at<kLineBytes>(weight + step, 0), adds || k > 0);
    }
  }
  wgmma_commit();
}

// The arrays that results go to, and those that are added.
struct Target {
  T* out;
  const T *bias, *residual;
  Scales<kScaling, GATED> scales;
  int tokens, columns;

  __device__ __forceinline__ bool has(int token, int column) const {
    return token < tokens && column < columns;
  }

  // Scales of a sum's token and the eighth after it, those of blocks aside, which it contains.
  __device__ __forceinline__ float2 of_tokens(int token) const {
    if constexpr (kScaling != Scaling::rows) return make_float2(1.0f, 1.0f);
    return make_float2(scales.of_x(token, 0), scales.of_x(token + 8, 0));
  }

  // Turns a fragment of sums into floats.
  template <typename Sum>
  __device__ __forceinline__ void scale(float (&scaled)[4], const Sum (&sums)[4], float2 of_tokens,
                                        int column, bool is_up) const {
    float2 of_weights = make_float2(1.0f, 1.0f);
    if constexpr (kScaling == Scaling::rows) of_weights = scales.of_weights(column, is_up);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float of_token = i < 2 ? of_tokens.x : of_tokens.y;
      scaled[i] = static_cast<float>(sums[i]) * (of_token * (i % 2 ? of_weights.y : of_weights.x));
    }
  }
};

// Writes four fragments side by side by vectors of 16 bytes: of each, a thread has two columns of
// eight, and its neighbours the rest. They exchange, so that thread t has fragment t.
__device__ __forceinline__ void store_vectors(const float (*results)[4], const Target& target,
                                              int token, int column, int count) {
  const int own = threadIdx.x % 4;
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    unsigned pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      pairs[n] = pack_pair<T>(results[n][2 * line], results[n][2 * line + 1]);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n & step) continue;
        unsigned &low = pairs[n], &high = pairs[n + step];
        const unsigned theirs = __shfl_xor_sync(0xffffffffu, own & step ? low : high, step);
        (own & step ? low : high) = theirs;
      }
    }
    const int first = column - 2 * own + 8 * own;
    if (own >= count || !target.has(token + 8 * line, first)) continue;
    *reinterpret_cast<uint4*>(target.out + (token + 8 * line) * target.columns + first) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// Turns accumulators into results and writes them: `count` fragments side by side, at most kMost,
// of tokens `token` and the eighth after it, columns from `column` on. All is read before anything
// is written: `out` may be `residual`, and the compiler must keep the order.
template <int kMost, typename Sum>
__device__ __forceinline__ void finish(const Sum (*acc)[4], const Target& target, float2 of_tokens,
                                       int token, int column, int count) {
  float results[kMost][4];
#pragma unroll
  for (int n = 0; n < kMost; ++n) {
    if (n >= count) break;
    const int first = column + 8 * n;
    float bias[2] = {}, up_bias[2] = {};
    if (target.bias && first < target.columns) {
      load_floats<2>(bias, target.bias + first);
      if (GATED) load_floats<2>(up_bias, target.bias + target.columns + first);
    }
    float sum[4], up[4] = {};
    target.scale(sum, acc[n * kPerResult], of_tokens, first, false);
    if constexpr (GATED) target.scale(up, acc[n * kPerResult + 1], of_tokens, first, true);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float y = sum[i] + bias[i % 2];
      y = ACT(y);
      if constexpr (GATED) y *= up[i] + up_bias[i % 2];
      results[n][i] = y;
    }
#pragma unroll
    for (int line = 0; line < 2; ++line) {
      if (!target.residual || !target.has(token + 8 * line, first)) continue;
      float add[2];
      load_floats<2>(add, target.residual + (token + 8 * line) * target.columns + first);
      results[n][2 * line] += add[0];
      results[n][2 * line + 1] += add[1];
    }
  }
  if constexpr (kMost == 4 && VECTORS) {
    store_vectors(results, target, token, column, count);
  } else {
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
      if (n >= count) break;
      const int first = column + 8 * n;
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        if (!target.has(token + 8 * line, first)) continue;
        store_floats<2>(target.out + (token + 8 * line) * target.columns + first,
                        &results[n][2 * line]);
      }
    }
  }
}

// Writes a tile that this block has accumulated alone; `token` and `column` are the thread's first.
template <typename Sum>
__device__ __forceinline__ void finish_tile(const SumsOf<Sum>& acc, const Target& target, int token,
                                            int column) {
  constexpr int kBatch = 4;  // whose loads are in flight together
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const float2 of_tokens = target.of_tokens(token + block * kBlockRows);
#pragma unroll
    for (int n = 0; n < kResults; n += kBatch) {
      finish<kBatch>(&acc[block][n * kPerResult], target, of_tokens, token + block * kBlockRows,
                     column + 8 * n, min(kBatch, kResults - n));
    }
  }
}

__device__ __forceinline__ void sync_multiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiply) : "memory");
}

// The same where the blocks of a cluster hold partial accumulators (split-K): each finishes some
// fragments, adding the partials in all blocks' `shared` memory, always in the same order.
template <typename Sum>
__device__ __forceinline__ void finish_split(const SumsOf<Sum>& acc, float4* shared,
                                             const Target& target, int token, int column) {
  constexpr int kWarps = 4 * GROUPS;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  sync_multiplying();  // all have multiplied: the ring is free for other use
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const int line = (warp / 4 * BLOCKS + block) * 4 + warp % 4;  // of 16 tokens
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const Sum (&sum)[4] = acc[block][n];
      shared[(line * kFragments + n) * kWarp + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
  }
  sync_cluster();
  for (int result = warp * SPLITS + rank_in_cluster(); result < kWarps * BLOCKS * kResults;
       result += kWarps * SPLITS) {
    float whole[kPerResult][4] = {};
#pragma unroll
    for (int rank = 0; rank < SPLITS; ++rank) {
      const float4* part = in_block(shared, rank) + result * kPerResult * kWarp + lane;
#pragma unroll
      for (int i = 0; i < kPerResult; ++i) {
        const float4 sum = part[i * kWarp];
        whole[i][0] += sum.x;
        whole[i][1] += sum.y;
        whole[i][2] += sum.z;
        whole[i][3] += sum.w;
      }
    }
    const int line = token + result / kResults * 16;
    finish<1>(whole, target, target.of_tokens(line), line, column + result % kResults * 8, 1);
  }
  sync_cluster();  // others may still read what this block has put there
}

// The order of groups that alternate. A group begins a tile when the one before has issued the
// products of its own: so it never waits for a phase of a buffer beyond the next.
struct Alternation {
  int group;
  bool is_first, is_last;  // of the block's tiles

  __device__ __forceinline__ void begin() const {
    if (ALTERNATE && !is_first) {
      asm volatile("bar.sync %0, %1;" ::"r"(kFirstTurn + group), "n"(2 * kGroup) : "memory");
    }
  }
  __device__ __forceinline__ void end() const {
    if (ALTERNATE && !is_last) {
      const int next = group + 1 == GROUPS ? 0 : group + 1;
      asm volatile("bar.arrive %0, %1;" ::"r"(kFirstTurn + next), "n"(2 * kGroup) : "memory");
    }
  }
};

// Scales of one block for a thread's sums: fragments of up to two blocks of weight rows.
struct BlockScales {
  float x[BLOCKS][2], weight[2][kPerResult];
  int second;  // the first result of the second of these blocks

  static __device__ __forceinline__ BlockScales at(const Scales<kScaling, GATED>& scales, int token,
                                                   int column, int block) {
    BlockScales own;
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        own.x[n][i] = scales.of_x(token + n * kBlockRows + 8 * i, block);
      }
    }
    const int next = (column / kScaleBlock + 1) * kScaleBlock;
#pragma unroll
    for (int up = 0; up < kPerResult; ++up) {
      own.weight[0][up] = scales.of_weight(column, up, block);
      own.weight[1][up] = scales.of_weight(next, up, block);
    }
    own.second = (next - column) / 8;
    return own;
  }

  __device__ __forceinline__ void add(SumsOf<float>& acc, const Sums& sums) const {
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
        const int up = n % kPerResult;
        const float of_weight = n / kPerResult < second ? weight[0][up] : weight[1][up];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          acc[block][n][i] = fmaf(sums[block][n][i], x[block][i / 2] * of_weight, acc[block][n][i]);
        }
      }
    }
  }
};

// The sums of a tile, each chunk's scaled before it is added.
template <typename Acc>
__device__ __forceinline__ void multiply_blocks(Acc& acc, Shared& shared, Turn& turn,
                                                const Target& target, const WorkRange& range,
                                                const Alternation& order, int token, int column) {
  const int group = ALTERNATE ? 0 : threadIdx.x / kGroup;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) acc[block][n][i] = 0.0f;
    }
  }
  for (int chunk = range.begin; chunk < range.end; ++chunk, turn.next()) {
    const BlockScales own = BlockScales::at(target.scales, token, column, chunk);
    Sums sums;
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(sums, shared.stages[turn.stage], group, false);
    wgmma_wait<0>();
    release(&shared.empty[turn.stage]);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) pin(sums[block]);
    own.add(acc, sums);
  }
  order.end();
}

// The sums of a tile. The wgmmas of one chunk run while the next is awaited.
__device__ __forceinline__ void multiply_chunks(Sums& acc, Shared& shared, Turn& turn,
                                                const WorkRange& range, const Alternation& order) {
  const int group = ALTERNATE ? 0 : threadIdx.x / kGroup;
  int before = 0;  // the buffer of the chunk before
  for (int chunk = range.begin; chunk < range.end; ++chunk, turn.next()) {
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(acc, shared.stages[turn.stage], group, chunk > range.begin);
    wgmma_wait<1>();
    if (chunk > range.begin) release(&shared.empty[before]);
    before = turn.stage;
  }
  order.end();
  wgmma_wait<0>();
  release(&shared.empty[before]);
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) pin(acc[block]);
}

// A consumer warpgroup. Where groups alternate, each has the tiles of its turn: one's results are
// written while the other multiplies.
__device__ __forceinline__ void multiply(Shared& shared, const Target& target,
                                         const WorkRange& range) {
  const int group = threadIdx.x / kGroup, warp = threadIdx.x % kGroup / kWarp;
  const int lane = threadIdx.x % kWarp, in_tile = ALTERNATE ? 0 : group;
  const int turns = ALTERNATE ? range.end - range.begin : 0;  // of a tile of another group
  Turn turn;
  turn.skip(group * turns);
  for (int unit = range.first + (ALTERNATE ? group * range.step : 0); unit < range.units;
       unit += range.step * (ALTERNATE ? GROUPS : 1), turn.skip((GROUPS - 1) * turns)) {
    const ChunkCursor place = range.at(unit);
    const int token = place.token + lane / 4;
    const int column = place.tile * kResults * 8 + lane % 4 * 2;
    const int own = token + in_tile * BLOCKS * kBlockRows + warp * 16;
    const Alternation order{group, unit == range.first, unit + range.step >= range.units};
    order.begin();
    Sums acc;
    if constexpr (kScaling == Scaling::blocks) {
      multiply_blocks(acc, shared, turn, target, range, order, own, column - lane % 4 * 2);
    } else {
      multiply_chunks(acc, shared, turn, range, order);
    }
    if constexpr (SPLITS > 1) {
      finish_split(acc, reinterpret_cast<float4*>(shared.stages), target, token, column);
    } else {
      finish_tile(acc, target, own, column);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kMultiply + kGroup, 1)
    gemm(T* out, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x,
         const T* bias, const T* residual, const float* x_scales, const float* weight_scales,
         int tokens, int rows, int inner, int band) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == kMultiply) {
    prefetch_map(x);
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kSharing * 4);  // a lane of each warp
    }
    publish_barriers();
  }
  __syncthreads();

  const WorkRange range = WorkRange::of(tokens, rows, inner, band);
  if (threadIdx.x >= kMultiply) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
    if (threadIdx.x == kMultiply) copy_chunks(shared, weight, x, range);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
    wait_for_kernel_before();
    const auto scales = Scales<kScaling, GATED>::of(x_scales, weight_scales, tokens, rows, inner);
    multiply(shared, {out, bias, residual, scales, tokens, GATED ? rows / 2 : rows}, range);
  }
}

// Initialises fresh memory as a workspace for other kernels: this one needs none.
extern "C" __global__ void gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
