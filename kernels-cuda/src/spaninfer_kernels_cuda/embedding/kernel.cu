// Rows of a table by index, times a number:
//
//   out[t c] = scale * table[ids[t] c]
//
// One block per row; each thread loads up to PACKS times VECTOR elements. An index outside of the
// table gives a row of NaN: an error would have to wait for the GPU.
//
// Macros: T (element), VECTOR (elements per load), THREADS, PACKS.
// Demands: channels % VECTOR == 0 and at most VECTOR * THREADS * PACKS; rows contiguous; one block
//          per row of out.

constexpr int kNan = 0x7fffffff;  // its bits

extern "C" __global__ void __launch_bounds__(THREADS)
    embed_rows(T* out, const T* table, const int* ids, int rows_of_table, int channels,
               float scale) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const int id = ids[blockIdx.x];
  const bool is_row = 0 <= id && id < rows_of_table;
  const T* from = table + static_cast<long long>(is_row ? id : 0) * channels;
  T* to = out + static_cast<long long>(blockIdx.x) * channels;
  float x[PACKS][VECTOR];
#pragma unroll
  for (int n = 0; n < PACKS; ++n) {
    const int first = (n * THREADS + threadIdx.x) * VECTOR;
    if (first < channels) load_floats<VECTOR>(x[n], from + first);
  }
#pragma unroll
  for (int n = 0; n < PACKS; ++n) {
    const int first = (n * THREADS + threadIdx.x) * VECTOR;
    if (first >= channels) return;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) x[n][v] = is_row ? scale * x[n][v] : __int_as_float(kNan);
    store_floats<VECTOR>(to + first, x[n]);
  }
}
