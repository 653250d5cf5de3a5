// Split-K reduction in a cluster: its blocks add their partials of one tile, and finish it.
//
// A tile's columns of 8 tokens belong to the blocks in turn. Every block sends its partials of a
// column to the owner, by stores that count themselves at a barrier there, and may then end; an
// owner waits for the partials of all, adds them in block order, and writes the result. So a
// partial crosses the cluster once, and only owners wait for blocks that still multiply.
//
// `Kernel` has, besides what epilogue.cuh requires, kBlocks: those of the cluster. Where its warps
// have several times 16 rows, columns are those of the first rows, then of the next.
//
// Needs mma.cuh, copy.cuh, cluster.cuh, epilogue.cuh; sm_90.

// The partials of a block's own columns, and the barrier at which they arrive.
template <typename Kernel>
struct ClusterReduction {
  static constexpr int kBlocks = Kernel::kBlocks;
  static constexpr int kMostOwned = (Kernel::kColumns + kBlocks - 1) / kBlocks;

  float4 acc[kMostOwned][kBlocks][Kernel::kThreads];
  Barrier arrived;

  // By one thread of each block, before the cluster barrier that precedes all sends.
  __device__ __forceinline__ void open() {
    const int owned = (Kernel::kColumns - rank_in_cluster() + kBlocks - 1) / kBlocks;
    init_barrier(&arrived, 1);
    arrive_expecting(&arrived, owned * static_cast<int>(sizeof(acc[0])));
  }

  // Stores to block `rank`, at the address that `place` has here, and counts there.
  __device__ __forceinline__ void send(const float (&sum)[4], const float4& place, int rank) {
    asm volatile(
        "{\n"
        ".reg .b32 there, counter;\n"
        "mapa.shared::cluster.u32 there, %0, %2;\n"
        "mapa.shared::cluster.u32 counter, %1, %2;\n"
        "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [there], {%3, %4, %5, %6}, "
        "[counter];\n"
        "}" ::"r"(shared_address(&place)),
        "r"(shared_address(&arrived)), "r"(rank), "f"(sum[0]), "f"(sum[1]), "f"(sum[2]), "f"(sum[3])
        : "memory");
  }

  // Waits until the partials of all blocks have arrived.
  __device__ __forceinline__ void wait() {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 done, [%0], 0;\n"
        "@!done bra again;\n"
        "}" ::"r"(shared_address(&arrived))
        : "memory");
  }
};

// How often a warp has 16 rows of a tile: once in each of so many blocks of its warpgroup.
template <typename Kernel>
constexpr int kRowBlocks = 1;
template <typename Kernel>
constexpr int kTokenColumns = Kernel::kColumns / kRowBlocks<Kernel>;

// The column of the result that row g of a warp's rows in block `block` of its warpgroup is.
template <typename Kernel>
__device__ __forceinline__ int column_in_block(int block) {
  const int warp = threadIdx.x / kWarp;
  const int number = (warp / 4 * kRowBlocks<Kernel> + block) * 4 + warp % 4;
  return column_of<Kernel>(blockIdx.x / Kernel::kBlocks, number);
}

// The token that a thread's results of a column of sums begin with.
template <typename Kernel>
__device__ __forceinline__ int token_of_column(int own) {
  return 8 * (own % kTokenColumns<Kernel>) + 2 * (threadIdx.x % 4);
}

// The bias and residual of an owner's columns. They are loaded before the multiplication, so that
// nothing is left to wait for after the last partial.
template <typename Kernel>
struct Added {
  float2 bias[kRowBlocks<Kernel>];
  float4 residual[ClusterReduction<Kernel>::kMostOwned];

  __device__ __forceinline__ float2 bias_of_block(int block) const {
    float2 own = bias[0];
#pragma unroll
    for (int n = 1; n < kRowBlocks<Kernel>; ++n) {
      if (n == block) own = bias[n];
    }
    return own;
  }
};

template <typename Kernel>
__device__ __forceinline__ Added<Kernel> added_by_owner(const Target<Kernel>& target) {
  Added<Kernel> added = {};
  if constexpr (Kernel::kBlocks > 1) {
    const int rank = rank_in_cluster();
#pragma unroll
    for (int block = 0; block < kRowBlocks<Kernel>; ++block) {
      added.bias[block] = bias_of<Kernel>(target, column_in_block<Kernel>(block));
    }
#pragma unroll
    for (int n = 0; n < ClusterReduction<Kernel>::kMostOwned; ++n) {
      const int own = min(rank + n * Kernel::kBlocks, Kernel::kColumns - 1);
      const int column = column_in_block<Kernel>(own / kTokenColumns<Kernel>);
      added.residual[n] = residual_of<Kernel>(target, column, token_of_column<Kernel>(own));
    }
  }
  return added;
}

// Once, by all threads that multiply, after the barrier of the cluster.
template <typename Kernel>
__device__ __forceinline__ void finish_with_cluster(const Accumulators<Kernel>& acc,
                                                    ClusterReduction<Kernel>& reduction,
                                                    const Target<Kernel>& target,
                                                    const Added<Kernel>& added) {
  constexpr int kBlocks = Kernel::kBlocks;
  const int rank = rank_in_cluster();
#pragma unroll
  for (int j = 0; j < Kernel::kColumns; ++j) {
    reduction.send(acc[j], reduction.acc[j / kBlocks][rank][threadIdx.x], j % kBlocks);
  }
  if (rank >= Kernel::kColumns) return;
  reduction.wait();
#pragma unroll
  for (int n = 0; n < ClusterReduction<Kernel>::kMostOwned; ++n) {
    const int own = rank + n * kBlocks;
    if (own >= Kernel::kColumns) break;
    float sum[4] = {};
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float4 part = reduction.acc[n][block][threadIdx.x];
      sum[0] += part.x;
      sum[1] += part.y;
      sum[2] += part.z;
      sum[3] += part.w;
    }
    const int block = own / kTokenColumns<Kernel>;
    complete<Kernel>(sum, added.bias_of_block(block), added.residual[n]);
    store<Kernel>(sum, target, column_in_block<Kernel>(block), token_of_column<Kernel>(own));
  }
}
