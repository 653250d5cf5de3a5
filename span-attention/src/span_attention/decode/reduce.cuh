// Reduction of the parts of an item over warps and blocks.

// The address of a part of an item that several blocks share.
__device__ __forceinline__ Part& part_of(const Arguments& of, int index) {
  return reinterpret_cast<Part*>(of.parts)[index];
}

// Takes off the result what zeros and biases of codes have added to it.
__device__ __forceinline__ void settle(Accumulators& acc) {
  if constexpr (Codes::kScales == 2) {
#pragma unroll
    for (int i = 0; i < 2 * HEAD_TILES; ++i) {
      const int n = i / 2, c = i % 2;
      float bias = acc.bias[n][c];
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) bias += __shfl_xor_sync(kAll, bias, step);
#pragma unroll
      for (int row = 0; row < kRows; ++row) {
        acc.at[row][n][c] -= bias * (1.0f / Codes::kUnit);
        acc.at[row][n][2 + c] -= bias * (1.0f / Codes::kOddUnit);
      }
    }
  }
}

__device__ __forceinline__ void store_part(Part& part, const Accumulators& acc) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
    float4(*const rows)[kWarp] = part + n * (1 + kRows);
    rows[0][lane] = {acc.most[n][0], acc.most[n][1], acc.sum[n][0], acc.sum[n][1]};
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float* at = acc.at[row][n];
      rows[1 + row][lane] = {at[0], at[1], at[2], at[3]};
    }
  }
}

// Flags between blocks: what was written before one is stored can be read after it was seen.
__device__ __forceinline__ void store_flag(int* flag, int value) {
  asm volatile("st.release.gpu.global.s32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}
__device__ __forceinline__ int load_flag(const int* flag) {
  int value;
  asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

// The factors that rescale two parts' sums to their common maximum.
struct Shares {
  float own, other;

  __device__ __forceinline__ Shares(float& most, float other_most) {
    const float larger = fmaxf(most, other_most);
    own = power_of_2(most - larger);
    other = power_of_2(other_most - larger);
    most = larger;
  }
  __device__ __forceinline__ void add(float& sum, float more) const {
    sum = sum * own + more * other;
  }
};

// Adds a part of shared memory to those of the warp.
__device__ __forceinline__ void join_part(Accumulators& acc, const Part& part) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
    const float4(*const rows)[kWarp] = part + n * (1 + kRows);
    const float4 rest = rows[0][lane];
    const Shares low(acc.most[n][0], rest.x), high(acc.most[n][1], rest.y);
    low.add(acc.sum[n][0], rest.z);
    high.add(acc.sum[n][1], rest.w);
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      const float4 more = rows[1 + row][lane];
      float* at = acc.at[row][n];
      low.add(at[0], more.x);
      high.add(at[1], more.y);
      low.add(at[2], more.z);
      high.add(at[3], more.w);
    }
  }
}

// The softmax denominator of the lane's head 8n + 2t + c: 2^most * sum, the sink included.
struct Total {
  float most, sum;
  float share;  // what its sums of values become the result by

  __device__ __forceinline__ Total(const Arguments& of, const Heads& heads, int head, float top,
                                   float own)
      : most(top), sum(own), share(Codes::kUnit) {
#pragma unroll
    for (int step = 4; step < kWarp; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (of.sinks != nullptr && head < heads.count) {
      const Shares shares(most, kLog2e * of.sinks[heads.head + head]);
      shares.add(sum, 1.0f);
      share *= shares.own;
    }
    share = __fdividef(share, sum);
  }
};

// The first element of the result of a head.
__device__ __forceinline__ T* result_of(const Arguments& of, const Heads& heads, int request,
                                        int head) {
  const long long index =
      static_cast<long long>(request) * of.kv_heads * of.group + heads.head + head;
  return of.out + (index * VALUE_SIZE + heads.element);
}

// Writes the log-sum-exp of a head. Many lanes have it, of each section of its elements: one
// writes.
__device__ __forceinline__ void write_lse(const Arguments& of, const Heads& heads, int request,
                                          int head, const Total& total) {
  if (threadIdx.x % kWarp >= 4 || heads.element > 0) return;
  of.lse[request * of.kv_heads * of.group + heads.head + head] = log_sum(total.most, total.sum);
}

// The element that lane row g holds in the first of two adjacent ones of a row of the result.
__device__ __forceinline__ int element_of(int row, int g) {
  constexpr int kPerPiece = 2 * kRowsPerLoad;
  return (row / kRowsPerLoad * 8 + g) * kPerPiece + row % kRowsPerLoad * 2;
}

// Two adjacent elements of a result, of an even and an odd pair.
__device__ __forceinline__ unsigned pack_result(float even, float odd, float share) {
  return pack_pair<T>(even * share, odd * (share * (Codes::kOddUnit / Codes::kUnit)));
}

// Writes the result of an item of which the warp has seen all tokens.
__device__ __forceinline__ void write_result(const Accumulators& acc, const Arguments& of,
                                             const Tile& tile) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const Heads heads(of, tile.kv_head, tile.section);
#pragma unroll
  for (int i = 0; i < 2 * HEAD_TILES; ++i) {
    const int n = i / 2, c = i % 2, head = 8 * n + 2 * t + c;
    const Total total(of, heads, head, acc.most[n][c], acc.sum[n][c]);
    if (head >= heads.count) continue;
    if constexpr (LSE) write_lse(of, heads, tile.request, head, total);
    T* const out = result_of(of, heads, tile.request, head);
    constexpr int kStep = kRowsPerLoad % 2 == 0 ? 2 : 1;  // rows whose elements are adjacent
#pragma unroll
    for (int row = 0; row < kRows; row += kStep) {
      const int element = element_of(row, g);
      if (element >= VALUE_TILE) continue;
      unsigned words[2];
#pragma unroll
      for (int w = 0; w < kStep; ++w) {
        const float* at = acc.at[row + w][n];
        words[w] = pack_result(at[c], at[2 + c], total.share);
      }
      if constexpr (kStep == 2) {
        *reinterpret_cast<uint2*>(out + element) = make_uint2(words[0], words[1]);
      } else {
        *reinterpret_cast<unsigned*>(out + element) = words[0];
      }
    }
  }
}

// Leaves the block's part of an item for later blocks.
__device__ __forceinline__ void publish(const Accumulators& acc, const Arguments& of, int index) {
  store_part(part_of(of, index), acc);
  __syncwarp();
  if (threadIdx.x % kWarp == 0) store_flag(&of.plan.flags()[index], readers_of(gridDim.x));
}
