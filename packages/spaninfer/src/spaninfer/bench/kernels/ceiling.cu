// What memory gives: every element read once, or read once and written once. The rates are the
// ceilings that kernels are held against; there is nothing in them that could be left out.
//
// A block has one tile and no loop: blocks that stay and loop read 2 % less (H200, 2026-11-21).
//
// Macros: THREADS, PER_THREAD (packs of a thread, all of them on their way at once).
// Demands: `packs` 16-byte elements at 16-byte aligned addresses; a block per THREADS * PER_THREAD.

struct Tile {
  uint4 held[PER_THREAD];
  long long first;
};

// Return the packs of this thread; those behind the end are zero.
__device__ __forceinline__ Tile load(const uint4* x, long long packs) {
  Tile tile{{}, static_cast<long long>(blockIdx.x) * THREADS * PER_THREAD + threadIdx.x};
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const long long at = tile.first + k * THREADS;
    if (at < packs) tile.held[k] = x[at];
  }
  return tile;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    read_all(const uint4* __restrict__ x, long long packs, uint4* __restrict__ out) {
  const Tile tile = load(x, packs);
  unsigned mixed = 0;
#pragma unroll
  for (const uint4& pack : tile.held) mixed ^= pack.x ^ pack.y ^ pack.z ^ pack.w;
  if (mixed == 0x9e3779b9u) out->x = mixed;  // so that no load can be left out
}

extern "C" __global__ void __launch_bounds__(THREADS)
    copy_all(const uint4* __restrict__ x, long long packs, uint4* __restrict__ out) {
  const Tile tile = load(x, packs);
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const long long at = tile.first + k * THREADS;
    if (at < packs) out[at] = tile.held[k];
  }
}
