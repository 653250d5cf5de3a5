// Adds the parts of tiles whose blocks of keys several thread blocks had, by their log-sum-exps.
//
// A block of four warps takes a line; warp w adds parts w, w + 4, … in order.
//
// Macros: T, VALUE_SIZE, TILE, LSE.

constexpr int kWarps = 4, kVectors = VALUE_SIZE / (4 * kWarp);

extern "C" __global__ void __launch_bounds__(kWarps* kWarp)
    mla_merge(T* out, float* lse, const float* parts, int4* plan, int num_parts, int lanes) {
  __shared__ float4 added[kWarps][kVectors][kWarp];
  wait_for_kernel_before();
  let_next_kernel_start();
  const Plan of{plan, num_parts};
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const float* const exponents = parts + 2LL * num_parts * lanes * TILE * VALUE_SIZE;
  const int lines = of.num_merges() * lanes * TILE;
  for (int item = blockIdx.x; item < lines; item += gridDim.x) {
    const Merge merge = of.merge(item / (lanes * TILE));
    const Group group = of.group(merge.group);
    const int within = item % (lanes * TILE), which = within / TILE, line = within % TILE;
    if (within >= group.lines) continue;
    const auto slot_of = [&](int number) {
      return (2 * (merge.part + number) + (number == 0)) * lanes + which;
    };
    const auto exponent_of = [&](int number) {
      return __ldcg(&exponents[slot_of(number) * TILE + line]);
    };
    float most = hidden(), sum = 0.0f;
    for (int i = lane; i < merge.count; i += kWarp) most = fmaxf(most, exponent_of(i));
    most = lanes_max<kWarp>(most);
    const float base = most == hidden() ? 0.0f : most;
    for (int i = lane; i < merge.count; i += kWarp) sum += power_of_2(exponent_of(i) - base);
    sum = warp_sum(sum);
    const float share = sum > 0.0f ? 1.0f / sum : 0.0f;

    float4 own[kVectors] = {};
#pragma unroll 2
    for (int i = warp; i < merge.count; i += kWarps) {
      const float weight = power_of_2(exponent_of(i) - base) * share;
      const float4* const from = reinterpret_cast<const float4*>(
          parts + (static_cast<long long>(slot_of(i)) * TILE + line) * VALUE_SIZE);
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        const float4 x = __ldcg(&from[v * kWarp + lane]);
        own[v].x += weight * x.x, own[v].y += weight * x.y;
        own[v].z += weight * x.z, own[v].w += weight * x.w;
      }
    }
#pragma unroll
    for (int v = 0; v < kVectors; ++v) added[warp][v][lane] = own[v];
    __syncthreads();
    float4 all = {};
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float4 x = added[w][warp][lane];
      all.x += x.x, all.y += x.y, all.z += x.z, all.w += x.w;
    }
    const long long row = group.line + within;
    reinterpret_cast<uint2*>(out + row * VALUE_SIZE)[warp * kWarp + lane] =
        make_uint2(pack_pair<T>(all.x, all.y), pack_pair<T>(all.z, all.w));
    if (LSE && threadIdx.x == 0) {
      lse[row] = sum > 0.0f ? log_sum(most, sum) : hidden();
    }
    __syncthreads();
  }
}
