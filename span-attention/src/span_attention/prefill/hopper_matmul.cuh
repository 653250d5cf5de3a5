// The steps of a consumer of hopper.cu: products of queries and keys, of exponentials and values,
// and the lines that it stores.

// Barriers by number: the turns of the consumers to issue wgmmas, and each one's own threads.
constexpr int kTurnBarrier = 1, kOwnBarrier = kTurnBarrier + CONSUMERS,
              kAllBarrier = kOwnBarrier + CONSUMERS;

template <int kCount>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void pass_by(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

// s = the consumer's lines of `query` times `keys`.
__device__ __forceinline__ void start_scores(float (&s)[kFragments][4], unsigned query,
                                             unsigned keys) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < KEY_SIZE / 16; ++k) {
    const int tile = 16 * k / kColumns, within = 16 * k % kColumns * 2;
    Wgmma<T, kFragments>::of_tiles(s, tile_at<ROW_BYTES>(query + tile * kQueryTile + within, 16),
                                     tile_at<ROW_BYTES>(keys + tile * kTile + within, 16), k > 0);
  }
  wgmma_commit();
}

// acc += p times `values`.
__device__ __forceinline__ void start_values(float (&acc)[kAccumulators][4],
                                             const unsigned (&p)[kFragments / 2][4],
                                             unsigned values) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < BLOCK / 16; ++k) {
    const unsigned rows = values + 16 * k * ROW_BYTES;
    Wgmma<T, kAccumulators>::of_registers(acc, p[k], tile_at<ROW_BYTES>(rows, kTile));
  }
  wgmma_commit();
}

// Zeros in the rows first .. BLOCK - 1 of values. Each consumer writes all that it will read, so
// that it waits for no other.
__device__ __forceinline__ void zero_values(unsigned char* values, int first, int consumer) {
  constexpr int kParts = kValueTiles * ROW_BYTES / 16;
  for (int i = threadIdx.x % kGroup; i < (BLOCK - first) * kParts; i += kGroup) {
    const int row = first + i / kParts, tile = i % kParts / (ROW_BYTES / 16);
    *reinterpret_cast<uint4*>(values + tile * kTile + row * ROW_BYTES + i % (ROW_BYTES / 16) * 16) =
        make_uint4(0u, 0u, 0u, 0u);
  }
  publish_to_async();
  meet<kGroup>(kOwnBarrier + consumer);
}

__device__ __forceinline__ void round_scores(unsigned (&p)[kFragments / 2][4],
                                             const float (&s)[kFragments][4]) {
#pragma unroll
  for (int k = 0; k < kFragments / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &s[2 * k + i / 2][i % 2 * 2];
      p[k][i] = pack_pair<T>(pair[0], pair[1]);
    }
  }
}

// Stores one line of the accumulators times `share`. Four lanes hold two adjacent elements of each
// fragment; they exchange them, so that each stores 16 bytes of one fragment.
__device__ __forceinline__ void store_line(T* to, const float (&acc)[kAccumulators][4], int part,
                                           float share, bool is_there) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kAccumulators; n += 4) {
    unsigned mine[4] = {};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (n + i >= kAccumulators) continue;
      mine[i] = pack_pair<T>(acc[n + i][2 * part] * share, acc[n + i][2 * part + 1] * share);
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        const unsigned got = __shfl_xor_sync(0xffffffffu, t & bit ? mine[i] : mine[i | bit], bit);
        (t & bit ? mine[i] : mine[i | bit]) = got;
      }
    }
    if (is_there && 8 * (n + t) < kWidth) {
      *reinterpret_cast<uint4*>(to + 8 * (n + t)) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
    }
  }
}
