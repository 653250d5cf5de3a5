// Small-M GEMM on any architecture (GEMV at one token): out[M C] from x[M K] and weight[N K].
//
// Memory-bound: the weight is what has to be read, so it is operand A of the tensor cores, 16 rows
// per warp, and the M rows of x, padded to TOKENS, are operand B. All threads both copy chunks
// through a ring of STAGES buffers and multiply. Blocks share the work as stream_k.cuh says.
// Weights do not depend on the previous kernel: their copies are issued before this one waits.
//
// Macros: T (half, bfloat16), OPERAND (of x and the weight: T, e4m3 or int8), SCALES (of codes:
//         rows or blocks of scales.cuh; none), TOKENS (8, 16, 32 or 64), GROUPS (of 4 warps),
//         STAGES, GATED, ACT (a function of activate.cuh).
// Demands: gridDim.y times TOKENS hold the M rows of x; pointers and rows at multiples of 16 bytes;
//          flags zero, as every launch leaves them.

constexpr int kLineBytes = 128;                       // of shared memory
constexpr int kChunk = kLineBytes / sizeof(OPERAND);  // elements
constexpr int kVector = 16 / sizeof(OPERAND);
constexpr int kVectors = kChunk / kVector;  // in a line
constexpr int kSteps = kLineBytes / 32;
constexpr Scaling kScaling = Scaling::SCALES;
constexpr int kBlockRows = 16;

struct Kernel {
  using Element = T;
  static constexpr bool kGated = GATED;
  static constexpr int kThreads = GROUPS * 4 * kWarp;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kRows = kWarps * kBlockRows;
  static constexpr int kColumns = TOKENS / 8;

  static __device__ __forceinline__ float activated(float x) { return ACT(x); }
  static __device__ __forceinline__ void sync() { __syncthreads(); }
};

constexpr int kWeightBytes = Kernel::kRows * kLineBytes;
constexpr int kStageBytes = kWeightBytes + TOKENS * kLineBytes;
constexpr int kLinesAtOnce = Kernel::kThreads / kVectors;

struct Sizes {
  int tokens, rows, inner;  // M of this block's tokens, N, K
  long long stride;         // elements from one row of x to the next
};

// The weight's row for row `row` of a tile. Beyond the end it is any row: its results are not
// written. GATED: 16 rows are 8 of the gate and their 8 of up, so that a thread has both.
__device__ __forceinline__ size_t weight_row(int tile, int row, const Sizes& sizes) {
  if constexpr (!GATED) return min(tile * Kernel::kRows + row, sizes.rows - 1);
  const int half_rows = sizes.rows / 2;
  const int pair = tile * (Kernel::kRows / 2) + row / kBlockRows * 8 + row % 8;
  return min(pair, half_rows - 1) + (row & 8 ? half_rows : 0);
}

// Copies of a chunk by all threads: lines of 128 bytes; the 16-byte vectors of a line are permuted
// by its number, which keeps them in different banks.

__device__ __forceinline__ unsigned offset_of(int line, int vector) {
  return line * kLineBytes + ((vector ^ (line & 7)) << 4);
}

__device__ __forceinline__ void copy_weight(unsigned char* stage, const OPERAND* weight,
                                            ChunkCursor place, const Sizes& sizes) {
  const int line = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
  const int k = place.chunk * kChunk + vector * kVector;
  const bool is_there = k < sizes.inner;
#pragma unroll
  for (int row = line; row < Kernel::kRows; row += kLinesAtOnce) {
    const OPERAND* from = weight + weight_row(place.tile, row, sizes) * sizes.inner + k;
    copy_16(stage + offset_of(row, vector), is_there ? from : weight, is_there);
  }
}

__device__ __forceinline__ void copy_x(unsigned char* stage, const OPERAND* x, ChunkCursor place,
                                       const Sizes& sizes) {
  const int line = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
  const int k = place.chunk * kChunk + vector * kVector;
  const bool is_there = k < sizes.inner;
#pragma unroll
  for (int first = 0; first < TOKENS; first += kLinesAtOnce) {
    const int token = first + line;
    if (token >= sizes.tokens) break;  // only padding columns read what lies there
    copy_16(stage + kWeightBytes + offset_of(token, vector),
            is_there ? x + token * sizes.stride + k : x, is_there);
  }
}

// sums += weight x^T for the 16 rows of each warp.
template <typename Sums>
__device__ __forceinline__ void multiply_chunk(Sums& sums, unsigned stage) {
  const int lane = threadIdx.x % kWarp, row = threadIdx.x / kWarp * kBlockRows + lane % 16;
#pragma unroll
  for (int k = 0; k < kSteps; k += 2) {
    unsigned a[2][4];
    load_matrices(a[0], stage + offset_of(row, 2 * k + lane / 16));
    load_matrices(a[1], stage + offset_of(row, 2 * k + 2 + lane / 16));
#pragma unroll
    for (int j = 0; j < Kernel::kColumns; ++j) {
      unsigned tokens[4];  // 8 of them, both steps
      load_matrices(tokens, stage + kWeightBytes + offset_of(8 * j + lane % 8, 2 * k + lane / 8));
      multiply_add<OPERAND>(sums[j], a[0], tokens[0], tokens[1]);
      multiply_add<OPERAND>(sums[j], a[1], tokens[2], tokens[3]);
    }
  }
}

template <typename Sum>
__device__ __forceinline__ void clear(Sum (&sums)[Kernel::kColumns][4]) {
#pragma unroll
  for (int j = 0; j < Kernel::kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[j][i] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1)
    gemm(T* out, const OPERAND* weight, const OPERAND* x, const T* bias, const T* residual,
         const float* x_scales, const float* weight_scales, float4* partial, int* flags, int tokens,
         int rows, int inner, long long stride) {
  extern __shared__ __align__(128) unsigned char stages[];
  const int first_token = blockIdx.y * TOKENS;
  const Target<Kernel> target =
      Target<Kernel>{out, bias, residual, partial, flags, tokens, rows}.from_token(first_token);
  const Sizes sizes{min(target.tokens, TOKENS), rows, inner, stride};
  const int tiles = (rows + Kernel::kRows - 1) / Kernel::kRows;
  const int chunks = (inner + kChunk - 1) / kChunk;
  const WorkRange range = WorkRange::of_grid(tiles, chunks);
  const int count = range.count();
  x += first_token * stride;

  ChunkCursor coming = range.start();  // the next chunk to copy
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s >= count) break;
    copy_weight(stages + s * kStageBytes, weight, coming, sizes);
    range.advance(coming);
  }
  let_next_kernel_start();
  wait_for_kernel_before();
  ChunkCursor place = range.start();
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s < count) {
      copy_x(stages + s * kStageBytes, x, place, sizes);
      range.advance(place);
    }
    commit_copies();
  }

  place = range.start();  // the next chunk to multiply
  const auto scales = Scales<kScaling, GATED>::of(x_scales, weight_scales, tokens, rows, inner);
  Accumulators<Kernel> acc;
  SumOf<OPERAND> sums[Kernel::kColumns][4];
  clear(acc);
  clear(sums);
  int full = 0, empty = STAGES - 1;
  for (int n = 0; n < count; ++n) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    if (n + STAGES - 1 < count) {
      copy_weight(stages + empty * kStageBytes, weight, coming, sizes);
      copy_x(stages + empty * kStageBytes, x, coming, sizes);
      range.advance(coming);
    }
    commit_copies();
    if constexpr (kScaling == Scaling::none) {
      multiply_chunk(acc, shared_address(stages) + full * kStageBytes);
    } else {
      multiply_chunk(sums, shared_address(stages) + full * kStageBytes);
      if (kScaling == Scaling::blocks || place.is_last()) {
        const int column = column_of<Kernel>(place.tile, threadIdx.x / kWarp);
        const int token = first_token + threadIdx.x % 4 * 2;
        OwnScales<Kernel>::at(scales, column, token, place.chunk).add(acc, sums);
        clear(sums);
      }
    }
    full = full + 1 == STAGES ? 0 : full + 1;
    empty = empty + 1 == STAGES ? 0 : empty + 1;
    if (place.is_last()) {
      finish_tile<Kernel>(acc, place, range, target);
      clear(acc);
    }
    range.advance(place);
  }
}

// Initialises fresh memory as a workspace: `flags` is its beginning.
extern "C" __global__ void gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
