// The plan of a prefill: the rows of a slice that each tile has, longest tiles first; made once per
// step for every layer.
//
// Slice r is the rows bounds[r] .. bounds[r + 1] of a step; its last row stands at position
// lengths[r] - 1, or all of them see lengths[r] keys where attention is not causal. A slice of
// length 0 is padding. A tile is `tile_rows` rows of one slice, and its cost the blocks of
// `key_block` keys that its rows see.
//
//   plan   0 num_tiles | 1 parts | 4 counters[most_sharers] | ends[R] | from a multiple of 4 on
//          tiles[num_tiles]: (slice, first row of the step, number of rows, position of the first)
//          not causal: (slice, first row of the step, minus the number of rows, last key)
//          RAGGED: (first row of the sequence, first row, number of rows, last key)
//
// A task is a tile times one of `packs` groups of heads. Where all tasks together need no more than
// half of most_sharers thread blocks, each is shared by `parts` adjacent ones; the first one's
// counter tells how many parts are there. Counters are 0 before each launch and after it.
//
// One block: tiles are counted into kBuckets by cost and placed in falling order. Within a bucket
// the order is that of the threads; no result depends on it.
//
// Macro: RAGGED (0 or 1: slices are whole sequences without spans, and lengths are not given).
// Demands: 1 <= slices; room for rows / tile_rows + slices tiles; `plan` at a multiple of 16 bytes.

constexpr int kThreads = 1024, kBuckets = 1024, kHeader = 4;
constexpr int kLeastShared = 6;  // blocks of keys: of fewer, adding up costs what sharing saves

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
    prefill_plan(int* plan, const int* query_start_loc, const int* seq_lens, int slices,
                 int tile_rows, int key_block, int window, int packs, int most_sharers,
                 int causal) {
  __shared__ int counts[kBuckets];
  __shared__ int most_keys, longest;
  int* const ends = plan + kHeader + most_sharers;
  int4* const tiles = reinterpret_cast<int4*>(plan) + (kHeader + most_sharers + slices + 3) / 4;
  const int thread = threadIdx.x;
  counts[thread] = 0;
  if (thread == 0) most_keys = 1, longest = 0;
  for (int task = thread; task < most_sharers; task += kThreads) plan[kHeader + task] = 0;
  __syncthreads();

  const auto keys_of = [&](int slice) {
    if constexpr (RAGGED) return query_start_loc[slice + 1] - query_start_loc[slice];
    return seq_lens[slice];
  };
  int num_tiles = 0;
  for (int first = 0; first < slices; first += kThreads) {
    const int slice = first + thread;
    int mine = 0;
    if (slice < slices && keys_of(slice) > 0) {
      mine = (query_start_loc[slice + 1] - query_start_loc[slice] + tile_rows - 1) / tile_rows;
      if (mine > 0) atomicMax(&most_keys, keys_of(slice));
    }
    int all;
    const int end = num_tiles + running_sum<kThreads>(mine, all);
    if (slice < slices) ends[slice] = end;
    num_tiles += all;
  }
  __syncthreads();

  const long long most_cost = most_keys / key_block + 1;
  const auto locate = [&](int number, int4& tile) {
    const int slice = slice_of(ends, slices, number);
    const int rows = query_start_loc[slice + 1] - query_start_loc[slice];
    const int first = (number - (slice ? ends[slice - 1] : 0)) * tile_rows;
    const int count = min(tile_rows, rows - first);
    if constexpr (RAGGED) {
      const int start = query_start_loc[slice];
      tile = make_int4(start, start + first, count, rows - 1);
      return (rows - 1) / key_block + 1;
    }
    if (!causal) {
      const int last = seq_lens[slice] - 1;
      tile = make_int4(slice, query_start_loc[slice] + first, -count, last);
      return last / key_block + 1;
    }
    const int position = seq_lens[slice] - rows + first;
    const int first_key = window ? max(0, position - window + 1) : 0;
    tile = make_int4(slice, query_start_loc[slice] + first, count, position);
    return (position + count - 1) / key_block - first_key / key_block + 1;
  };
  const auto bucket_of = [&](int cost) {
    return kBuckets - 1 - static_cast<int>(cost * (kBuckets - 1) / most_cost);
  };
  for (int number = thread; number < num_tiles; number += kThreads) {
    int4 tile;
    const int cost = locate(number, tile);
    atomicAdd(&counts[bucket_of(cost)], 1);
    atomicMax(&longest, cost);
  }
  __syncthreads();
  int all;
  const int mine = counts[thread], end = running_sum<kThreads>(mine, all);
  counts[thread] = end - mine;
  __syncthreads();
  for (int number = thread; number < num_tiles; number += kThreads) {
    int4 tile;
    const int cost = locate(number, tile);
    tiles[atomicAdd(&counts[bucket_of(cost)], 1)] = tile;
  }
  if (thread == 0) {
    const int sharers = most_sharers / max(num_tiles * packs, 1);
    plan[0] = num_tiles;
    plan[1] = longest < kLeastShared ? 1 : max(sharers, 1);
  }
  // The attention reads the plan without waiting for this kernel to end; and it may start as soon
  // as one thread of the block lets it, so all of them must have written by then.
  __threadfence();
  __syncthreads();
  let_next_kernel_start();
}
