// The gated half of few tokens' experts in codes, a row per pair (token, choice):
//
//   h[p] = gate(w13[ids[p]] x[p / top_k] + b13[ids[p]])
//
// A block has a strip of 16 rows of the weight, 8 of the gate and their 8 of up; its warps share
// the columns.
//
// Macros: those of strip.cuh; WARPS (of a block), BLOCKS (of an SM), ACT (of glu.cuh).
// Demands: channels and inner multiples of 8; rows of x 16-byte aligned; records beyond their
//          weight hold finite numbers.

// Blocks with the same rows of different pairs are neighbours.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS)
    moe_coded_up(T* h, const T* x, const int* ids, const unsigned char* w13, const T* b13,
                 const float* f13, int pairs, int top_k, int channels, int inner) {
  extern __shared__ __align__(16) unsigned char memory[];
  auto& rings = *reinterpret_cast<Slot (*)[WARPS][CHUNKS]>(memory);
  __shared__ float sums[WARPS][kStripRows];
  wait_for_kernel_before();
  let_next_kernel_start();  // after the router has finished: moe_coded_down reads ids early
  const int pair = blockIdx.x % pairs, strip = blockIdx.x / pairs;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int expert = __ldcg(ids + pair);
  if (expert < 0) return;
  const int blocks = (2 * inner + kBlockRows - 1) / kBlockRows;
  const int chunks = (channels + kChunk - 1) / kChunk;
  const size_t block = static_cast<size_t>(expert) * blocks + strip / kStrips;
  const size_t row = block * kBlockRows + strip % kStrips * kStripRows;
  const float2 factor = factors_of(f13, row, lane);
  const Strip own{w13 + block * chunks * kRecordBytes, strip % kStrips, lane, factor};
  const T* token = x + static_cast<size_t>(pair / top_k) * channels;
  float2 sum = multiply_strip(own, token, channels, chunks * warp / WARPS,
                              chunks * (warp + 1) / WARPS, rings[warp], [] {});
  if constexpr (GROUP == 0) sum = make_float2(sum.x * factor.x, sum.y * factor.y);
  if (lane % 4 == 0) {
    sums[warp][lane / 4] = sum.x;
    sums[warp][lane / 4 + 8] = sum.y;
  }
  __syncthreads();
  if (threadIdx.x >= 8) return;
  float gate = 0.0f, up = 0.0f;
#pragma unroll
  for (int n = 0; n < WARPS; ++n) {
    gate += sums[n][threadIdx.x];
    up += sums[n][threadIdx.x + 8];
  }
  if (b13) {
    const size_t at = static_cast<size_t>(expert) * 2 * inner + strip * kStripRows + threadIdx.x;
    gate += to_float(b13[at]);
    up += to_float(b13[at + 8]);
  }
  h[static_cast<size_t>(pair) * inner + strip * 8 + threadIdx.x] = from_float<T>(ACT(gate, up));
}
