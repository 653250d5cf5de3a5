// Quantisation of rows to 8 bits: codes[t c] = CODE of y[t c], with scales[t], or with
// scales[c / GROUP, t]; y is x, or ACT(x[t c]) * x[t channels + c] where GATED.
//
// One block per row. A thread keeps its packs in registers between finding the extremes and coding
// them, so that every element is read once.
//
// Macros: T (element), CODE (Fp8 or SymmetricInt8), GROUP (elements that share a scale; 0: a row),
//         GATED, ACT (a function of activate.cuh), THREADS, VECTOR (elements per load), PACKS
//         (loads per thread).
// Demands: channels % VECTOR == 0; channels <= THREADS * PACKS * VECTOR; GROUP % VECTOR == 0; rows
//          contiguous, 2 * channels of x where GATED.

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_rows(unsigned char* codes, float* scales, const T* x, int channels) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const size_t row = static_cast<size_t>(blockIdx.x) * channels;
  const T* from = x + (GATED ? 2 * row : row);
  float held[PACKS][VECTOR];
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int begin = (threadIdx.x + k * THREADS) * VECTOR;
    if (begin >= channels) continue;
    load_floats<VECTOR>(held[k], from + begin);
#if GATED
    float up[VECTOR];
    load_floats<VECTOR>(up, from + channels + begin);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) held[k][v] = ACT(held[k][v]) * up[v];
#endif
  }
  store_coded_row<CODE, THREADS, GROUP>(codes + row, scales + blockIdx.x, gridDim.x, held,
                                        channels);
}
