// Which rows of which slice a tile is, longest tiles first; made once per step for every layer.
//
// Slice r is the rows bounds[r] .. bounds[r + 1] of a step; its last row stands at position
// lengths[r] - 1. A tile is `tile_rows` rows of one slice, and costs the keys that its rows see.
//
//   plan   0 num_tiles | 1 most_parts | 4 ends[R] | from the next even place on
//          tiles[num_tiles]: (slice, first row) | counters[most_tasks]
//
// A task is a tile times one of `packs` groups of heads. Where tasks are few and contexts long, the
// keys of each are cut into up to most_parts, so that there are up to most_tasks parts (0: no task
// is cut); counters tell how many parts of a task have arrived, 0 before each launch and after it.
//
// One block: tiles are counted into kBuckets by cost and placed in falling order. Within a bucket
// the order is that of the threads; no result depends on it.
//
// Demands: 1 <= slices; room for rows / tile_rows + slices tiles, and most_tasks counters.

constexpr int kThreads = 1024, kBuckets = 1024, kHeader = 4;
constexpr int kLeastKeys = 512;  // of a part: fewer cost less than adding the parts up

// The inclusive sum over the threads up to this one; `carry` becomes the sum over all of them.
__device__ __forceinline__ int running_sum(int x, int& carry) {
  __shared__ int of_warp[kThreads / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, x, step);
    if (lane >= step) x += before;
  }
  __syncthreads();
  if (lane == kWarp - 1) of_warp[warp] = x;
  __syncthreads();
  int before = 0, all = 0;
  for (int w = 0; w < kThreads / kWarp; ++w) {
    if (w == warp) before = all;
    all += of_warp[w];
  }
  carry = all;
  return before + x;
}

// Slices before which at least one tile ends after `tile`: the slice that it belongs to.
__device__ __forceinline__ int slice_of(const int* ends, int slices, int tile) {
  int low = 0, high = slices - 1;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (ends[middle] > tile) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    prefill_plan(int* plan, const int* bounds, const int* lengths, int slices, int tile_rows,
                 int window, int packs, int most_tasks) {
  __shared__ int counts[kBuckets];
  __shared__ int longest;
  int* ends = plan + kHeader;
  int2* tiles = reinterpret_cast<int2*>(ends + slices + slices % 2);
  const int thread = threadIdx.x;
  counts[thread] = 0;
  if (thread == 0) longest = 1;
  __syncthreads();

  int num_tiles = 0;
  for (int first = 0; first < slices; first += kThreads) {
    const int slice = first + thread;
    int mine = 0;
    if (slice < slices) {
      mine = (bounds[slice + 1] - bounds[slice] + tile_rows - 1) / tile_rows;
      if (mine > 0) atomicMax(&longest, lengths[slice]);
    }
    int all;
    const int end = num_tiles + running_sum(mine, all);
    if (slice < slices) ends[slice] = end;
    num_tiles += all;
  }
  __syncthreads();

  const auto locate = [&](int tile, int& bucket) {
    const int slice = slice_of(ends, slices, tile);
    const int rows = bounds[slice + 1] - bounds[slice], start = lengths[slice] - rows;
    const int first = (tile - (slice ? ends[slice - 1] : 0)) * tile_rows;
    const int stop = start + min(first + tile_rows, rows);
    const int cost = window ? stop - max(0, start + first - window + 1) : stop;
    const long long scaled = static_cast<long long>(cost) * (kBuckets - 1) / longest;
    bucket = kBuckets - 1 - static_cast<int>(scaled);
    return make_int2(slice, first);
  };
  for (int tile = thread; tile < num_tiles; tile += kThreads) {
    int bucket;
    locate(tile, bucket);
    atomicAdd(&counts[bucket], 1);
  }
  __syncthreads();
  int all;
  const int mine = counts[thread], end = running_sum(mine, all);
  counts[thread] = end - mine;
  __syncthreads();
  for (int tile = thread; tile < num_tiles; tile += kThreads) {
    int bucket;
    const int2 where = locate(tile, bucket);
    tiles[atomicAdd(&counts[bucket], 1)] = where;
  }
  if (thread == 0) {
    const int parts = min(most_tasks / max(num_tiles * packs, 1), longest / kLeastKeys);
    plan[0] = num_tiles;
    plan[1] = max(parts, 1);
  }
  int* counters = reinterpret_cast<int*>(tiles + num_tiles);
  for (int task = thread; task < most_tasks; task += kThreads) counters[task] = 0;
}
