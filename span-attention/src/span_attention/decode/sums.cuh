// What warps and blocks have of an item, added up.

// Where a block leaves its part of an item: of an item that begins in it, or that began before.
__device__ __forceinline__ float* slot_of(float* parts, int block, bool begins_here) {
  return parts + (2LL * block + begins_here) * kSlot;
}

// Where an item's result begins.
__device__ __forceinline__ T* result_of(const Arguments& of, const Item& item) {
  const long long head = static_cast<long long>(item.request) * of.heads + item.head;
  return of.out + head * VALUE_SIZE + item.element;
}

// The element that lane row g holds in the first of two neighbours of a row of the result.
__device__ __forceinline__ int element_of(int row, int g) {
  constexpr int kPerPiece = 2 * kRowsPerLoad;
  return (row / kRowsPerLoad * 8 + g) * kPerPiece + row % kRowsPerLoad * 2;
}

// What the sum of weights grows by: exp(sink - largest score), where there are sinks. As ALiBi is
// counted from the last token, so is the sink.
__device__ __forceinline__ float share_of_sink(const Arguments& of, const Item& item, int head,
                                               float most) {
  if (of.sinks == nullptr) return 0.0f;
  const int index = item.head + head;
  const float shift = of.alibi == nullptr ? 0.0f : of.alibi[index] * (item.length - 1);
  return power_of_2(kLog2e * (of.sinks[index] - shift) - most);
}

// Adds up what the warps have, and writes it: to `out` as the result, or to a part's `slot`.
__device__ __forceinline__ void add_warps(const Result& result, Softmax& softmax,
                                          const Arguments& of, const Item& item, float* slot,
                                          Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float sum = softmax.sum[n][c];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
      if (g == 0) shared.stats[warp][8 * n + 2 * t + c] = {softmax.most[n][c], sum};
    }
  }
  __syncthreads();
  if (threadIdx.x < kHeads) {
    Rest total = shared.stats[0][threadIdx.x];
    for (int w = 1; w < WARPS; ++w) total.join(shared.stats[w][threadIdx.x]);
    if (slot == nullptr) total.sum += share_of_sink(of, item, threadIdx.x, total.most);
    shared.total[threadIdx.x] = total;
    if (slot != nullptr) reinterpret_cast<Rest*>(slot)[threadIdx.x] = total;
  }
  __syncthreads();
  T* const out = result_of(of, item);
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
    const float shrunk[2] = {power_of_2(softmax.most[n][0] - shared.total[8 * n + 2 * t].most),
                             power_of_2(softmax.most[n][1] - shared.total[8 * n + 2 * t + 1].most)};
#pragma unroll
    for (int begin = 0; begin < kRows; begin += kAtOnce) {
#pragma unroll
      for (int i = 0; i < kAtOnce && begin + i < kRows; ++i) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float* own = result[begin + i][n];
          *reinterpret_cast<float2*>(&shared.sums[warp][i][(2 * t + c) * kHeadPitch + 2 * g]) =
              make_float2(own[c] * shrunk[c], own[2 + c] * shrunk[c]);
        }
      }
      __syncthreads();
      for (int i = threadIdx.x; i < kAtOnce * 8 * 8; i += kThreads) {
        const int row = begin + i % kAtOnce, column = i / kAtOnce % 8, head = i / kAtOnce / 8;
        const int element = element_of(row, column);
        if (row >= kRows || element >= VALUE_TILE || 8 * n + head >= item.count) continue;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
        for (int w = 0; w < WARPS; ++w) {
          const float2 own = *reinterpret_cast<const float2*>(
              &shared.sums[w][i % kAtOnce][head * kHeadPitch + 2 * column]);
          sum.x += own.x;
          sum.y += own.y;
        }
        if (slot == nullptr) {
          const float share = kResultScale / shared.total[8 * n + head].sum;
          *reinterpret_cast<unsigned*>(out + (8 * n + head) * VALUE_SIZE + element) =
              pack_pair<T>(sum.x * share, sum.y * share);
        } else {
          *reinterpret_cast<float2*>(slot + 2 * kHeads + (8 * n + head) * VALUE_TILE + element) =
              sum;
        }
      }
      __syncthreads();
    }
  }
}

// Merges the parts of an item that `blocks` blocks from `first` on have written. Threads share the
// heads and elements, four of them each, and what is left of the threads shares the parts.
__device__ __forceinline__ void merge_parts(const Arguments& of, const Item& item, int first,
                                            int blocks, Shared& shared) {
  constexpr int kAhead = 16;  // parts whose loads are under way together
  const int columns = item.count * (VALUE_TILE / 4);
  for (int begin = 0; begin < columns; begin += kThreads) {
    const int here = min(columns - begin, kThreads), groups = kThreads / here;
    const int group = static_cast<int>(threadIdx.x) / here;
    const int column = begin + static_cast<int>(threadIdx.x) % here;
    const int head = column / (VALUE_TILE / 4), element = column % (VALUE_TILE / 4) * 4;
    Part sum = no_part();
    for (int p = group; p < blocks && group < groups; p += kAhead * groups) {
      Part parts[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const int part = p + a * groups;
        parts[a] = no_part();
        if (part >= blocks) continue;
        const float* slot = slot_of(of.parts, first + part, part == 0);
        const float2 rest = __ldcg(reinterpret_cast<const float2*>(slot) + head);
        const float4 four = __ldcg(reinterpret_cast<const float4*>(
            slot + 2 * kHeads + head * VALUE_TILE + element));
        parts[a] = Part{{rest.x, rest.y}, {four.x, four.y, four.z, four.w}};
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) sum.join(parts[a]);
    }
    shared.part[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0) {
      for (int other = 1; other < groups; ++other) sum.join(shared.part[other * here + threadIdx.x]);
      const float sink = share_of_sink(of, item, head, sum.rest.most);
      const float share = kResultScale / (sum.rest.sum + sink);
      *reinterpret_cast<uint2*>(result_of(of, item) + head * VALUE_SIZE + element) =
          make_uint2(pack_pair<T>(sum.at[0] * share, sum.at[1] * share),
                     pack_pair<T>(sum.at[2] * share, sum.at[3] * share));
    }
    __syncthreads();
  }
}
