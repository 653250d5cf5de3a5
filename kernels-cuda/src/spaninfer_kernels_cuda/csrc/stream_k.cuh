// Stream-K: the division of a GEMM's chunks among the blocks of a grid, and their order.
//
// The work is a list of chunks: a tile's rows of the weight by some elements of K, tile after tile.
// Every block takes an equal part of it, wherever tiles begin (stream-K: Osama et al., arXiv
// 2301.03598).
//
//   chunks   |·········· tile 0 ··········|·········· tile 1 ··········|·········· tile 2 ···
//   blocks   |──────── 0 ────────|──────── 1 ────────|──────── 2 ────────|──────── 3 ────────
//
// The block with the last chunk of a tile owns it: it adds the partials that the blocks before it
// have left in the workspace, always in the same order, so that results do not depend on timing. A
// block takes its tiles backwards, first the one that another block owns, so that owners seldom
// wait; they wait only for blocks with smaller numbers, which run or have run, so they never wait
// in vain.
//
// Where tiles are few, waiting through device memory takes longer than the work. There the blocks
// of a cluster have one tile, and equal parts of its chunks.
//
// Needs cluster.cuh.

// A block's next chunk; `stop` is where it leaves this tile.
struct ChunkCursor {
  int tile, chunk, stop;

  __device__ __forceinline__ bool is_last() const { return chunk + 1 == stop; }
};

struct WorkRange {
  int all, begin, end;  // chunks: of all tiles (2^31 of them would be 16 TiB); those of this block
  int chunks, blocks;   // of a tile; that share the work

  // An equal part of all chunks.
  static __device__ __forceinline__ WorkRange of_grid(int tiles, int chunks) {
    const int blocks = gridDim.x, block = blockIdx.x;
    const long long all = static_cast<long long>(tiles) * chunks;
    return {static_cast<int>(all), static_cast<int>(all * block / blocks),
            static_cast<int>(all * (block + 1) / blocks), chunks, blocks};
  }

  // An equal part of the chunks of the cluster's tile.
  static __device__ __forceinline__ WorkRange of_cluster(int chunks) {
    const int blocks = blocks_of_cluster(), rank = rank_in_cluster();
    const int first = blockIdx.x / blocks * chunks;
    return {chunks, first + chunks * rank / blocks, first + chunks * (rank + 1) / blocks, chunks,
            blocks};
  }

  __device__ __forceinline__ int count() const { return end - begin; }

  __device__ __forceinline__ ChunkCursor start() const { return in_tile((end - 1) / chunks); }

  __device__ __forceinline__ void advance(ChunkCursor& place) const {
    if (++place.chunk == place.stop) place = in_tile(place.tile - 1);
  }

  __device__ __forceinline__ ChunkCursor in_tile(int tile) const {
    const int first = tile * chunks;
    return {tile, max(begin - first, 0), min(end - first, chunks)};
  }

  __device__ __forceinline__ bool owns(const ChunkCursor& place) const {
    return place.stop == chunks;
  }

  // The block whose part holds the first chunk of a tile.
  __device__ __forceinline__ int first_block(int tile) const {
    const long long first = static_cast<long long>(tile) * chunks;
    return static_cast<int>(((first + 1) * blocks - 1) / all);
  }
};
