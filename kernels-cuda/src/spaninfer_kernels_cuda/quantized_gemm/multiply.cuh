// What hopper.cu and general.cu share.
//
// Macros: those of chunk.cuh; BLOCKS (of 64 weight rows that a warpgroup has, of GROUPS in all),
//         SPLITS, GATED, ACT.
//
// Needs chunk.cuh, epilogue.cuh, stream_k.cuh.

struct Kernel {
  using Element = T;
  static constexpr bool kGated = GATED;
  static constexpr int kThreads = GROUPS / BLOCKS * 4 * kWarp;  // consumers
  static constexpr int kRows = GROUPS * kBlockRows;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kColumns = BLOCKS * ::kColumns;  // of the first block, then of the second
  static constexpr int kBlocks = SPLITS;  // of a cluster

  static __device__ __forceinline__ float activated(float x) { return ACT(x); }
  static __device__ __forceinline__ void sync() {
    asm volatile("bar.sync 1, %0;" ::"n"(kThreads) : "memory");
  }
};

// The records of a weight, and its numbers per row.
struct Records {
  const unsigned char* at;
  const float* factors;
  int blocks, chunks;  // of 64 rows; of 128 columns

  // Rows beyond the last block are any rows: their results are not written.
  __device__ __forceinline__ const unsigned char* of(const ChunkCursor& place, int group) const {
    const int block = min(place.tile * GROUPS + group, blocks - 1);
    return at + (static_cast<size_t>(block) * chunks + place.chunk) * kRecordBytes;
  }

  // The factors of a lane's rows of a tile, in block `number` of its warpgroup.
  __device__ __forceinline__ float2 factors_of(const ChunkCursor& place, const Lane& own,
                                               int number = 0) const {
    const int block = min(place.tile * GROUPS + own.group * BLOCKS + number, blocks - 1);
    const float* factor = factors + block * kBlockRows + own.row();
    return make_float2(kCodeUnits * factor[0], kCodeUnits * factor[8]);
  }
};

// acc *= scales of x in e4m3: `scales(j, i)` is that of the thread's token i of column j.
template <typename Scales>
__device__ __forceinline__ void scale_tokens(Accumulators<Kernel>& acc, Scales scales) {
#pragma unroll
  for (int j = 0; j < ::kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float scale = scales(j, i);
#pragma unroll
      for (int block = 0; block < BLOCKS; ++block) {
        acc[block * ::kColumns + j][i] *= scale;
        acc[block * ::kColumns + j][i + 2] *= scale;
      }
    }
  }
}
