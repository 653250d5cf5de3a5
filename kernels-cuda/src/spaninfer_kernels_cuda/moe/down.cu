// The results of few tokens' experts, weighted and summed:
//
//   out[t] = residual[t] + sum_j shares[t j] (w2[ids[t j]] h[t j] + b2[ids[t j]])
//
// A warp takes whole rows of several experts at once where they are short, and pieces of one where
// they are long.
//
// Macros: INNER (channels of h), CHOICES (top_k), and those of stream.cuh.
// Demands: INNER and channels multiples of 8; rows 16-byte aligned; CHOICES <= 32.

constexpr unsigned kAll = 0xffffffffu;
constexpr int kPerRow = (INNER + kStep - 1) / kStep;
constexpr int kPieces = LOADS < kPerRow ? LOADS : kPerRow;  // of a row, at once

// The rows that a warp takes at once: as many as loads allow and divide the choices.
__device__ constexpr int rows_at_once() {
  int rows = LOADS / kPieces < CHOICES ? LOADS / kPieces : CHOICES;
  while (CHOICES % rows != 0) --rows;
  return rows;
}
constexpr int kRows = rows_at_once();
constexpr bool kIsWhole = INNER % (kStep * kPieces) == 0;

__device__ __forceinline__ bool is_in(int at) { return kIsWhole || at < INNER; }

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    moe_down(T* out, const T* h, const int* ids, const float* shares, const T* w2, const T* b2,
             const T* residual, int tokens, int channels) {
  const int token = blockIdx.x % tokens, lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x / tokens * WARPS + threadIdx.x / kWarp) * COLUMNS;
  const size_t pair = static_cast<size_t>(token) * CHOICES;
  // The router's results were there before moe_up let this kernel start.
  const int id = lane < CHOICES ? __ldcg(ids + pair + lane) : -1;
  const float share = lane < CHOICES ? __ldcg(shares + pair + lane) : 0.0f;
  float sum[COLUMNS] = {};
  bool has_waited = false;
#pragma unroll 1
  for (int choice = 0; choice < CHOICES; choice += kRows) {
#pragma unroll 1
    for (int begin = 0; begin < INNER; begin += kPieces * kStep) {
      Load weight[kRows][kPieces][COLUMNS];
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const int expert = __shfl_sync(kAll, id, choice + r);
        const size_t row = static_cast<size_t>(max(expert, 0)) * channels + first;
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
          const int at = begin + n * kStep + lane * kVector;
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) {
            weight[r][n][c] = stream_if(w2 + (row + c) * INNER + at, expert >= 0 && is_in(at));
          }
        }
      }
      if (!has_waited) {
        let_next_kernel_start();
        wait_for_kernel_before();
        has_waited = true;
      }
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float part = __shfl_sync(kAll, share, choice + r);
        if (part == 0.0f) continue;  // perhaps no expert's, and nothing was written there
        const T* x = h + (pair + choice + r) * INNER;
        float of_row[COLUMNS] = {};
#pragma unroll
        for (int n = 0; n < kPieces; ++n) {
          const int at = begin + n * kStep + lane * kVector;
          const Load piece = pack_at<kVector>(x + (is_in(at) ? at : 0));
#pragma unroll
          for (int c = 0; c < COLUMNS; ++c) of_row[c] = dot(weight[r][n][c], piece, of_row[c]);
        }
#pragma unroll
        for (int c = 0; c < COLUMNS; ++c) sum[c] = fmaf(part, of_row[c], sum[c]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    if (b2 && id >= 0) {  // a lane adds the bias of its choice
      const size_t at = static_cast<size_t>(id) * channels + first + c;
      sum[c] = fmaf(share, to_float(b2[at]), sum[c]);
    }
    sum[c] = warp_sum(sum[c]);
    if (lane != 0) continue;
    const size_t at = static_cast<size_t>(token) * channels + first + c;
    if (residual) sum[c] += to_float(residual[at]);
    out[at] = from_float<T>(sum[c]);
  }
}
