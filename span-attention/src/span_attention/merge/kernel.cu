// Attention over parts of the keys -> attention over all of them.
//
//   total[t h] = log(sum_p exp(lse[p t h]))
//   out[t h]   = sum_p exp(lse[p t h] - total[t h]) * outputs[p t h]
//
// A warp merges one head of one row; each of its lanes every 32nd vector of elements, part by part.
//
// Macros: T, SIZE (elements of a head), VECTOR (elements of a load), WARPS.
// Demands: arrays contiguous, SIZE a multiple of VECTOR.

extern "C" __global__ void __launch_bounds__(kWarp* WARPS)
    merge_parts(T* out, float* total, const T* outputs, const float* lse, int parts,
                long long heads) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const long long head = static_cast<long long>(blockIdx.x) * WARPS + threadIdx.y;
  if (head >= heads) return;
  float most = hidden();
  for (int p = threadIdx.x; p < parts; p += kWarp) most = fmaxf(most, lse[p * heads + head]);
  most = lanes_max<kWarp>(most);
  const float base = most == hidden() ? 0.0f : most;  // no part saw a key: weights of 0, not NaN
  float sum = 0.0f;
  for (int p = threadIdx.x; p < parts; p += kWarp) {
    sum += power_of_2(kLog2e * (lse[p * heads + head] - base));
  }
  sum = warp_sum(sum);
  const float share = sum > 0.0f ? 1.0f / sum : 0.0f;
  if (threadIdx.x == 0) total[head] = base + logf(sum);

  for (int e = threadIdx.x * VECTOR; e < SIZE; e += kWarp * VECTOR) {
    float merged[VECTOR] = {};
#pragma unroll 4
    for (int p = 0; p < parts; ++p) {
      const float weight = power_of_2(kLog2e * (lse[p * heads + head] - base)) * share;
      float own[VECTOR];
      load_floats<VECTOR>(own, outputs + (p * heads + head) * SIZE + e);
#pragma unroll
      for (int i = 0; i < VECTOR; ++i) merged[i] += weight * own[i];
    }
    store_floats<VECTOR>(out + head * SIZE + e, merged);
  }
}
