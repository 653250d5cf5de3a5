// Grouped GEMM on any architecture: out[P C] from rows of x and weight[E N K].
//
// Rows of a weight are operand A of the tensor cores, 16 per warp, and the rows of x of its expert,
// padded to TOKENS, are operand B. All threads both copy chunks through a ring of STAGES buffers
// and multiply. A block takes every gridDim.x-th task.
//
// Macros: T (half, bfloat16), TOKENS (8, 16, 32 or 64), STAGES, EXPERTS, GATED (the weight has 8
//         rows of the gate, 8 of up, and so on), ACT (of glu.cuh), GATHERS (rows of x
//         come through `order`; else x is sorted).
// Demands: K % 8 == 0; GATED: N % 16 == 0; pointers and rows of x at multiples of 16 bytes.

constexpr int kChunk = 64;                  // elements: 128 bytes, a line of shared memory
constexpr int kVector = 8;                  // elements of 16 bytes
constexpr int kVectors = kChunk / kVector;  // in a line
constexpr int kLineBytes = kChunk * sizeof(T);
constexpr int kWarps = 8, kThreads = kWarps * kWarp;
constexpr int kSteps = kChunk / 16;
constexpr int kRows = kWarps * 16;
constexpr int kColumns = TOKENS / 8;
constexpr int kTogether = 16;

constexpr int kWeightBytes = kRows * kLineBytes;
constexpr int kStageBytes = kWeightBytes + TOKENS * kLineBytes;
constexpr int kLinesAtOnce = kThreads / kVectors;

struct Sizes {
  int rows, inner, chunks;
};

// The 16-byte vectors of a line are permuted by its number, which keeps them in different banks:
// the swizzled order of TMA.
__device__ __forceinline__ unsigned offset_of(int line, int vector) {
  return line * kLineBytes + ((vector ^ (line & 7)) << 4);
}

// acc += weight x^T for 16 lines of the weight and 8 kColumns of x.
template <int kColumns>
__device__ __forceinline__ void multiply_lines(float (&acc)[kColumns][4], unsigned weight,
                                               unsigned x) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < kSteps; k += 2) {
    unsigned a[2][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      load_matrices(a[i], weight + offset_of(lane % 16, 2 * (k + i) + lane / 16));
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      unsigned b[4];  // 8 rows of x, both steps
      load_matrices(b, x + offset_of(8 * j + lane % 8, 2 * k + lane / 8));
      multiply_add<T>(acc[j], a[0], b[0], b[1]);
      multiply_add<T>(acc[j], a[1], b[2], b[3]);
    }
  }
}

// Copies a chunk of the weight's tile and of the rows of x. Beyond the end of a weight it is any
// row: its results are not written.
__device__ __forceinline__ void copy_chunk(unsigned char* stage, const T* weight, const T* x,
                                           const int* sources, const Task& task, int chunk,
                                           const Sizes& sizes) {
  const int line = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
  const int k = chunk * kChunk + vector * kVector;
  const bool is_there = k < sizes.inner;
  const T* of_expert = weight + static_cast<size_t>(task.expert) * sizes.rows * sizes.inner;
#pragma unroll
  for (int first = 0; first < kRows; first += kLinesAtOnce) {
    const int row = min(task.tile * kRows + first + line, sizes.rows - 1);
    copy_16(stage + offset_of(first + line, vector),
            of_expert + (is_there ? static_cast<size_t>(row) * sizes.inner + k : 0), is_there);
  }
#pragma unroll
  for (int first = 0; first < TOKENS; first += kLinesAtOnce) {
    const int token = first + line;
    if (token >= task.count) break;  // only padding columns read what lies there
    copy_16(stage + kWeightBytes + offset_of(token, vector),
            x + (is_there ? static_cast<size_t>(sources[token]) * sizes.inner + k : 0), is_there);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    grouped_general(T* out, const T* weight, const T* x, const T* bias, const int* order,
                    const int* ends, int experts, int chosen, int rows, int inner) {
  extern __shared__ __align__(128) unsigned char stages[];
  Experts& all = *reinterpret_cast<Experts*>(stages + STAGES * kStageBytes);
  int* sources = reinterpret_cast<int*>(&all + 1);  // of TOKENS rows
  wait_for_kernel_before();
  let_next_kernel_start();
  count_tiles<TOKENS, kThreads>(all, ends, experts);
  const int across = (rows + kRows - 1) / kRows, tasks = all.tiles() * across;
  const Sizes sizes{rows, inner, (inner + kChunk - 1) / kChunk};
  for (int number = blockIdx.x; number < tasks; number += gridDim.x) {
    const Task task = find_task<TOKENS, kTogether>(all, number, across);
    __syncthreads();  // all are through with the buffers of the task before
    const int place = threadIdx.x;
    if (place < task.count) {
      sources[place] = GATHERS ? order[task.first + place] / chosen : task.first + place;
    }
    __syncthreads();
    float acc[kColumns][4] = {};
    const int line = threadIdx.x / kWarp * 16;
    pass_chunks<STAGES, kStageBytes>(
        stages, sizes.chunks,
        [&](unsigned char* stage, int chunk) {
          copy_chunk(stage, weight, x, sources, task, chunk, sizes);
        },
        [&](const unsigned char* stage) {
          const unsigned at = shared_address(stage);
          multiply_lines(acc, at + line * kLineBytes, at + kWeightBytes);
        });
    write_results(out, bias, task, acc, task.tile * kRows + threadIdx.x / kWarp * 16, rows);
  }
}
