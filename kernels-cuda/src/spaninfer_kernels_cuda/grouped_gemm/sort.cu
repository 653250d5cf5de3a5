// Rows of x in the order of their experts: sorted[r] = x[order[r] / chosen], r < ends[E - 1].
//
// A block copies some columns of some rows; blocks of the same columns run at about the same time.
// So of x, each of whose rows is read by several experts, those columns are in the L2 cache.
//
// Macros: LOADS (of 16 bytes that a lane has of a row), LINES (rows of a warp), WARPS.

constexpr int kStep = LOADS * kWarp;  // vectors of 16 bytes of a row

extern "C" __global__ void __launch_bounds__(32 * WARPS)
    grouped_sort(uint4* sorted, const uint4* x, const int* order, const int* ends, int experts,
                 int chosen, int vectors) {
  wait_for_kernel_before();
  let_next_kernel_start();  // after the router has finished: the next kernel reads `ends` early
  const int lane = threadIdx.x % kWarp;
  const int first = (blockIdx.x * WARPS + threadIdx.x / kWarp) * LINES;
  const int count = min(LINES, __ldcg(ends + experts - 1) - first);
  const int source = lane < count ? __ldcg(order + first + lane) / chosen : 0;
  const int at = blockIdx.y * kStep + lane;
  uint4 parts[LINES][LOADS];
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    const uint4* from = x + static_cast<size_t>(__shfl_sync(0xffffffffu, source, line)) * vectors;
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int vector = at + n * kWarp;
      if (line < count && vector < vectors) parts[line][n] = from[vector];
    }
  }
#pragma unroll
  for (int line = 0; line < LINES; ++line) {
    uint4* to = sorted + static_cast<size_t>(first + line) * vectors;
#pragma unroll
    for (int n = 0; n < LOADS; ++n) {
      const int vector = at + n * kWarp;
      if (line < count && vector < vectors) to[vector] = parts[line][n];
    }
  }
}

// Makes fresh memory a ticket of prompt.cu.
extern "C" __global__ void __launch_bounds__(1) grouped_clear(unsigned* ticket) { *ticket = 0; }
