// Small-M GEMM on Hopper (GEMV at one token): out[M C] from x[M K] and weight[N K].
//
// Memory-bound: the weight is what has to be read. So 64 of its rows are operand A of a wgmma, and
// the M rows of x, padded to TOKENS (at least 8, the smallest wgmma N), are operand B. A producer
// warp copies chunks of both by TMA into a ring of STAGES buffers and runs ahead across tile
// boundaries; GROUPS consumer warpgroups multiply 64 weight rows each. Blocks share the work as
// stream_k.cuh says.
//
// Weights do not depend on the previous kernel, so the ring is filled with them while that one
// runs. A block that takes half of an SM lets the next kernel do the same beside it: between
// consecutive GEMMs, memory is hardly ever idle.
//
// Macros: T (half, bfloat16), OPERAND (of x and the weight: T, e4m3 or int8), SCALES (of codes:
//         rows or blocks of scales.cuh; none), TOKENS (a size of Wgmma), GROUPS, STAGES, SPLITS
//         (blocks of a cluster, each with a part of K of one tile; with 1 all blocks share all
//         tiles), GATED, ACT (a function of activate.cuh).
// Demands: gridDim.y times TOKENS hold the M rows of x; rows of whole 16 bytes; a tile has at least
//          SPLITS chunks; GATED: N % 16 == 0; maps whose boxes are kChunk elements of TOKENS rows
//          of x, and of kRows rows of the weight (GATED: of 8 of the gate, then their 8 of up, and
//          so on); flags zero, as every launch leaves them.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(OPERAND);
constexpr int kStepBytes = 32, kSteps = kLineBytes / kStepBytes;
constexpr Scaling kScaling = Scaling::SCALES;
constexpr int kWgmmaRows = 64;

struct Kernel {
  using Element = T;
  static constexpr bool kGated = GATED;
  static constexpr int kThreads = GROUPS * 4 * kWarp;  // consumers
  static constexpr int kRows = GROUPS * kWgmmaRows;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kColumns = TOKENS / 8;
  static constexpr int kBlocks = SPLITS;  // of a cluster

  static __device__ __forceinline__ float activated(float x) { return ACT(x); }
  static __device__ __forceinline__ void sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

constexpr int kWeightBytes = Kernel::kRows * kLineBytes;
constexpr int kStageBytes = kWeightBytes + TOKENS * kLineBytes;

constexpr bool kInCluster = SPLITS > 1;

// Tile.shared_bytes counts what is used: `reduction` only if kInCluster, without trailing padding.
struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
  ClusterReduction<Kernel> reduction;
};

using Turn = TurnOf<STAGES>;

// Weights are read once: the L2 cache may evict them first.
__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const TensorMap& weight,
                                            const ChunkCursor& place, CachePolicy once) {
  const int k = place.chunk * kChunk;
  const int row = GATED ? 0 : place.tile * Kernel::kRows;
  const int pairs = GATED ? place.tile * (Kernel::kRows / 16) : 0;
  copy_box(shared.stages[stage], weight, k, row, 0, pairs, &shared.full[stage], once);
}

__device__ __forceinline__ void copy_x(Shared& shared, int stage, const TensorMap& x,
                                       const ChunkCursor& place) {
  copy_box(shared.stages[stage] + kWeightBytes, x, place.chunk * kChunk, blockIdx.y * TOKENS, 0,
           &shared.full[stage]);
}

// The producer. The next kernel may start as soon as all blocks of this one have, and fill its ring
// long before this one ends. Against a start at the last copy, a step of Qwen2.5-7B takes 3731 us
// instead of 3782 at one token, and 4390 instead of 4534 at 32 (H200, 2026-11-21).
__device__ __forceinline__ void copy_chunks(Shared& shared, const TensorMap& weight,
                                            const TensorMap& x, const WorkRange& range) {
  const CachePolicy once = read_once();
  fill_ring<STAGES, true>(
      shared, range,
      [&](int stage, const ChunkCursor& place) {
        arrive_expecting(&shared.full[stage], kStageBytes);
        copy_weight(shared, stage, weight, place, once);
      },
      [&](int stage, const ChunkCursor& place) { copy_x(shared, stage, x, place); });
}

// Issues the wgmmas of a chunk. `adds` is false where it begins sums.
template <typename Sums>
__device__ __forceinline__ void multiply_chunk(Sums& sums, const unsigned char* stage, int group,
                                               bool adds) {
  const unsigned weight = shared_address(stage) + group * kWgmmaRows * kLineBytes;
  const unsigned x = shared_address(stage) + kWeightBytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int step = k * kStepBytes;
    Wgmma<OPERAND, Kernel::kColumns>::of_tiles(sums, tile_at<kLineBytes>(weight + step, 0),
                                               tile_at<kLineBytes>(x + step, 0), adds || k > 0);
  }
  wgmma_commit();
}

// Accumulates `chunks` chunks, onto `sums` if it `adds`. The wgmmas of one run while the next is
// awaited, so a buffer is free one chunk later.
template <typename Sums>
__device__ __forceinline__ void multiply_chunks(Sums& sums, Shared& shared, Turn& turn, int chunks,
                                                int group, bool speaks, bool adds) {
  int before = turn.stage;
  wait(&shared.full[turn.stage], turn.parity);
  multiply_chunk(sums, shared.stages[turn.stage], group, adds);
  turn.next();
  for (int n = 1; n < chunks; ++n) {
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(sums, shared.stages[turn.stage], group, true);
    wgmma_wait<1>();
    arrive_if(speaks, &shared.empty[before]);
    before = turn.stage;
    turn.next();
  }
  wgmma_wait<0>();
  arrive_if(speaks, &shared.empty[before]);
  pin(sums);
}

// The same for a tile's chunks from `place` on, scaled.
__device__ __forceinline__ void multiply_tile(Accumulators<Kernel>& acc, Shared& shared, Turn& turn,
                                              const ChunkCursor& place, int warp, bool speaks,
                                              const Scales<kScaling, GATED>& scales) {
  if constexpr (kScaling == Scaling::none) {
    multiply_chunks(acc, shared, turn, place.stop - place.chunk, warp / 4, speaks, true);
  } else {
    const int together = kScaling == Scaling::blocks ? 1 : place.stop - place.chunk;
    const int column = column_of<Kernel>(place.tile, warp);
    const int token = blockIdx.y * TOKENS + threadIdx.x % 4 * 2;
    for (int chunk = place.chunk; chunk < place.stop; chunk += together) {
      const auto own = OwnScales<Kernel>::at(scales, column, token, chunk);
      SumOf<OPERAND> sums[Kernel::kColumns][4];
      multiply_chunks(sums, shared, turn, together, warp / 4, speaks, false);
      own.add(acc, sums);
    }
  }
}

// Where two blocks fit into the shared memory of an SM, their registers should fit too.
constexpr int kMostTokens = kScaling == Scaling::none ? 64 : 32;  // sums are kept apart of codes
constexpr int kTwoBlocks =
    STAGES * kStageBytes <= 113 * 1024 && GROUPS <= 2 && TOKENS <= kMostTokens ? 2 : 1;
// And the registers of one group's blocks for few tokens should fit beside the kernels before: with
// 64 instead of 70, a step of one request of Qwen2.5-0.5B takes 613 instead of 615 us (H200, in
// turns, 2026-11-30).
constexpr int kBlocksOfSm = GROUPS == 1 && TOKENS <= 16 ? 6 : kTwoBlocks;

extern "C" __global__ void __launch_bounds__(Kernel::kThreads + kWarp, kBlocksOfSm)
    gemm(T* out, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x,
         const T* bias, const T* residual, const float* x_scales, const float* weight_scales,
         float4* partial, int* flags, int tokens, int rows, int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == Kernel::kThreads) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], GROUPS * 4);  // a lane of each warp
    }
    if constexpr (kInCluster) shared.reduction.open();
    publish_barriers();
    prefetch_map(x);  // or its first copy, which all wait for, would have to fetch it
  }
  __syncthreads();
  if constexpr (kInCluster) arrive_at_cluster();

  const int tiles = (rows + Kernel::kRows - 1) / Kernel::kRows;
  const int chunks = (inner + kChunk - 1) / kChunk;
  const WorkRange range =
      kInCluster ? WorkRange::of_cluster(chunks) : WorkRange::of_grid(tiles, chunks);
  if (threadIdx.x >= Kernel::kThreads) {
    if (threadIdx.x == Kernel::kThreads) copy_chunks(shared, weight, x, range);
    return;
  }
  wait_for_kernel_before();
  const Target<Kernel> target =
      Target<Kernel>{out, bias, residual, partial, flags, tokens, rows}.from_token(blockIdx.y *
                                                                                   TOKENS);
  // From one lane, so that the compiler knows it to be warp-uniform, and tile addresses with it:
  // otherwise it moves four registers for every wgmma, 0.8 % of a 7B step of 64 tokens (H200).
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
  const Added<Kernel> added = added_by_owner<Kernel>(target);
  const auto scales =
      Scales<kScaling, GATED>::of(x_scales, weight_scales, tokens, rows, inner);
  Accumulators<Kernel> acc;
  Turn turn;
  ChunkCursor place = range.start();
  for (int left = range.count(); left > 0;) {
    const int here = place.stop - place.chunk;  // chunks of this tile
    const bool has_all = begin_tile<Kernel>(acc, place, range, target);
    multiply_tile(acc, shared, turn, place, warp, lane == 0, scales);
    place.chunk = place.stop - 1;
    if constexpr (kInCluster) {
      wait_for_cluster();
      finish_with_cluster<Kernel>(acc, shared.reduction, target, added);
    } else {
      finish_tile<Kernel>(acc, place, range, target, has_all);
    }
    range.advance(place);
    left -= here;
  }
}

// Initialises fresh memory as a workspace: `flags` is its beginning.
extern "C" __global__ void gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
