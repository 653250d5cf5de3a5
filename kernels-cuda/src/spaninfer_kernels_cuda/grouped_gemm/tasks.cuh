// Tasks of a grouped GEMM, found on the GPU: no host knows how many rows an expert has.
//
// Rows are sorted by expert; those of expert e end at ends[e] (an inclusive prefix). They are cut
// into tiles, and a task is one of them with a tile of the expert's weight. Each block counts tiles
// for itself, so that there is no kernel for it and no memory: an inclusive prefix in shared
// memory. A warp then finds a task by comparing its number with 32 of the prefix at a time
// (ballot). An expert without rows has no tiles, and is never found.
//
// Experts that all tokens share have the most rows, and are the last ones of `ends`: their tasks
// come first, so that no block is left with the longest when the others have none.
//
// Macros: EXPERTS (a multiple of 32; those beyond the last one have no rows), SHARED (how many are
//         shared), ROUTED (the others, where some are shared).
//
// Needs reduce.cuh.

constexpr int kExpertGroups = EXPERTS / kWarp;

// By place in the order of tasks. Aligned, so that what compilers load beside a number is shared
// memory, too.
struct alignas(16) Experts {
  int row_ends[EXPERTS], tile_ends[EXPERTS], tiles_of_group[kExpertGroups];

  __device__ __forceinline__ int tiles() const { return tile_ends[EXPERTS - 1]; }
};

// A tile of the rows of an expert, and the number of a tile of its weight.
struct Task {
  int expert, tile, first, count;  // count rows of the sorted ones, from `first` on
};

// The expert at a place in the order of tasks; places beyond the last expert stay beyond it.
__device__ __forceinline__ int expert_at(int place) {
  if (place < SHARED) return ROUTED + place;
  return place < SHARED + ROUTED ? place - SHARED : place;
}

// Counts the tiles of kRows rows; all kThreads threads of the block must call it.
template <int kRows, int kThreads>
__device__ __forceinline__ void count_tiles(Experts& all, const int* ends, int experts) {
  const int lane = threadIdx.x % kWarp;
  for (int group = threadIdx.x / kWarp; group < kExpertGroups; group += kThreads / kWarp) {
    const int place = group * kWarp + lane;
    const int expert = expert_at(place);
    const int end = ends[min(expert, experts - 1)];
    const int begin = expert > 0 ? ends[min(expert, experts) - 1] : 0;
    int tiles = (end - begin + kRows - 1) / kRows;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, tiles, step);
      if (lane >= step) tiles += before;
    }
    all.row_ends[place] = end;
    all.tile_ends[place] = tiles;
    if (lane == kWarp - 1) all.tiles_of_group[group] = tiles;
  }
  __syncthreads();
  for (int place = threadIdx.x; place < EXPERTS; place += kThreads) {
    int before = 0;
    for (int group = 0; group < place / kWarp; ++group) before += all.tiles_of_group[group];
    all.tile_ends[place] += before;
  }
  __syncthreads();
}

// Where rows of the expert at a place begin: of the first shared one behind the last routed one.
__device__ __forceinline__ int first_row(const Experts& all, int place) {
  if constexpr (SHARED > 0) {
    return place == SHARED ? 0 : all.row_ends[(place > 0 ? place : SHARED + ROUTED) - 1];
  }
  return place > 0 ? all.row_ends[place - 1] : 0;
}

// Task `number` where each tile of rows meets `across` tiles of the weight; a whole warp asks. Up
// to kTogether tiles of rows go through the weight side by side, which so is read from the L2
// cache. Tiles have kRows rows and an expert's last one the rest, or, with kShare, each has as many
// as there are for it, in multiples of kShare.
template <int kRows, int kTogether, int kShare = 0>
__device__ __forceinline__ Task find_task(const Experts& all, int number, int across) {
  const int tile = number / across;
  int place = 0;
#pragma unroll
  for (int first = 0; first < EXPERTS; first += kWarp) {
    const bool is_before = all.tile_ends[first + threadIdx.x % kWarp] <= tile;
    place += __popc(__ballot_sync(0xffffffffu, is_before));
  }
  const int before = place > 0 ? all.tile_ends[place - 1] : 0;
  const int band = (tile - before) / kTogether * kTogether;  // the first tile of those side by side
  const int beside = min(kTogether, all.tile_ends[place] - before - band);
  const int within = number - (before + band) * across;
  const int begin = first_row(all, place), end = all.row_ends[place];
  int rows = kRows;
  if constexpr (kShare > 0) {
    const int shares = (all.tile_ends[place] - before) * kShare;
    rows = (end - begin + shares - 1) / shares * kShare;
  }
  const int first = begin + (band + within % beside) * rows;
  return {expert_at(place), within / beside, first, min(rows, end - first)};
}
