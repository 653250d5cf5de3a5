// The sums of a warpgroup of coded_hopper.cu, as pipeline.cuh names them, and the barrier of its
// buffers.
//
// Macros: those of chunk.cuh; BLOCKS.
//
// Needs chunk.cuh, copy.cuh.

constexpr int kWarpgroups = GROUPS / BLOCKS;

struct Kernel {
  static constexpr int kColumns = BLOCKS * ::kColumns;  // of the first block, then of the second
};

template <typename Of>
using Accumulators = float[Of::kColumns][4];

// The sums of block `number` of a warpgroup.
__device__ __forceinline__ Sums& sums_of(Accumulators<Kernel>& acc, int number) {
  return *reinterpret_cast<Sums*>(&acc[number * kColumns]);
}

// The full barrier of a buffer that threads wrote to, which wgmma is to read.
struct Gathered {
  Barrier barrier;
};

__device__ __forceinline__ void wait(Gathered* full, int parity) {
  wait(&full->barrier, parity);
  publish_to_async();
}
