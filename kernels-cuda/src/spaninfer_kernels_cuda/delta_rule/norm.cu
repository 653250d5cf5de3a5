// The gated norm behind the delta rule, over each head of VALUE channels:
//
//   out = x / sqrt(mean(x^2) + eps) * (weight + weight_offset) * silu(z)
//
// kAcross lanes share a head: VECTOR channels per load, PACKS loads. x may be out.
//
// Macros: T (element), VALUE, VECTOR, LANES, PACKS, THREADS.
// Demands: VALUE <= LANES * PACKS * VECTOR; VECTOR divides VALUE; the heads of a row lie one after
//          another.

extern "C" __global__ void __launch_bounds__(THREADS)
    gated_norm(T* out, const T* x, const T* z, const T* __restrict__ weight, float eps,
               float weight_offset, long long z_stride, int heads, int rows) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const long long number = blockIdx.x * static_cast<long long>(THREADS / LANES) +
                           threadIdx.x / LANES;  // of the head, among those of all rows
  if (number >= static_cast<long long>(rows) * heads) return;
  const long long row = number / heads, head = number % heads;
  x += number * VALUE;
  out += number * VALUE;
  z += row * z_stride + head * VALUE;
  float held[PACKS][VECTOR], squares = 0.0f;
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const int channel = (p * LANES + threadIdx.x % LANES) * VECTOR;
    if (channel >= VALUE) continue;
    load_floats<VECTOR>(held[p], x + channel);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) squares += square(held[p][v]);
  }
  const float scale = rsqrtf(lanes_sum<LANES>(squares) / VALUE + eps);
#pragma unroll
  for (int p = 0; p < PACKS; ++p) {
    const int channel = (p * LANES + threadIdx.x % LANES) * VECTOR;
    if (channel >= VALUE) continue;
    float gate[VECTOR], weights[VECTOR];
    load_floats<VECTOR>(gate, z + channel);
    load_floats<VECTOR>(weights, weight + channel);
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      const float silu = gate[v] / (1.0f + __expf(-gate[v]));
      held[p][v] = held[p][v] * scale * (weights[v] + weight_offset) * silu;
    }
    store_floats<VECTOR>(out + channel, held[p]);
  }
}
