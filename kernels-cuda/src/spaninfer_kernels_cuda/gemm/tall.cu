// Gated GEMM on Hopper in tiles of 192 weight rows by 144 to 256 tokens.
//
// out[M N/2] from x[M K] and weight[N K]. For some hundred tokens (M of 385 to 448; tuning.py). As
// in hopper.cu, 64 weight rows are operand A of a wgmma and rows of x operand B, whose number may
// be any wgmma N: tokens are divided evenly, with hardly any padding. The more of them a tile has,
// the fewer bytes of shared memory a wgmma reads. So a tile has 3 * 64 weight rows and up to 256
// tokens, whose accumulators leave no registers for a producer warp: one of the consumer threads
// issues the TMA copies. A block takes one tile after another, and the ring runs ahead across tile
// boundaries.
//
// Macros: T (half, bfloat16), TOKENS (of a tile, a size of Wgmma), STAGES, GATED, ACT (a function
//         of activate.cuh).
// Demands: K % 8 == 0; GATED: N % 16 == 0; maps whose boxes are kChunk elements of TOKENS rows of
//          x, and of kRows rows of the weight (GATED: of 8 of the gate, then their 8 of up, and so
//          on).

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(T);
constexpr int kSteps = kChunk / 16;
constexpr int kWgmmaRows = 64;
constexpr int kGroups = 3;

struct Kernel {
  using Element = T;
  static constexpr bool kGated = GATED;
  static constexpr int kThreads = kGroups * 4 * kWarp;
  static constexpr int kRows = kGroups * kWgmmaRows;
  static constexpr int kColumns = TOKENS / 8;

  static __device__ __forceinline__ float activated(float x) { return ACT(x); }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

constexpr int kWeightBytes = Kernel::kRows * kLineBytes;
constexpr int kStageBytes = kWeightBytes + TOKENS * kLineBytes;

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
};

using Turn = TurnOf<STAGES>;

// A block's tiles: blockIdx.x, and every gridDim.x-th from there on. Those of the same weight rows
// are adjacent, so that the weight is read again while it is in the L2 cache.
struct Tiles {
  int count, across, chunks;  // of all; of the same rows of the weight; of K

  __device__ __forceinline__ int first_token(int tile) const { return tile % across * TOKENS; }
  __device__ __forceinline__ int of_weight(int tile) const { return tile / across; }

  // Chunks of all tiles of this block.
  __device__ __forceinline__ int work() const {
    const int blocks = gridDim.x;
    return (count - static_cast<int>(blockIdx.x) + blocks - 1) / blocks * chunks;
  }
};

// Issues the copies of a block's chunks in order, by one thread, and without a branch: wgmmas are
// in flight around it, and the compiler must not take their code for divergent.
struct Copier {
  const Tiles& tiles;
  const TensorMap &weight, &x;
  CachePolicy once;
  bool asks;  // this thread
  int left;   // chunks
  int tile = blockIdx.x, chunk = 0;

  __device__ __forceinline__ void next(Shared& shared, int stage, bool of_weight, bool of_x) {
    const bool any = asks && left > 0;
    const int k = chunk * kChunk, rows = tiles.of_weight(tile);
    const unsigned to = shared_address(shared.stages[stage]);
    asm volatile(
        "{\n"
        ".reg .pred weight, x;\n"
        "setp.ne.b32 weight, %0, 0;\n"
        "setp.ne.b32 x, %1, 0;\n"
        "@weight mbarrier.arrive.expect_tx.shared::cta.b64 _, [%2], %3;\n"
        "@weight cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes"
        ".L2::cache_hint [%4], [%5, {%6, %7, %8, %9}], [%2], %10;\n"
        "@x cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%11], "
        "[%12, {%6, %13, %8}], [%2];\n"
        "}" ::"r"(static_cast<int>(any && of_weight)),
        "r"(static_cast<int>(any && of_x)), "r"(shared_address(&shared.full[stage])),
        "n"(kStageBytes), "r"(to), "l"(&weight), "r"(k), "r"(GATED ? 0 : rows * Kernel::kRows),
        "r"(0), "r"(GATED ? rows * (Kernel::kRows / 16) : 0), "l"(once), "r"(to + kWeightBytes),
        "l"(&x), "r"(tiles.first_token(tile))
        : "memory");
    --left;
    if (++chunk == tiles.chunks) chunk = 0, tile += gridDim.x;
  }
};

// Issues the wgmmas of a chunk. `adds` is false for the first one of a tile.
__device__ __forceinline__ void multiply_chunk(Accumulators<Kernel>& acc,
                                               const unsigned char* stage, int group, bool adds) {
  const unsigned weight = shared_address(stage) + group * kWgmmaRows * kLineBytes;
  const unsigned x = shared_address(stage) + kWeightBytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    const int step = k * 16 * sizeof(T);
    Wgmma<T, Kernel::kColumns>::of_tiles(acc, tile_at<kLineBytes>(weight + step, 0),
                                           tile_at<kLineBytes>(x + step, 0), adds || k > 0);
  }
  wgmma_commit();
}

// Releases a buffer, waits until all warps have, and issues the copy of its next chunk.
__device__ __forceinline__ void renew(Shared& shared, const Turn& turn, Copier& copier) {
  arrive_if(threadIdx.x % kWarp == 0, &shared.empty[turn.stage]);
  wait(&shared.empty[turn.stage], turn.parity);
  copier.next(shared, turn.stage, true, true);
}

// Accumulates the chunks of a tile; the wgmmas of one run while the next is awaited.
__device__ __forceinline__ void multiply_tile(Accumulators<Kernel>& acc, Shared& shared, Turn& turn,
                                              Copier& copier, int chunks, int group) {
  wait(&shared.full[turn.stage], turn.parity);
  multiply_chunk(acc, shared.stages[turn.stage], group, false);
  Turn before = turn;
  turn.next();
  for (int chunk = 1; chunk < chunks; ++chunk) {
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(acc, shared.stages[turn.stage], group, true);
    wgmma_wait<1>();
    renew(shared, before, copier);
    before = turn;
    turn.next();
  }
  wgmma_wait<0>();
  renew(shared, before, copier);
}

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1)
    gemm(T* out, const __grid_constant__ TensorMap weight, const __grid_constant__ TensorMap x,
         const T* bias, const T* residual, int tokens, int rows, int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const int across = (tokens + TOKENS - 1) / TOKENS;
  const Tiles tiles{(rows + Kernel::kRows - 1) / Kernel::kRows * across, across,
                    (inner + kChunk - 1) / kChunk};
  if (threadIdx.x == 0) {
    prefetch_map(x);
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kGroups * 4);  // a lane of each warp
    }
    publish_barriers();
  }
  __syncthreads();

  // Weights do not depend on the previous kernel: the ring is filled while that one runs.
  const CachePolicy once = read_once();
  const bool asks = threadIdx.x == 0;
  Copier weights{tiles, weight, x, once, asks, tiles.work()};
  for (int n = 0; n < STAGES; ++n) weights.next(shared, n, true, false);
  wait_for_kernel_before();
  Copier copier{tiles, weight, x, once, asks, tiles.work()};
  for (int n = 0; n < STAGES; ++n) copier.next(shared, n, false, true);

  // From one lane, so that the compiler knows it to be warp-uniform, and tile addresses with it.
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0);
  const Target<Kernel> all{out, bias, residual, nullptr, nullptr, tokens, rows};
  Accumulators<Kernel> acc;
  Turn turn;
  for (int tile = blockIdx.x; tile < tiles.count; tile += gridDim.x) {
    multiply_tile(acc, shared, turn, copier, tiles.chunks, warp / 4);
    pin(acc);
    const Target<Kernel> target = all.from_token(tiles.first_token(tile));
    const int column = column_of<Kernel>(tiles.of_weight(tile), warp);
    const float2 add = bias_of<Kernel>(target, column);
    for_columns<Kernel>([&](int j, int token) {
      complete<Kernel>(acc[j], add, residual_of<Kernel>(target, column, token));
      store<Kernel>(acc[j], target, column, token);
    });
  }
  let_next_kernel_start();
}

// Initialises fresh memory as a workspace for other kernels: this one needs none.
extern "C" __global__ void gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
