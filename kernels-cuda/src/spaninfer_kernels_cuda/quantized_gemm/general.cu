// GEMM with a quantised weight on any architecture: out[M C] from x[M K] and weight[N K].
//
// All threads both copy chunks through a ring of STAGES buffers and multiply (multiply.cuh): 16
// rows of the weight per warp are operand A of the tensor cores, TOKENS rows of x operand B. Blocks
// share the work as stream_k.cuh says. Weights do not depend on the previous kernel: their copies
// are issued before this one waits.
//
// Macros: those of chunk.cuh; TOKENS (8, 16, 32 or 64), STAGES.
// Demands: gridDim.y times TOKENS hold the M rows of x; K % 8 == 0; pointers and rows of x at
//          multiples of 16 bytes; records beyond K hold finite numbers; GATED: 16 rows of records
//          are 8 of the gate, then their 8 of up; x_scales[M] of x in e4m3; flags zero, as every
//          launch leaves them.

constexpr int kVector = 16 / sizeof(OPERAND);     // elements of 16 bytes
constexpr int kVectors = kLineColumns / kVector;  // in a line
constexpr int kLinesAtOnce = Kernel::kThreads / kVectors;

struct Sizes {
  int tokens, inner;  // M of this block's tokens, K
  long long stride;   // elements from one row of x to the next
};

__device__ __forceinline__ void copy_weight(unsigned char* stage, const Records& records,
                                            const ChunkCursor& place) {
  static_assert(kRecordBytes % 16 == 0, "whole vectors");
#pragma unroll
  for (int group = 0; group < GROUPS; ++group) {
    const unsigned char* from = records.of(place, group);
    unsigned char* to = stage + kXBytes + group * kRecordBytes;
    for (int at = threadIdx.x * 16; at < kRecordBytes; at += Kernel::kThreads * 16) {
      copy_16(to + at, from + at, true);
    }
  }
}

__device__ __forceinline__ void copy_x(unsigned char* stage, const OPERAND* x,
                                       const ChunkCursor& place, const Sizes& sizes) {
  const int line = threadIdx.x / kVectors, vector = threadIdx.x % kVectors;
#pragma unroll
  for (int part = 0; part < kChunk / kLineColumns; ++part) {
    const int k = place.chunk * kChunk + part * kLineColumns + vector * kVector;
    const bool is_there = k < sizes.inner;
#pragma unroll
    for (int first = 0; first < TOKENS; first += kLinesAtOnce) {
      const int token = first + line;
      if (token >= sizes.tokens) break;  // only padding columns read what lies there
      copy_16(stage + part * kHalfBytes + token * kLineBytes + ((vector ^ (token & 7)) << 4),
              is_there ? x + token * sizes.stride + k : x, is_there);
    }
  }
}

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1)
    quantized_gemm(T* out, const unsigned char* weight, const float* factors, const OPERAND* x,
                   const float* x_scales, const T* bias, const T* residual, float4* partial,
                   int* flags, int tokens, int rows, int inner, long long stride) {
  extern __shared__ __align__(128) unsigned char stages[];
  const int first_token = blockIdx.y * TOKENS;
  const Target<Kernel> target =
      Target<Kernel>{out, bias, residual, partial, flags, tokens, rows}.from_token(first_token);
  const Sizes sizes{min(target.tokens, TOKENS), inner, stride};
  const int tiles = (rows + Kernel::kRows - 1) / Kernel::kRows;
  const int chunks = (inner + kChunk - 1) / kChunk;
  const WorkRange range = WorkRange::of_grid(tiles, chunks);
  const Records records{weight, factors, (rows + kBlockRows - 1) / kBlockRows, chunks};
  const int count = range.count(), warp = threadIdx.x / kWarp;
  Lane own{warp / 4, warp % 4, static_cast<int>(threadIdx.x % kWarp), {}};
  x += first_token * stride;

  ChunkCursor coming = range.start();  // the next chunk to copy
#pragma unroll
  for (int s = 0; s < STAGES - 1; ++s) {
    if (s >= count) break;
    copy_weight(stages + s * kStageBytes, records, coming);
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
  own.factor = records.factors_of(place, own);
  Accumulators<Kernel> acc;
  clear(acc);
  int full = 0, empty = STAGES - 1;
  for (int n = 0; n < count; ++n) {
    wait_for_copies<STAGES - 2>();
    __syncthreads();
    if (n + STAGES - 1 < count) {
      copy_weight(stages + empty * kStageBytes, records, coming);
      copy_x(stages + empty * kStageBytes, x, coming, sizes);
      range.advance(coming);
    }
    commit_copies();
    multiply_chunk(acc, stages + full * kStageBytes, own);
    full = full + 1 == STAGES ? 0 : full + 1;
    empty = empty + 1 == STAGES ? 0 : empty + 1;
    const bool ends = place.is_last();
    if (ends) {
      if constexpr (GROUP == 0) scale(acc, own.factor);
      if constexpr (kInCodes) {
        scale_tokens(acc, [&](int j, int i) {
          const int token = 8 * j + threadIdx.x % 4 * 2 + i;
          return x_scales[first_token + min(token, target.tokens - 1)];  // any, behind the last
        });
      }
      finish_tile<Kernel>(acc, place, range, target);
      clear(acc);
    }
    range.advance(place);
    if (ends && n + 1 < count) own.factor = records.factors_of(place, own);
  }
}

// Initialises fresh memory as a workspace: `flags` is its beginning.
extern "C" __global__ void quantized_gemm_clear(int* flags) { flags[threadIdx.x] = 0; }
