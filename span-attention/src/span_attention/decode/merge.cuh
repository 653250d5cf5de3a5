// Reduction of an item of which some blocks have parts, by the block that has its end.

// Merges the block's part of an item with those of earlier blocks. They began before this one and
// wait for no later one: so waiting for them ends. Warps share the rows.
__device__ __forceinline__ void merge_parts(const Arguments& of, const Shared& shared) {
  constexpr int kOwn = ceil_div(kRows, WARPS);
  constexpr int kAhead = 24 / (1 + kOwn);  // parts in flight together
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
  const Merge& merge = shared.merge;
  const int first = merge.first, count = static_cast<int>(blockIdx.x) - first;
  int* const flags = of.plan.flags() + first;
  // All lanes wait together. When each left the loop by itself, lanes with nothing to wait for ran
  // ahead in what ptxas takes for one path, and overwrote uniform registers of the others.
  for (int p = 0; p < count; p += kWarp) {
    const int* const flag = &flags[min(p + lane, count - 1)];
    while (!__all_sync(kAll, load_flag(flag) != 0)) {
    }
  }
  const Heads heads(of, merge.kv_head, merge.section);
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
    const float4(*const mine)[kWarp] = shared.parts[WARPS] + n * (1 + kRows);
    const float4 rest = mine[0][lane];
    float most[2] = {rest.x, rest.y}, sum[2] = {rest.z, rest.w};
    float4 at[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) at[i] = mine[1 + (warp + i * WARPS) % kRows][lane];
#pragma unroll 1
    for (int p = 0; p < count; p += kAhead) {
      float4 rests[kAhead], rows[kAhead][kOwn];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        // Past the last part, that one again with a weight of 0.
        const Part& part = part_of(of, first + min(p + a, count - 1));
        rests[a] = __ldcg(&part[n * (1 + kRows)][lane]);
        if (p + a >= count) rests[a] = {hidden(), hidden(), 0.0f, 0.0f};
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          rows[a][i] = __ldcg(&part[n * (1 + kRows) + 1 + (warp + i * WARPS) % kRows][lane]);
        }
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const Shares low(most[0], rests[a].x), high(most[1], rests[a].y);
        low.add(sum[0], rests[a].z);
        high.add(sum[1], rests[a].w);
#pragma unroll
        for (int i = 0; i < kOwn; ++i) {
          low.add(at[i].x, rows[a][i].x);
          high.add(at[i].y, rows[a][i].y);
          low.add(at[i].z, rows[a][i].z);
          high.add(at[i].w, rows[a][i].w);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 8 * n + 2 * t + c;
      const Total total(of, heads, head, most[c], sum[c]);
      if (head >= heads.count) continue;
      if (LSE && warp == 0) write_lse(of, heads, merge.request, head, total);
      T* const out = result_of(of, heads, merge.request, head);
#pragma unroll
      for (int i = 0; i < kOwn; ++i) {
        const int row = warp + i * WARPS, element = element_of(row, g);
        if (row >= kRows || element >= VALUE_TILE) continue;
        *reinterpret_cast<unsigned*>(out + element) =
            c == 0 ? pack_result(at[i].x, at[i].z, total.share)
                   : pack_result(at[i].y, at[i].w, total.share);
      }
    }
  }
  __syncthreads();
  for (int p = threadIdx.x; p < count; p += kThreads) flags[p] = 0;  // for the next layer
}
