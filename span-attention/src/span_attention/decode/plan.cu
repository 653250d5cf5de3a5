// Divides the tokens of a step among the warps of decode_attend, equally.
//
// A tile is `tile_tokens` tokens of one request as one item reads them, an item being the query
// heads that a warp computes together. Tiles are numbered request by request, in each item by item,
// in each by token. Where most blocks can have whole items of about as many tiles together, they
// do: parts of items need not find together then. Else all warps get equally many tiles.
//
// Macros: THREADS. One block; memory of the plan as in decode_plan.cuh.

// Tiles that are read while parts of items find together (2 us), and how many of the blocks it
// takes to use the bandwidth (H200: 128 of 264 read 16 requests of 4096 tokens in 77 us, all in
// 67).
constexpr int kMerging = 1024;
constexpr float kBusy = 0.75f;

// The exclusive prefix sum over the threads; `all` becomes the sum over the block.
__device__ int sum_before(int x, int* all) {
  __shared__ int of_warp[THREADS / kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int sum = x;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int other = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += other;
  }
  if (lane == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  int before = 0, total = 0;
  for (int w = 0; w < THREADS / kWarp; ++w) {
    before += w < warp ? of_warp[w] : 0;
    total += of_warp[w];
  }
  __syncthreads();
  *all = total;
  return before + sum - x;
}

// The request that has the tile before `end`: firsts[it] < end <= firsts[it + 1].
__device__ int request_before(int end, const int* firsts, int requests) {
  int low = 0, high = requests;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (firsts[middle] < end ? low : high) = middle;
  }
  return low;
}

// The end of an item that is nearest to `tile`; a request has `items`.
__device__ int end_near(int tile, const int* firsts, int requests, int items) {
  const int request = request_before(tile, firsts, requests), first = firsts[request];
  const int own = (firsts[request + 1] - first) / items;  // tiles of an item
  return first + (tile - first + own / 2) / own * own;
}

// Writes the ends of the shares of `blocks` blocks that take whole items. Returns whether these are
// read as soon as equal shares are, and added up.
__device__ bool divide_whole(int* ends, int blocks, int tiles, const int* firsts, int requests,
                             int items) {
  const Division division = divide(tiles, blocks);
  for (int block = threadIdx.x; block < blocks; block += THREADS) {
    ends[block] = end_near(division.begin(block + 1), firsts, requests, items);
  }
  __syncthreads();
  bool is_late = false;
  for (int block = threadIdx.x; block < blocks; block += THREADS) {
    const long long own = ends[block] - (block > 0 ? ends[block - 1] : 0);
    is_late |= own * blocks > tiles + kMerging;
  }
  return !__syncthreads_or(is_late);
}

// The long item that ends in a block, whose tiles are [begin, end).
__device__ Order order_of(int block, int begin, int end, const Division& division, int per_block,
                          const int* firsts, int requests, int items) {
  if (begin == 0 || begin >= end) return {-1};
  const int request = request_before(begin, firsts, requests), first = firsts[request];
  const int own = (firsts[request + 1] - first) / items, item = (begin - 1 - first) / own;
  const int item_begin = first + item * own, item_end = item_begin + own;
  if (item_end <= begin || item_end > end) return {-1};
  const int first_block = division.holder(item_begin) / per_block;
  return {block - first_block > kMany ? first_block : -1, request, item};
}

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_plan(Totals* totals, const int* seq_lens, int requests, int items, int window,
                int tile_tokens, int most_warps, int most_blocks) {
  wait_for_kernel_before();
  const Plan plan{totals, most_warps, most_blocks, requests};
  int* const firsts = plan.firsts();
  int tiles = 0, paddings = 0, longest = 0;  // tiles of an item
  for (int begin = 0; begin < requests; begin += THREADS) {
    const int request = begin + threadIdx.x;
    const int length = request < requests ? seq_lens[request] : 0;
    const int own = items * ceil_div(length - first_token(length, window), tile_tokens);
    int all;
    const int before = sum_before(own, &all);
    if (request < requests) firsts[request] = tiles + before;
    tiles += all;
    longest = max(longest, own / items);
    paddings += __syncthreads_count(request < requests && length == 0);
  }
  if (threadIdx.x == 0) firsts[requests] = tiles;
  const int per_block = most_warps / most_blocks;
  const bool may_be_long =
      __syncthreads_or(longest > kMany * per_block * max(tiles / most_warps, 1));

  const int all_items = items * (requests - paddings);
  const int blocks = all_items > 0 ? ceil_div(all_items, ceil_div(all_items, most_blocks)) : 0;
  int* const ends = plan.flags();
  const bool is_whole =
      blocks >= kBusy * most_blocks && divide_whole(ends, blocks, tiles, firsts, requests, items);
  const bool has_long_items = may_be_long && !is_whole;
  // After the last item there are readers, too.
  const int readers = has_long_items ? readers_of(most_blocks) : 0;
  const int warps = min(tiles, most_warps - readers * per_block);
  const Totals all{divide(tiles, warps), paddings, has_long_items};
  if (threadIdx.x == 0) *totals = all;
  for (int warp = threadIdx.x; warp < most_warps; warp += THREADS) {
    int first = 0, index = warp;
    Division division = all.division;
    if (is_whole) {
      const int block = min(warp / per_block, blocks);
      index = block < blocks ? warp % per_block : 0;
      first = block > 0 ? ends[block - 1] : 0;
      division = block < blocks ? divide(ends[block] - first, per_block) : Division{};
    }
    const int begin = min(first + division.begin(index), tiles);
    const int end = min(first + division.begin(index + 1), tiles);
    const int request = begin < end ? request_before(end, firsts, requests) : 0;
    plan.ranges()[warp] = {begin, end, request, firsts[request]};
  }
  for (int block = threadIdx.x; has_long_items && block < most_blocks; block += THREADS) {
    const int begin = min(all.division.begin(block * per_block), tiles);
    const int end = min(all.division.begin((block + 1) * per_block), tiles);
    plan.orders()[block] =
        order_of(block, begin, end, all.division, per_block, firsts, requests, items);
  }
  __syncthreads();
  const int parts = parts_of(most_blocks);
  for (int part = threadIdx.x; part < parts; part += THREADS) plan.flags()[part] = 0;

  // decode_attend reads the plan without waiting for this kernel to be gone; and it may start as
  // soon as one thread of the block lets it, so all of them must have written by then.
  __threadfence();
  __syncthreads();
  let_next_kernel_start();
}
