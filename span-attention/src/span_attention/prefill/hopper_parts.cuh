// The reduction of a task that several thread blocks of hopper.cu share.

// Acquires what another thread block has written before its release.
__device__ __forceinline__ int load_acquired(const int* from) {
  int number;
  asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(number) : "l"(from) : "memory");
  return number;
}

// Leaves the partials of this part of a task in the workspace, waits for those of the others and
// writes the results of every num_parts-th group of lines.
__device__ __forceinline__ void add_parts(const float (&acc)[kAccumulators][4], const Rows& state,
                                          const Launch& launch, const Task& task, int first_line,
                                          float log2_scale, T* out, float* lse) {
  const int first_block = blockIdx.x - task.part, lines = task.tile.num_rows * launch.pack;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int line = first_line + 8 * which;
    const float total = state.total(which);
    if (line >= lines) continue;
    if (t == 0) *launch.states(blockIdx.x, line) = make_float2(state.most[which], total);
    float2* to = reinterpret_cast<float2*>(launch.acc(blockIdx.x, line));
#pragma unroll
    for (int n = 0; n < kAccumulators; ++n) {
      to[4 * n + t] = make_float2(acc[n][2 * which], acc[n][2 * which + 1]);
    }
  }
  __threadfence();
  meet<CONSUMERS * kGroup>(kAllBarrier);
  if (threadIdx.x == kGroup) {
    int* const counter = launch.slices.counters() + first_block;
    atomicAdd(counter, 1);
    while (load_acquired(counter) < task.num_parts) {
    }
    // Every block that has waited is counted once more: so the last one knows that none still
    // waits.
    if (atomicAdd(counter, 1) == 2 * task.num_parts - 1) *counter = 0;
  }
  meet<CONSUMERS * kGroup>(kAllBarrier);

  constexpr int kWarps = 4 * CONSUMERS, kPairs = (VALUE_SIZE / 2 + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp - 4;
  for (int line = task.part * kWarps + warp; line < lines; line += task.num_parts * kWarps) {
    float most = hidden(), total = 0.0f;
    for (int part = lane; part < task.num_parts; part += kWarp) {
      most = fmaxf(most, __ldcg(launch.states(first_block + part, line)).x);
    }
    most = lanes_max<kWarp>(most);
    float2 added[kPairs] = {};
    for (int first = 0; first < task.num_parts; first += kWarp) {
      float weight = 0.0f;  // of part first + lane
      if (first + lane < task.num_parts) {
        const float2 of = __ldcg(launch.states(first_block + first + lane, line));
        weight = power_of_2((of.x - most) * log2_scale);
        total += weight * of.y;
      }
      const int count = min(task.num_parts - first, kWarp);
#pragma unroll 8
      for (int part = 0; part < count; ++part) {
        const float share = __shfl_sync(0xffffffffu, weight, part);
        const float2* from =
            reinterpret_cast<const float2*>(launch.acc(first_block + first + part, line));
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          if (lane + i * kWarp >= VALUE_SIZE / 2) continue;
          const float2 pair = __ldcg(&from[lane + i * kWarp]);
          added[i].x += share * pair.x;
          added[i].y += share * pair.y;
        }
      }
    }
    const int row = task.tile.row + line / launch.pack, head = task.first_head + line % launch.pack;
    const long long index = static_cast<long long>(row) * launch.heads + head;
    unsigned* to = reinterpret_cast<unsigned*>(out + index * VALUE_SIZE);
    const float sum = warp_sum(total), share = 1.0f / sum;
    if (LSE && lane == 0) lse[index] = log_sum(most * log2_scale, sum);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (lane + i * kWarp >= VALUE_SIZE / 2) continue;
      to[lane + i * kWarp] = pack_pair<T>(added[i].x * share, added[i].y * share);
    }
  }
}
