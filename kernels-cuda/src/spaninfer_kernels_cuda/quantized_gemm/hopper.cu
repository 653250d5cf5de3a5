// GEMM with a quantised weight on Hopper: out[M C] from x[M K] and weight[N K], dequantised.
//
// The weight's rows are operand A of the tensor cores, from registers: warps turn codes into
// fragments (codes.cuh), and the M rows of x, padded to TOKENS, are operand B in shared memory. A
// producer warp copies records of codes and chunks of x into a ring of STAGES buffers and runs
// ahead across tile boundaries; consumer warpgroups have BLOCKS times 64 weight rows each. Blocks
// share the work as stream_k.cuh says.
//
// Few tokens are multiplied by mma.sync, which a warp has at once; many, and any of e4m3, by wgmma
// (WGMMA), which runs while the next fragments are made (pipeline.cuh, turns.cuh). Scales go to the
// sums of a group of columns (FOLD), which rounds nothing; where tokens are many, and sums with
// them, or where minimums are subtracted, they go to the weights, which are rounded to T. With x in
// e4m3 they go to sums of any number of tokens; scales of tokens follow.
//
// As in gemm/hopper.cu the ring is filled with weights while the previous kernel runs.
//
// Macros: those of codes.cuh; TOKENS (a multiple of 8; WGMMA: a size of Wgmma), GROUPS (of 64 rows
//         of the weight), BLOCKS (of them, that a warpgroup has), BATCH, STAGES,
//         SPLITS (blocks of a cluster, each with a part of K of one tile; with 1 all blocks share
//         all tiles), WGMMA, FOLD, GATED, ACT (a function of activate.cuh).
// Demands: gridDim.y times TOKENS hold the M rows of x; a tile has at least SPLITS chunks; records
//          beyond K hold finite numbers; GATED: 16 rows of records are 8 of the gate, then their 8
//          of up; a map whose boxes are 128 bytes of TOKENS rows of x; x_scales[M] of x in e4m3;
//          flags zero, as every launch leaves them.

constexpr bool kInCluster = SPLITS > 1;

// Scales of x in e4m3, of a block's tokens: the same for all of its tiles. None of other x.
template <bool kAreThere>
struct TokenScales {};
template <>
struct TokenScales<true> {
  alignas(1024) float of[TOKENS];
};

// Tile.shared_bytes counts what is used: `reduction` only if kInCluster, without trailing padding.
struct Shared : TokenScales<kInCodes> {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
#if WGMMA
  Vectors vectors[Kernel::kWarps];
#endif
  ClusterReduction<Kernel> reduction;
};

using Turn = TurnOf<STAGES>;

// Copies the scales; those of tokens beyond the last are any.
__device__ __forceinline__ void copy_scales(TokenScales<true>& to, const float* scales,
                                            int tokens) {
  for (int n = threadIdx.x; n < TOKENS; n += Kernel::kThreads) {
    to.of[n] = scales[min(n, tokens - 1)];
  }
  Kernel::sync();
}
__device__ __forceinline__ void copy_scales(TokenScales<false>&, const float*, int) {}

__device__ __forceinline__ void apply(const TokenScales<true>& scales, Accumulators<Kernel>& acc) {
  const int first = threadIdx.x % 4 * 2;
  scale_tokens(acc, [&](int j, int i) { return scales.of[8 * j + first + i]; });
}
__device__ __forceinline__ void apply(const TokenScales<false>&, Accumulators<Kernel>&) {}

// Weights are read once: the L2 cache may evict them first.
__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const Records& records,
                                            const ChunkCursor& place, CachePolicy once) {
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    copy_bytes(shared.stages[stage] + kXBytes + group * kRecordBytes, records.of(place, group),
               kRecordBytes, &shared.full[stage], once);
  }
}

__device__ __forceinline__ void copy_x(Shared& shared, int stage, const TensorMap& x,
                                       const ChunkCursor& place) {
#pragma unroll
  for (int half = 0; half < kChunk / kLineColumns; ++half) {
    copy_box(shared.stages[stage] + half * kHalfBytes, x,
             place.chunk * kChunk + half * kLineColumns, blockIdx.y * TOKENS, 0,
             &shared.full[stage]);
  }
}

// The producer. The next kernel may start as soon as all blocks of this one have, and fill its ring
// long before this one ends.
__device__ __forceinline__ void copy_chunks(Shared& shared, const Records& records,
                                            const TensorMap& x, const WorkRange& range) {
  const CachePolicy once = read_once();
  fill_ring<STAGES, true>(
      shared, range,
      [&](int stage, const ChunkCursor& place) {
        arrive_expecting(&shared.full[stage], kUsedBytes);
        copy_weight(shared, stage, records, place, once);
      },
      [&](int stage, const ChunkCursor& place) { copy_x(shared, stage, x, place); });
}

#if !WGMMA
// Accumulates `chunks` chunks.
__device__ __forceinline__ void sum_tile(Accumulators<Kernel>& acc, Shared& shared, Turn& turn,
                                         int chunks, Lane own, const float2 (&factors)[1]) {
  own.factor = factors[0];
  for (int n = 0; n < chunks; ++n, turn.next()) {
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(acc, shared.stages[turn.stage], own);
    __syncwarp();
    arrive_if(own.lane == 0, &shared.empty[turn.stage]);
  }
}
#endif

// Where two blocks fit into the shared memory of an SM, their registers should fit too. Those that
// wgmma keeps sums and fragments in are taken from a producer group of four warps.
constexpr int kProducers = (WGMMA ? 4 : 1) * kWarp;
constexpr bool kFitsTwice = !WGMMA && STAGES * kStageBytes <= 113 * 1024;
constexpr int kBlocksOfSm = kFitsTwice && TOKENS <= (GROUPS <= 2 ? 32 : 8) ? 2 : 1;
constexpr int kWarpgroups = GROUPS / BLOCKS;
constexpr bool kLeavesMore = kWarpgroups == 2 && !kInCodes;
constexpr int kKept = kWarpgroups == 3 ? 160 : kLeavesMore ? 232 : 240;
constexpr int kLeft = kLeavesMore ? 40 : 24;
static_assert(WGMMA || !kInCodes, "sm_90 makes mma.sync of 16 bits from e4m3's");
static_assert(!WGMMA || (kWarpgroups * kKept + kLeft) * 4 * kWarp <= 65536, "registers of an SM");

extern "C" __global__ void __launch_bounds__(Kernel::kThreads + kProducers, kBlocksOfSm)
    quantized_gemm(T* out, const unsigned char* weight, const float* factors,
                   const __grid_constant__ TensorMap x, const float* x_scales, const T* bias,
                   const T* residual, float4* partial, int* flags, int tokens, int rows,
                   int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == Kernel::kThreads) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], Kernel::kWarps);  // a lane of each
    }
    if constexpr (kInCluster) shared.reduction.open();
    publish_barriers();
    prefetch_map(x);
  }
  __syncthreads();
  if constexpr (kInCluster) arrive_at_cluster();

  const int tiles = (rows + Kernel::kRows - 1) / Kernel::kRows;
  const int chunks = (inner + kChunk - 1) / kChunk;
  const WorkRange range =
      kInCluster ? WorkRange::of_cluster(chunks) : WorkRange::of_grid(tiles, chunks);
  const Records records{weight, factors, (rows + kBlockRows - 1) / kBlockRows, chunks};
  if (threadIdx.x >= Kernel::kThreads) {
#if WGMMA
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
#endif
    if (threadIdx.x < Kernel::kThreads + kWarp && is_elected()) {
      copy_chunks(shared, records, x, range);
    }
    return;
  }
#if WGMMA
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
#endif
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
  const Lane own{warp / 4, warp % 4, lane, {}};
  wait_for_kernel_before();
  const Target<Kernel> target =
      Target<Kernel>{out, bias, residual, partial, flags, tokens, rows}.from_token(blockIdx.y *
                                                                                   TOKENS);
  const Added<Kernel> added = added_by_owner<Kernel>(target);
  copy_scales(shared, x_scales + blockIdx.y * TOKENS, target.tokens);
  Accumulators<Kernel> acc;
  Turn turn;
  ChunkCursor place = range.start();
  for (int left = range.count(); left > 0;) {
    const int here = place.stop - place.chunk;  // chunks of this tile
    float2 factors[BLOCKS];
    Lane anew = own;  // whose row is computed here, and takes no register meanwhile
    asm volatile("" : "+r"(anew.lane));
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n) factors[n] = records.factors_of(place, anew, n);
    bool has_all = false;
    if constexpr (GROUP == 0 || kInCodes) {
#pragma unroll
      for (int n = 0; n < BLOCKS; ++n) clear(sums_of(acc, n));
    } else {
      has_all = begin_tile<Kernel>(acc, place, range, target);
    }
    sum_tile(acc, shared, turn, here, own, factors);
    if constexpr (GROUP == 0) {
#pragma unroll
      for (int n = 0; n < BLOCKS; ++n) scale(sums_of(acc, n), factors[n]);
    }
    apply(shared, acc);
    place.chunk = place.stop - 1;
    if constexpr (kInCluster) {
      wait_for_cluster();
      finish_with_cluster<Kernel>(acc, shared.reduction, target, added);
    } else {
#if WGMMA
      finish_blocks(acc, place, range, target, has_all, own, shared.vectors[threadIdx.x / kWarp]);
#else
      finish_tile<Kernel>(acc, place, range, target, has_all);
#endif
    }
    range.advance(place);
    left -= here;
  }
}

// Initialises fresh memory as a workspace: `flags` is its beginning.
extern "C" __global__ void quantized_gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
