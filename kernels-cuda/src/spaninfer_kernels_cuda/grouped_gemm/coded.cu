// Grouped GEMM with quantised weights: out[P C] from rows of x and codes of weight[E N K].
//
// An expert's weight lies in records of codes (quantized_gemm/codes.cuh), 64 rows by 128 columns
// each. Rows of it are operand A of the tensor cores, 16 per warp, made of codes in registers; the
// rows of x of the expert, padded to TOKENS, are operand B. All threads both copy chunks through a
// ring of STAGES buffers and multiply. A block takes every gridDim.x-th task; several run on an SM,
// so that memory does not rest where one begins a task.
//
// Macros: those of chunk.cuh; STAGES, EXPERTS, GATED (records have 8 rows of the gate, 8 of up, and
//         so on), ACT (of glu.cuh), GATHERS (rows of x come through `order`; else x is sorted).
// Demands: K % 8 == 0; GATED: N % 16 == 0; pointers and rows of x at multiples of 16 bytes; records
//          beyond K hold finite numbers.

constexpr int kThreads = GROUPS * 4 * kWarp;
constexpr int kRows = GROUPS * kBlockRows;
constexpr int kVector = 8;                        // elements of 16 bytes
constexpr int kVectors = kLineColumns / kVector;  // in a line
constexpr int kLinesAtOnce = kThreads / kVectors;
constexpr int kTogether = 16;
static_assert(kRecordBytes % 16 == 0, "whole vectors");

struct Sizes {
  int rows, inner, blocks, chunks;  // blocks of 64 rows, chunks of 128 columns
};

// The block of an expert's rows that a group of warps has. Beyond the last it is any: its results
// are not written.
__device__ __forceinline__ size_t block_of(const Task& task, int group, const Sizes& sizes) {
  const int block = min(task.tile * GROUPS + group, sizes.blocks - 1);
  return static_cast<size_t>(task.expert) * sizes.blocks + block;
}

// Copies a chunk of the weight's tile and of the rows of x.
__device__ __forceinline__ void copy_chunk(unsigned char* stage, const unsigned char* weight,
                                           const T* x, const int* sources, const Task& task,
                                           int chunk, const Sizes& sizes) {
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const size_t record = block_of(task, group, sizes) * sizes.chunks + chunk;
    const unsigned char* from = weight + record * kRecordBytes;
    unsigned char* to = stage + kXBytes + group * kRecordBytes;
#pragma unroll
    for (int first = 0; first < kRecordBytes; first += kThreads * 16) {
      const int at = first + threadIdx.x * 16;
      if (at < kRecordBytes) copy_16(to + at, from + at, true);
    }
  }
  const int line = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
#pragma unroll
  for (int part = 0; part < kChunk / kLineColumns; ++part) {
    const int k = chunk * kChunk + part * kLineColumns + vector * kVector;
    const bool is_there = k < sizes.inner;
#pragma unroll
    for (int first = 0; first < TOKENS; first += kLinesAtOnce) {
      const int token = first + line;
      if (token >= task.count) break;  // only padding columns read what lies there
      copy_16(stage + part * kHalfBytes + token * kLineBytes + ((vector ^ (token & 7)) << 4),
              x + (is_there ? static_cast<size_t>(sources[token]) * sizes.inner + k : 0), is_there);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    grouped_coded(T* out, const unsigned char* weight, const float* factors, const T* x,
                  const T* bias, const int* order, const int* ends, int experts, int chosen,
                  int rows, int inner) {
  extern __shared__ __align__(128) unsigned char stages[];
  Experts& all = *reinterpret_cast<Experts*>(stages + STAGES * kStageBytes);
  int* sources = reinterpret_cast<int*>(&all + 1);  // of TOKENS rows
  wait_for_kernel_before();
  let_next_kernel_start();
  count_tiles<TOKENS, kThreads>(all, ends, experts);
  const int across = (rows + kRows - 1) / kRows, tasks = all.tiles() * across;
  const Sizes sizes{rows, inner, (rows + kBlockRows - 1) / kBlockRows,
                    (inner + kChunk - 1) / kChunk};
  const int warp = threadIdx.x / kWarp;
  Lane own{warp / 4, warp % 4, static_cast<int>(threadIdx.x % kWarp), {}};
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task task = find_task<TOKENS, kTogether>(all, number, across);
    __syncthreads();  // all are through with the buffers of the task before
    for (int place = threadIdx.x; place < task.count; place += kThreads) {
      sources[place] = GATHERS ? order[task.first + place] / chosen : task.first + place;
    }
    __syncthreads();
    const float* factor = factors + block_of(task, own.group, sizes) * kBlockRows + own.row();
    own.factor = make_float2(factor[0], factor[8]);
    Sums acc;
    clear(acc);
    pass_chunks<STAGES, kStageBytes>(
        stages, sizes.chunks,
        [&](unsigned char* stage, int chunk) {
          copy_chunk(stage, weight, x, sources, task, chunk, sizes);
        },
        [&](const unsigned char* stage) { multiply_chunk(acc, stage, own); });
    if constexpr (GROUP == 0) scale(acc, own.factor);
    write_results(out, bias, task, acc, task.tile * kRows + warp * 16, rows);
  }
}
