// Grouped GEMM on Hopper with quantised weights: out[P C] from rows of x, codes of weight[E N K].
//
// As in quantized_gemm/hopper.cu, rows of a weight are operand A of the tensor cores, made of codes
// in registers, and the rows of x of its expert, padded to TOKENS, are operand B. Four producer
// warps copy both into a ring of STAGES buffers: one thread records of codes, all of them rows of
// x, by 16 bytes each through `order`, those that are there. The ring runs ahead across the borders
// of tasks and experts. A block takes every gridDim.x-th task.
//
// Macros: those of chunk.cuh; BLOCKS (of 64 weight rows that a warpgroup has, of GROUPS in all),
//         STAGES, WGMMA (else mma.sync), BATCH (of pipeline.cuh), OF_SM (blocks that run on an SM),
//         EXPERTS, GATED (records have 8 rows of the gate, 8 of up, and so on), ACT (of glu.cuh),
//         GATHERS (rows of x come through `order`; else x is sorted, and `ends` was there before
//         the previous kernel began).
// Demands: K % 8 == 0; GATED: N % 16 == 0; pointers and rows of x at multiples of 16 bytes; records
//          beyond K hold finite numbers.

constexpr int kRows = GROUPS * kBlockRows;
constexpr int kMultiply = kWarpgroups * 4 * kWarp;  // consumer threads; the producers follow
constexpr int kCopy = 4 * kWarp;
constexpr int kThreads = kMultiply + kCopy;
constexpr int kTogether = 1024;  // all tiles of an expert's rows: its weight is read once

constexpr int kVector = 8;                        // elements of 16 bytes
constexpr int kVectors = kLineColumns / kVector;  // in a line
constexpr int kLinesAtOnce = kCopy / kVectors;
constexpr int kLines = (TOKENS + kLinesAtOnce - 1) / kLinesAtOnce;  // of a thread
constexpr int kOwn = (TOKENS + kCopy - 1) / kCopy;  // whose numbers a thread finds
static_assert(kRecordBytes % 16 == 0, "whole vectors");

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Gathered full[STAGES];
  Barrier empty[STAGES];
  Experts experts;
  int rows[TOKENS];  // of x, of the task that is copied
};

using Turn = TurnOf<STAGES>;

struct Sizes {
  int chosen, rows, inner, across, blocks, chunks;  // blocks of 64 rows, chunks of 128 columns
};

// All producers.
__device__ __forceinline__ void sync_producers() {
  asm volatile("bar.sync 1, %0;" ::"n"(kCopy) : "memory");
}

// Block `group` of a task's weight rows. Beyond the last it is any: its results are not written.
__device__ __forceinline__ size_t block_of(const Task& task, int group, const Sizes& sizes) {
  const int block = min(task.tile * GROUPS + group, sizes.blocks - 1);
  return static_cast<size_t>(task.expert) * sizes.blocks + block;
}

__device__ __forceinline__ void copy_weight(Shared& shared, int stage, const unsigned char* weight,
                                            const Task& task, int chunk, const Sizes& sizes,
                                            CachePolicy once) {
  Barrier* full = &shared.full[stage].barrier;
  arrive_expecting(full, GROUPS * kRecordBytes);
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const size_t record = block_of(task, group, sizes) * sizes.chunks + chunk;
    copy_bytes(shared.stages[stage] + kXBytes + group * kRecordBytes,
               weight + record * kRecordBytes, kRecordBytes, full, once);
  }
}

// The numbers in x of a task's rows: a producing thread finds those of its own number, and passes
// them on.
struct Sources {
  int row[kOwn];

  static __device__ __forceinline__ Sources of(const Task& task, const int* order, int chosen) {
    Sources sources;
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int token = n * kCopy + threadIdx.x % kCopy;
      const int place = task.first + min(token, task.count - 1);
      sources.row[n] = GATHERS ? order[place] / chosen : place;
    }
    return sources;
  }

  __device__ __forceinline__ void pass_on(int (&rows)[TOKENS]) const {
    sync_producers();  // all are through with those of the task before
#pragma unroll
    for (int n = 0; n < kOwn; ++n) {
      const int token = n * kCopy + threadIdx.x % kCopy;
      if (TOKENS % kCopy == 0 || token < TOKENS) rows[token] = row[n];
    }
    sync_producers();
  }
};

// Copies a chunk of the rows of x that there are: the others are padding.
__device__ __forceinline__ void copy_x(unsigned char* stage, const T* x, const int (&rows)[TOKENS],
                                       int count, int chunk, int inner) {
  const int line = threadIdx.x % kCopy / kVectors, vector = threadIdx.x % kVectors;
  const int k = chunk * kChunk + vector * kVector;
#pragma unroll
  for (int n = 0; n < kLines; ++n) {
    const int token = n * kLinesAtOnce + line;
    if (token >= count) break;
    const T* from = x + static_cast<size_t>(rows[token]) * inner;
    unsigned char* to = stage + token * kLineBytes + ((vector ^ (token & 7)) << 4);
#pragma unroll
    for (int part = 0; part < kChunk / kLineColumns; ++part) {
      const bool is_there = k + part * kLineColumns < inner;
      copy_16(to + part * kHalfBytes, from + (is_there ? k + part * kLineColumns : 0), is_there);
    }
  }
}

// The producers. The first codes of sorted rows are copied while the previous kernel runs: where
// they begin was known before it.
__device__ __forceinline__ void copy_tasks(Shared& shared, const unsigned char* weight, const T* x,
                                           const int* order, const Sizes& sizes) {
  const CachePolicy once = read_once();
  const bool asks = threadIdx.x == kMultiply;
  const int tasks = shared.experts.tiles() * sizes.across;
  const auto find = [&](int number) {
    return find_task<TOKENS, kTogether>(shared.experts, number, sizes.across);
  };
  if (blockIdx.x >= tasks) {
    if constexpr (!GATHERS) wait_for_kernel_before();
    return;
  }
  Task task = find(blockIdx.x);
  int early = 0;
  if constexpr (!GATHERS) {
    early = min(STAGES, sizes.chunks);
    for (int n = 0; n < early; ++n) {
      if (asks) copy_weight(shared, n, weight, task, n, sizes, once);
    }
    wait_for_kernel_before();
  }
  Sources coming = Sources::of(task, order, sizes.chosen);
  Turn turn;
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task here = task;
    coming.pass_on(shared.rows);
    if (number + static_cast<int>(gridDim.x) < tasks) {  // those of the next task, ahead of time
      task = find(number + gridDim.x);
      coming = Sources::of(task, order, sizes.chosen);
    }
    for (int chunk = 0; chunk < sizes.chunks; ++chunk, turn.next()) {
      if (--early < 0) {
        wait(&shared.empty[turn.stage], turn.parity ^ 1);
        if (asks) copy_weight(shared, turn.stage, weight, here, chunk, sizes, once);
      }
      copy_x(shared.stages[turn.stage], x, shared.rows, here.count, chunk, sizes.inner);
      arrive_after_copies(&shared.full[turn.stage].barrier);
    }
  }
}

#if !WGMMA
// Accumulates `chunks` chunks.
__device__ __forceinline__ void multiply_tile(Accumulators<Kernel>& acc, Shared& shared, Turn& turn,
                                              int chunks, Lane own, const float2 (&factors)[1]) {
  own.factor = factors[0];
  for (int n = 0; n < chunks; ++n, turn.next()) {
    wait(&shared.full[turn.stage].barrier, turn.parity);
    multiply_chunk(acc, shared.stages[turn.stage], own);
    __syncwarp();
    arrive_if(own.lane == 0, &shared.empty[turn.stage]);
  }
}
#endif

// The consumers.
__device__ __forceinline__ void multiply(Shared& shared, T* out, const T* bias,
                                         const float* all_factors, const Sizes& sizes) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / kWarp, 0);
  const Lane own{warp / 4, warp % 4, static_cast<int>(threadIdx.x % kWarp), {}};
  const int tasks = shared.experts.tiles() * sizes.across;
  Turn turn;
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task task = find_task<TOKENS, kTogether>(shared.experts, number, sizes.across);
    float2 factors[BLOCKS];
    Accumulators<Kernel> acc;
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n) {
      const float* factor = all_factors +
                            block_of(task, own.group * BLOCKS + n, sizes) * kBlockRows + own.row();
      factors[n] = make_float2(factor[0], factor[8]);
      clear(sums_of(acc, n));
    }
    multiply_tile(acc, shared, turn, sizes.chunks, own, factors);
#pragma unroll
    for (int n = 0; n < BLOCKS; ++n) {
      Sums& sums = sums_of(acc, n);
      if constexpr (GROUP == 0) scale(sums, factors[n]);
      const int row = task.tile * kRows + (own.group * BLOCKS + n) * kBlockRows + own.warp * 16;
      write_results(out, bias, task, sums, row, sizes.rows);
    }
  }
}

// Registers of a thread where a block has an SM for itself: consumers take what producers give up.
constexpr bool kMoves = WGMMA && OF_SM == 1;
constexpr int kLaunched = 65536 / kThreads / 8 * 8;
constexpr int kLeft = 48;
constexpr int kFound = ((kLaunched * kThreads - kLeft * kCopy) / kMultiply) / 8 * 8;
constexpr int kKept = kFound < 240 ? kFound : 240;

extern "C" __global__ void __launch_bounds__(kThreads, OF_SM)
    grouped_coded_hopper(T* out, const unsigned char* weight, const float* factors, const T* x,
                         const T* bias, const int* order, const int* ends, int experts, int chosen,
                         int rows, int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == kMultiply) {
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i].barrier, 1 + kCopy);  // the codes' copy, and each thread's
      init_barrier(&shared.empty[i], kWarpgroups * 4);   // a lane of each warp
    }
    publish_barriers();
  }
  if constexpr (GATHERS) {
    wait_for_kernel_before();
    let_next_kernel_start();
  }
  count_tiles<TOKENS, kThreads>(shared.experts, ends, experts);
  const Sizes sizes{chosen,
                    rows,
                    inner,
                    (rows + kRows - 1) / kRows,
                    (rows + kBlockRows - 1) / kBlockRows,
                    (inner + kChunk - 1) / kChunk};
  if (threadIdx.x >= kMultiply) {
    if constexpr (kMoves) asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
    copy_tasks(shared, weight, x, order, sizes);
  } else {
    if constexpr (kMoves) asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
    if constexpr (!GATHERS) wait_for_kernel_before();
    multiply(shared, out, bias, factors, sizes);
  }
  if constexpr (!GATHERS) let_next_kernel_start();
}
