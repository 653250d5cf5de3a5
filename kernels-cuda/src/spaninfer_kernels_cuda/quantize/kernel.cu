// Quantisation of rows to 8 bits with one scale each: codes[t c] = CODE of x[t c], scales[t].
//
// One block per row. A thread keeps its packs in registers between finding the row's extremes and
// coding it, so that every element is read once.
//
// Macros: T (element), CODE (Fp8 or SymmetricInt8), THREADS, VECTOR (elements per load),
//         PACKS (loads per thread).
// Demands: channels % VECTOR == 0; channels <= THREADS * PACKS * VECTOR; rows contiguous.

extern "C" __global__ void __launch_bounds__(THREADS)
    quantize_rows(unsigned char* codes, float* scales,
                  const T* x, int channels) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const size_t row = static_cast<size_t>(blockIdx.x) * channels;
  float held[PACKS][VECTOR];
  float least = 0.0f, most = 0.0f;
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int begin = (threadIdx.x + k * THREADS) * VECTOR;
    if (begin >= channels) continue;
    load_floats<VECTOR>(held[k], x + row + begin);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      least = fminf(least, held[k][v]);
      most = fmaxf(most, held[k][v]);
    }
  }
  const float size = block_max<THREADS>(fmaxf(-least, most));
  const CODE code(-size, size);
#pragma unroll
  for (int k = 0; k < PACKS; ++k) {
    const int begin = (threadIdx.x + k * THREADS) * VECTOR;
    if (begin < channels) store_codes<VECTOR>(codes + row + begin, code, held[k]);
  }
  if (threadIdx.x == 0) code.keep(scales + blockIdx.x);
}
