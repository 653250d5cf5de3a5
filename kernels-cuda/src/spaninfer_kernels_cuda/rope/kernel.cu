// Rotary embedding of the heads of rows:
//
//   out[t h] = x[t h], its first ROTARY elements rotated in pairs by cosine[t], sine[t]
//
// LANES adjacent lanes take one head of one row.
//
// Macros: T (element), SIZE (of a head), ROTARY, VECTOR (elements per load), LANES, THREADS,
//         INTERLEAVED (0 or 1).
// Demands: 2 VECTOR divides SIZE and ROTARY; heads of a row contiguous; rows begin at multiples of
//          a vector. x may be out.

extern "C" __global__ void __launch_bounds__(THREADS)
    rope_rows(T* out, const T* x, const float* cosine, const float* sine, int heads,
              long long x_stride, long long out_stride) {
  let_next_kernel_start();
  wait_for_kernel_before();
  constexpr int kHeads = THREADS / LANES;  // that a block works on at once
  const long long row = blockIdx.x;
  for (int number = blockIdx.y * kHeads + threadIdx.x / LANES; number < heads;
       number += gridDim.y * kHeads) {
    const long long begin = static_cast<long long>(number) * SIZE;
    Head<T, SIZE, VECTOR, ROTARY, LANES, INTERLEAVED> head;
    head.load(x + row * x_stride + begin);
    head.rope(cosine + row * (ROTARY / 2), sine + row * (ROTARY / 2));
    head.store(out + row * out_stride + begin);
  }
}
