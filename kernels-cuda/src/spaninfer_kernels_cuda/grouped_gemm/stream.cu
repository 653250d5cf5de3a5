// Grouped GEMM on Hopper for few rows per expert: out[P C] from rows of x and weight[E N K].
//
// Memory-bound: the weights of all experts that have rows must be read. So 64 rows of a weight are
// operand A of a wgmma, and the rows of x of its expert are operand B: up to TOKENS, padded to the
// next of a few sizes, so that experts with few rows and with many are in one launch. A producer
// warp copies chunks of both into a ring of STAGES buffers, weights by TMA with the expert
// as a coordinate, rows of x by 16 bytes each through `order`: those that are there, no padding.
// The ring runs ahead across the borders of tasks and experts. GROUPS consumer warpgroups multiply
// 64 weight rows each. A block takes every gridDim.x-th task.
//
// Macros: T (half, bfloat16), TOKENS (8, 16, 32 or 64), GROUPS, STAGES, BLOCKS_OF_SM, EXPERTS,
//         GATED (the weight has 8 rows of the gate, 8 of up, and so on), ACT (a function of
//         glu.cuh), GATHERS (rows of x come through `order`; else x is sorted, and `ends` was there
//         before the previous kernel began).
// Demands: K % 8 == 0; GATED: N % 16 == 0; x and its rows at multiples of 16 bytes; a map of the
//          weight whose boxes are kChunk elements of kRows rows of an expert.

constexpr int kSteps = kChunk / 16;
constexpr int kWgmmaRows = 64;
constexpr int kRows = GROUPS * kWgmmaRows;
constexpr int kColumns = TOKENS / 8;
constexpr int kMultiply = GROUPS * 4 * kWarp;  // consumer threads; the producer warp follows
constexpr int kThreads = kMultiply + kWarp;
constexpr int kTogether = 1024;  // all tiles of an expert's rows: its weight is read once

constexpr int kWeightBytes = kRows * kLineBytes;
constexpr int kStageBytes = kWeightBytes + TOKENS * kLineBytes;

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
  Experts experts;
};

using Turn = TurnOf<STAGES>;

struct Sizes {
  int chosen, rows, inner, across, chunks;
};

__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const TensorMap& weight,
                                            const Task& task, int chunk, CachePolicy once) {
  arrive_expecting(&shared.full[stage], kWeightBytes);
  copy_box(shared.stages[stage], weight, chunk * kChunk, task.tile * kRows, task.expert, 0,
           &shared.full[stage], once);
}

// The producer warp. The first weights of sorted rows are copied while the previous kernel runs:
// where they begin was known before it.
__device__ __forceinline__ void copy_chunks(Shared& shared, const TensorMap& weight, const T* x,
                                            const int* order, const Sizes& sizes) {
  const CachePolicy once = read_once();
  const bool asks = threadIdx.x % kWarp == 0;
  const int tasks = shared.experts.tiles() * sizes.across;
  Task task{};
  if (blockIdx.x < tasks) {
    task = find_task<TOKENS, kTogether>(shared.experts, blockIdx.x, sizes.across);
  }
  int early = 0;
  if constexpr (!GATHERS) {
    if (blockIdx.x < tasks) early = min(STAGES, sizes.chunks);
    for (int n = 0; n < early; ++n) {
      if (asks) copy_weight(shared, n, weight, task, n, once);
    }
    wait_for_kernel_before();
  }
  Sources<TOKENS> coming = Sources<TOKENS>::of(task, 0, order, sizes.chosen);
  Turn turn;
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task here = task;
    const Sources<TOKENS> sources = coming;
    if (number + static_cast<int>(gridDim.x) < tasks) {  // those of the next task, ahead of time
      task = find_task<TOKENS, kTogether>(shared.experts, number + gridDim.x, sizes.across);
      coming = Sources<TOKENS>::of(task, 0, order, sizes.chosen);
    }
    for (int chunk = 0; chunk < sizes.chunks; ++chunk, turn.next()) {
      if (--early < 0) {
        wait(&shared.empty[turn.stage], turn.parity ^ 1);
        if (asks) copy_weight(shared, turn.stage, weight, here, chunk, once);
      }
      sources.copy(shared.stages[turn.stage] + kWeightBytes, x, chunk, sizes.inner);
      arrive_after_copies(&shared.full[turn.stage]);
    }
  }
}

using Accumulators = float[kColumns][4];

// Issues the wgmmas of a chunk for kUsed fragments of x. `adds` is false for the first of a task.
template <int kUsed>
__device__ __forceinline__ void multiply_chunk(float (&acc)[kUsed][4], const unsigned char* stage,
                                               int group, bool adds) {
  const unsigned x = shared_address(stage) + kWeightBytes;
  const unsigned weight = shared_address(stage) + group * kWgmmaRows * kLineBytes;
  publish_to_async();  // x was written by threads
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
    Wgmma<T, kUsed>::of_tiles(acc, tile_at<kLineBytes>(weight + 32 * k, 0),
                              tile_at<kLineBytes>(x + 32 * k, 0), adds || k > 0);
  }
  wgmma_commit();
}

// Accumulates the chunks of a task: the wgmmas of one run while the next is awaited.
template <int kUsed>
__device__ __forceinline__ void multiply_task(float (&acc)[kUsed][4], Shared& shared, Turn& turn,
                                              int chunks, int warp) {
  const bool speaks = threadIdx.x % kWarp == 0;
  int before = turn.stage;
  for (int chunk = 0; chunk < chunks; ++chunk, turn.next()) {
    wait(&shared.full[turn.stage], turn.parity);
    multiply_chunk(acc, shared.stages[turn.stage], warp / 4, chunk > 0);
    wgmma_wait<1>();
    arrive_if(speaks && chunk > 0, &shared.empty[before]);
    before = turn.stage;
  }
  wgmma_wait<0>();
  arrive_if(speaks, &shared.empty[before]);
  pin(acc);
}

// The same for as many rows of x as a task has, at most kMost: 8, 16, 32, 48 or 64 are multiplied.
template <int kMost>
__device__ __forceinline__ void multiply_rows(Accumulators& acc, Shared& shared, Turn& turn,
                                              int chunks, int warp, int count) {
  constexpr int kFewer = kMost == 64 ? 48 : kMost == 48 ? 32 : kMost / 2;
  if constexpr (kMost > 8) {
    if (count <= kFewer) {
      multiply_rows<kFewer>(acc, shared, turn, chunks, warp, count);
      return;
    }
  }
  multiply_task(reinterpret_cast<float(&)[kMost / 8][4]>(acc), shared, turn, chunks, warp);
}

// The consumers.
__device__ __forceinline__ void multiply(Shared& shared, T* out, const T* bias,
                                         const Sizes& sizes) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0);
  const int tasks = shared.experts.tiles() * sizes.across;
  Turn turn;
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task task = find_task<TOKENS, kTogether>(shared.experts, number, sizes.across);
    Accumulators acc;
    multiply_rows<TOKENS>(acc, shared, turn, sizes.chunks, warp, task.count);
    write_results(out, bias, task, acc, task.tile * kRows + warp * 16, sizes.rows);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS_OF_SM)
    grouped_stream(T* out, const __grid_constant__ TensorMap weight, const T* x, const T* bias,
                   const int* order, const int* ends, int experts, int chosen, int rows,
                   int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == kMultiply) {
    prefetch_map(weight);
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1 + kWarp);    // the weight's copy, and each lane's
      init_barrier(&shared.empty[i], GROUPS * 4);  // a lane of each warp
    }
    publish_barriers();
  }
  if constexpr (GATHERS) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  count_tiles<TOKENS, kThreads>(shared.experts, ends, experts);
  const Sizes sizes{chosen, rows, inner, (rows + kRows - 1) / kRows, (inner + kChunk - 1) / kChunk};
  if (threadIdx.x >= kMultiply) {
    copy_chunks(shared, weight, x, order, sizes);
  } else {
    if constexpr (!GATHERS) wait_for_kernel_before();
    multiply(shared, out, bias, sizes);
  }
  if constexpr (!GATHERS) let_next_kernel_start();
}
