// The results of few tokens' experts in codes, weighted and summed:
//
//   out[t] = residual[t] + sum_j shares[t j] (w2[ids[t j]] h[t j] + b2[ids[t j]])
//
// A block has a strip of 16 rows of the weights for a token; its warps take SPLITS pieces of each
// of its experts in turn, and add them up in the order of warps.
//
// Macros: those of strip.cuh; CHOICES (top_k), SPLITS, WARPS (of a block), BLOCKS (of an SM).
// Demands: channels and inner multiples of 8; rows of h 16-byte aligned; records beyond their
//          weight hold finite numbers.

extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    moe_coded_down(T* out, const T* h, const int* ids, const float* shares,
                   const unsigned char* w2, const T* b2, const T* residual, const float* f2,
                   int tokens, int channels, int inner) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& rings = *reinterpret_cast<Slot (*)[WARPS][CHUNKS]>(memory);
  __shared__ float sums[WARPS][kStripRows];
  const int token = blockIdx.x % tokens, strip = blockIdx.x / tokens;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int blocks = (channels + kBlockRows - 1) / kBlockRows;
  const int chunks = (inner + kChunk - 1) / kChunk;
  const int row = strip * kStripRows + lane / 4;
  bool has_waited = false;
  const auto wait_once = [&] {
    if (has_waited) return;
    let_next_kernel_start();
    wait_for_kernel_before();
    has_waited = true;
  };
  float2 total = {};
#pragma unroll 1
  for (int piece = warp; piece < CHOICES * SPLITS; piece += WARPS) {
    const int part = piece % SPLITS, pair = token * CHOICES + piece / SPLITS;
    // The router's results were there before moe_coded_up let this kernel start.
    const int expert = __ldcg(ids + pair);
    const float share = __ldcg(shares + pair);
    if (expert < 0 || share == 0.0f) continue;  // no expert's, and nothing was written there
    const size_t block = static_cast<size_t>(expert) * blocks + strip / kStrips;
    const size_t first_row = block * kBlockRows + strip % kStrips * kStripRows;
    const float2 factor = factors_of(f2, first_row, lane);
    const Strip own{w2 + block * chunks * kRecordBytes, strip % kStrips, lane, factor};
    float2 sum = multiply_strip(own, h + static_cast<size_t>(pair) * inner, inner,
                                chunks * part / SPLITS, chunks * (part + 1) / SPLITS,
                                rings[warp], wait_once);
    if constexpr (GROUP == 0) sum = make_float2(sum.x * factor.x, sum.y * factor.y);
    if (b2 && part == 0) {
      const T* bias = b2 + static_cast<size_t>(expert) * channels + row;
      if (row < channels) sum.x += to_float(bias[0]);
      if (row + 8 < channels) sum.y += to_float(bias[8]);
    }
    total.x = fmaf(share, sum.x, total.x);
    total.y = fmaf(share, sum.y, total.y);
  }
  wait_once();
  if (lane % 4 == 0) {
    sums[warp][lane / 4] = total.x;
    sums[warp][lane / 4 + 8] = total.y;
  }
  __syncthreads();
  const int column = strip * kStripRows + threadIdx.x;
  if (threadIdx.x >= kStripRows || column >= channels) return;
  float sum = 0.0f;
#pragma unroll
  for (int n = 0; n < WARPS; ++n) sum += sums[n][threadIdx.x];
  const size_t at = static_cast<size_t>(token) * channels + column;
  if (residual) sum += to_float(residual[at]);
  out[at] = from_float<T>(sum);
}
