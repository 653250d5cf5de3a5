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
//
// Needs copy.cuh, overlap.cuh, wgmma.cuh, ring.cuh, wide_tile.cuh, wide_results.cuh.

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
  TileRows rows[GROUPS];
};

using Turn = TurnOf<STAGES>;

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
    const int first = place.token + in_tile * kGroupTokens;  // of the group's tokens
    const int column = place.tile * kResults * 8 + lane % 4 * 2;
    const int in_group = warp * 16 + lane / 4, own = first + in_group;
    const Alternation order{group, unit == range.first, unit + range.step >= range.units};
    order.begin();
    target.fetch(shared.rows[group], first, column - lane % 4 * 2);
    Sums acc;
    if constexpr (kScaling == Scaling::blocks) {
      multiply_blocks(acc, shared, turn, target, range, order, own, column - lane % 4 * 2);
    } else {
      multiply_chunks(acc, shared, turn, range, order);
    }
    target.await_rows();
    if constexpr (SPLITS > 1) {
      finish_split(acc, reinterpret_cast<float4*>(shared.stages), target, shared.rows,
                   place.token + lane / 4, column);
    } else {
      const auto rows = SumRows::at(shared.rows[group], in_group, lane % 4 * 2);
      finish_tile(acc, target, rows, own, column);
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
