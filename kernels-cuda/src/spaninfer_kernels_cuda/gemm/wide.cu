// GEMM on Hopper in tiles of 128, 192 or 256 tokens by 64 to 144 weight rows, for M of 65 and more.
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
// Macros: T (half, bfloat16), GROUPS (2 or 3), BLOCKS (of 64 rows of x that a warpgroup has), ROWS
//         (of the weight that a tile has; a size of Wgmma), STAGES, SPLITS, GATED, ACT (a function
//         of activate.cuh).
// Demands: K % 8 == 0; N % 8 == 0, GATED: N % 16 == 0; bias, residual and out at multiples of 4
//          bytes; SPLITS > 1: a cluster for every tile, and SPLITS chunks or more; maps whose boxes
//          are kChunk elements of kTokens rows of x, and of ROWS rows of the weight (GATED: of 8
//          of the gate, then their 8 of up, and so on).

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(T);
constexpr int kSteps = kChunk / 16;
constexpr int kGroup = 4 * kWarp;
constexpr int kMultiply = GROUPS * kGroup;  // consumer threads; the producer group follows
constexpr int kBlockRows = 64;              // of x

constexpr int kTokens = GROUPS * BLOCKS * kBlockRows;
constexpr int kFragments = ROWS / 8;       // of accumulators, side by side
constexpr int kPerResult = GATED ? 2 : 1;  // of those, what makes 8 columns of results
constexpr int kResults = kFragments / kPerResult;

constexpr int kWeightBytes = ROWS * kLineBytes;
constexpr int kStageBytes = kWeightBytes + kTokens * kLineBytes;

// Registers of a thread: consumers take what the producer group gives up.
constexpr int kKept = GROUPS == 2 ? 232 : 160, kLeft = GROUPS == 2 ? 40 : 24;
static_assert((GROUPS * kKept + kLeft) * kGroup <= 65536, "registers of an SM");
static_assert(SPLITS == 1 || kTokens * ROWS * 4 <= STAGES * kStageBytes, "room for acc");

using Accumulators = float[BLOCKS][kFragments][4];

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
};

using Turn = TurnOf<STAGES>;

// A block's next chunk and its unit of work: a weight tile with a tile of x.
struct ChunkCursor {
  int unit, chunk;
};

// A block's share of the work: a part of the chunks of some units.
struct WorkRange {
  int begin, end;          // chunks
  int first, step, units;  // first, first + step, .. below units
  int across;              // units in a row that have the same tile of the weight

  static __device__ __forceinline__ WorkRange of(int tokens, int rows, int inner) {
    const int chunks = (inner + kChunk - 1) / kChunk, split = blockIdx.x % SPLITS;
    const int across = (tokens + kTokens - 1) / kTokens;
    return {chunks * split / SPLITS,
            chunks * (split + 1) / SPLITS,
            static_cast<int>(blockIdx.x) / SPLITS,
            static_cast<int>(gridDim.x) / SPLITS,
            (rows + ROWS - 1) / ROWS * across,
            across};
  }

  __device__ __forceinline__ int count() const {
    return (units - first + step - 1) / step * (end - begin);
  }
  __device__ __forceinline__ ChunkCursor start() const { return {first, begin}; }
  __device__ __forceinline__ void advance(ChunkCursor& place) const {
    if (++place.chunk == end) place = {place.unit + step, begin};
  }
  // Rows of x change fastest, so that a weight is read again while the L2 cache has it.
  __device__ __forceinline__ int token_of(int unit) const { return unit % across * kTokens; }
  __device__ __forceinline__ int tile_of(int unit) const { return unit / across; }
};

__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const TensorMap& weight,
                                            const WorkRange& range, const ChunkCursor& place,
                                            CachePolicy policy) {
  arrive_expecting(&shared.full[stage], kStageBytes);
  const int row = range.tile_of(place.unit) * ROWS;
  copy_box(shared.stages[stage], weight, place.chunk * kChunk, GATED ? 0 : row, 0,
           GATED ? row / 16 : 0, &shared.full[stage], policy);
}

__device__ __forceinline__ void copy_x(Shared& shared, int stage, const TensorMap& x,
                                       const WorkRange& range, const ChunkCursor& place) {
  copy_box(shared.stages[stage] + kWeightBytes, x, place.chunk * kChunk, range.token_of(place.unit),
           0, &shared.full[stage]);
}

// The producer.
__device__ __forceinline__ void copy_chunks(Shared& shared, const TensorMap& weight,
                                            const TensorMap& x, const WorkRange& range) {
  const CachePolicy once = read_once();
  const int count = range.count();
  ChunkCursor place = range.start();
  for (int n = 0; n < min(STAGES, count); ++n, range.advance(place)) {
    copy_weight(shared, n, weight, range, place, once);
  }
  wait_for_kernel_before();
  place = range.start();
  for (int n = 0; n < min(STAGES, count); ++n, range.advance(place)) {
    copy_x(shared, n, x, range, place);
  }
  Turn turn;
  for (int n = STAGES; n < count; ++n, range.advance(place), turn.next()) {
    wait(&shared.empty[turn.stage], turn.parity);
    copy_weight(shared, turn.stage, weight, range, place, once);
    copy_x(shared, turn.stage, x, range, place);
  }
  let_next_kernel_start();
}

// Issues the wgmmas of a chunk. `adds` is false for the first one of a tile.
__device__ __forceinline__ void multiply_chunk(Accumulators& acc, const unsigned char* stage,
                                               int group, bool adds) {
  const unsigned weight = shared_address(stage);
  const unsigned x = weight + kWeightBytes + group * BLOCKS * kBlockRows * kLineBytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int step = k * 16 * sizeof(T);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) {
      Wgmma<T, kFragments>::of_tiles(
          acc[block], tile_at<kLineBytes>(x + block * kBlockRows * kLineBytes + step, 0),
          tile_at<kLineBytes>(weight + step, 0), adds || k > 0);
    }
  }
  wgmma_commit();
}

// The arrays that results go to, and those that are added.
struct Target {
  T* out;
  const T *bias, *residual;
  int tokens, columns;

  __device__ __forceinline__ bool has(int token, int column) const {
    return token < tokens && column < columns;
  }
};

// Turns accumulators into results and writes them: `count` fragments side by side, at most kMost,
// of tokens `token` and the eighth after it, columns from `column` on. All is read before anything
// is written: `out` may be `residual`, and the compiler must keep the order.
template <int kMost>
__device__ __forceinline__ void finish(const float (*acc)[4], const Target& target, int token,
                                       int column, int count) {
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
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      float y = acc[n * kPerResult][i] + bias[i % 2];
      if constexpr (GATED) y = ACT(y) * (acc[n * kPerResult + 1][i] + up_bias[i % 2]);
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

// Writes a tile that this block has accumulated alone; `token` and `column` are the thread's first.
__device__ __forceinline__ void finish_tile(const Accumulators& acc, const Target& target,
                                            int token, int column) {
  constexpr int kBatch = 4;  // whose loads are in flight together
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
#pragma unroll
    for (int n = 0; n < kResults; n += kBatch) {
      finish<kBatch>(&acc[block][n * kPerResult], target, token + block * kBlockRows,
                     column + 8 * n, min(kBatch, kResults - n));
    }
  }
}

__device__ __forceinline__ void sync_multiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiply) : "memory");
}

// The same where the blocks of a cluster hold partial accumulators (split-K): each finishes some
// fragments, adding the partials in all blocks' `shared` memory, always in the same order.
__device__ __forceinline__ void finish_split(const Accumulators& acc, float4* shared,
                                             const Target& target, int token, int column) {
  constexpr int kWarps = 4 * GROUPS;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  sync_multiplying();  // all have multiplied: the ring is free for other use
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const int line = (warp / 4 * BLOCKS + block) * 4 + warp % 4;  // of 16 tokens
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const float (&sum)[4] = acc[block][n];
      shared[(line * kFragments + n) * kWarp + lane] =
          make_float4(sum[0], sum[1], sum[2], sum[3]);
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
    finish<1>(whole, target, token + result / kResults * 16, column + result % kResults * 8, 1);
  }
  sync_cluster();  // others may still read what this block has put there
}

// A consumer warpgroup.
__device__ __forceinline__ void multiply(Shared& shared, const Target& target,
                                         const WorkRange& range) {
  const int group = threadIdx.x / kGroup, warp = threadIdx.x % kGroup / kWarp;
  const int lane = threadIdx.x % kWarp;
  Turn turn;
  for (int unit = range.first; unit < range.units; unit += range.step) {
    Accumulators acc;
    int before = 0;  // the buffer of the chunk before
    for (int chunk = range.begin; chunk < range.end; ++chunk, turn.next()) {
      wait(&shared.full[turn.stage], turn.parity);
      multiply_chunk(acc, shared.stages[turn.stage], group, chunk > range.begin);
      wgmma_wait<1>();
      if (chunk > range.begin && lane == 0) arrive(&shared.empty[before]);
      before = turn.stage;
    }
    wgmma_wait<0>();
    if (lane == 0) arrive(&shared.empty[before]);
#pragma unroll
    for (int block = 0; block < BLOCKS; ++block) pin(acc[block]);
    const int token = range.token_of(unit) + lane / 4;
    const int column = range.tile_of(unit) * kResults * 8 + lane % 4 * 2;
    if constexpr (SPLITS > 1) {
      finish_split(acc, reinterpret_cast<float4*>(shared.stages), target, token, column);
    } else {
      finish_tile(acc, target, token + group * BLOCKS * kBlockRows + warp * 16, column);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kMultiply + kGroup, 1)
    gemm(T* out, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x,
         const T* bias, const T* residual, int tokens, int rows, int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == kMultiply) {
    prefetch_map(x);
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], GROUPS * 4);  // a lane of each warp
    }
    publish_barriers();
  }
  __syncthreads();

  const WorkRange range = WorkRange::of(tokens, rows, inner);
  if (threadIdx.x >= kMultiply) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
    if (threadIdx.x == kMultiply) copy_chunks(shared, weight, x, range);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
    wait_for_kernel_before();
    multiply(shared, {out, bias, residual, tokens, GATED ? rows / 2 : rows}, range);
  }
}

// Initialises fresh memory as a workspace for other kernels: this one needs none.
extern "C" __global__ void gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
