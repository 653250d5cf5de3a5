// The gated half of few tokens' experts, a row per pair (token, choice):
//
//   h[p] = gate(w13[ids[p]] x[p / top_k] + b13[ids[p]])
//
// Macros: CHANNELS (of x), ACT (of glu.cuh), and those of stream.cuh.
// Demands: CHANNELS and inner multiples of 8; rows 16-byte aligned; w13 in groups of 8 rows of gate
//          and 8 of up.

constexpr int kGroup = 8;  // neighbouring rows of gate, or of up
constexpr int kRows = 2 * COLUMNS;
constexpr bool kIsWhole = CHANNELS % (kStep * LOADS) == 0;

__device__ __forceinline__ bool is_in(int at) { return kIsWhole || at < CHANNELS; }

// Blocks with the same columns of different pairs are neighbours.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    moe_up(T* h, const T* x, const int* ids, const T* w13, const T* b13, int pairs, int top_k,
           int inner) {
  wait_for_kernel_before();
  let_next_kernel_start();  // after the router has finished: moe_down reads ids early
  const int pair = blockIdx.x % pairs, lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x / pairs * WARPS + threadIdx.x / kWarp) * COLUMNS;
  const int row = first / kGroup * 2 * kGroup + first % kGroup;
  const int expert = __ldcg(ids + pair);
  if (expert < 0) return;
  const size_t row_of_all = static_cast<size_t>(expert) * 2 * inner + row;
  const T* weights = w13 + row_of_all * CHANNELS;
  const T* own = x + static_cast<size_t>(pair / top_k) * CHANNELS;
  float sum[COLUMNS][2] = {};
#pragma unroll 1
  for (int begin = 0; begin < CHANNELS; begin += LOADS * kStep) {
    Load weight[LOADS][COLUMNS][2];
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int at = begin + n * kStep + lane * kVector;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        const T* from = weights + c * CHANNELS + at;
        weight[n][c][0] = stream_if(from, is_in(at));
        weight[n][c][1] = stream_if(from + kGroup * CHANNELS, is_in(at));
      }
    }
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int at = begin + n * kStep + lane * kVector;
      const Load part = pack_at<kVector>(own + (is_in(at) ? at : 0));
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {
        sum[c][0] = dot(weight[n][c][0], part, sum[c][0]);
        sum[c][1] = dot(weight[n][c][1], part, sum[c][1]);
      }
    }
  }
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) {
    float gate = warp_sum(sum[c][0]), up = warp_sum(sum[c][1]);
    if (lane != 0) continue;
    if (b13) {
      gate += to_float(b13[row_of_all + c]);
      up += to_float(b13[row_of_all + c + kGroup]);
    }
    h[static_cast<size_t>(pair) * inner + first + c] = from_float<T>(ACT(gate, up));
  }
}
