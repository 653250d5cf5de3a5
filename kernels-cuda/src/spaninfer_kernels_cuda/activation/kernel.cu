// An activation of every element of rows, times the other half of its row where GATED:
//
//   out[t c] = ACT(x[t c])      or      out[t c] = ACT(x[t c]) * x[t channels + c]
//
// A thread makes two loads: of both halves of a gated row, or of two places THREADS loads apart.
// Blocks ignore row boundaries, so that none is partly idle at the end of a row.
//
// Macros: T (element), ACT (a function of activate.cuh), VECTOR (elements per load), THREADS,
//         GATED (0 or 1).
// Demands: channels % VECTOR == 0; rows contiguous, 2 * channels of x where GATED; fewer than 2^31
//          loads.

extern "C" __global__ void __launch_bounds__(THREADS)
    activate_rows(T* out, const T* x, int loads, int loads_per_row) {
  let_next_kernel_start();
  wait_for_kernel_before();
#if GATED
  const int load = blockIdx.x * THREADS + threadIdx.x;
  if (load >= loads) return;
  // A row of x is two rows of the result long.
  const long long skipped = load / loads_per_row * static_cast<long long>(loads_per_row);
  const T* from = x + (load + skipped) * VECTOR;
  float gate[VECTOR], up[VECTOR];
  load_floats<VECTOR>(gate, from);
  load_floats<VECTOR>(up, from + static_cast<long long>(loads_per_row) * VECTOR);
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) gate[v] = ACT(gate[v]) * up[v];
  store_floats<VECTOR>(out + static_cast<long long>(load) * VECTOR, gate);
#else
  constexpr int kLoads = 2;
  float y[kLoads][VECTOR];
  const long long first = static_cast<long long>(blockIdx.x) * kLoads * THREADS + threadIdx.x;
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const long long load = first + n * THREADS;
    if (load < loads) load_floats<VECTOR>(y[n], x + load * VECTOR);
  }
#pragma unroll
  for (int n = 0; n < kLoads; ++n) {
    const long long load = first + n * THREADS;
    if (load >= loads) return;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) y[n][v] = ACT(y[n][v]);
    store_floats<VECTOR>(out + load * VECTOR, y[n]);
  }
#endif
}
