// Divides the tokens of a step among the blocks of decode_attend, equally.
//
// A unit is `unit` tokens of one request as one item reads them, an item being the query heads that
// a block computes together. Units are numbered request by request, in each item by item, in each by
// token; block b of `blocks` gets the units from b * units / blocks on. As blocks are at most as
// many as units, every one of them has some.
//
// Macros: THREADS. One block; memory of the plan as in decode_plan.cuh.

// The sum over the threads in front of this one; `all` becomes the sum over the block.
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

extern "C" __global__ void __launch_bounds__(THREADS)
    decode_plan(Work* works, const int* lengths, int requests, int items, int window, int unit,
                int most_blocks) {
  wait_for_kernel_before();
  int* const firsts = firsts_of(works, most_blocks);
  int* const counters = counters_of(firsts, requests);
  int units = 0;
  for (int begin = 0; begin < requests; begin += THREADS) {
    const int request = begin + threadIdx.x;
    const int length = request < requests ? lengths[request] : 0;
    const int own = items * ceil_div(length - first_token(length, window), unit);
    int all;
    const int before = sum_before(own, &all);
    if (request < requests) firsts[request] = units + before;
    units += all;
  }
  if (threadIdx.x == 0) firsts[requests] = units;
  for (int i = threadIdx.x; i < requests * items; i += THREADS) counters[i] = 0;
  __syncthreads();

  const int blocks = min(units, most_blocks);
  for (int block = threadIdx.x; block < most_blocks; block += THREADS) {
    Work work{};
    work.units = units;
    work.blocks = blocks;
    if (block < blocks) {
      work.begin = first_unit(block, units, blocks);
      work.end = first_unit(block + 1, units, blocks);
      int low = 0, high = requests;  // firsts[low] <= work.begin < firsts[high]
      while (high - low > 1) {
        const int middle = (low + high) / 2;
        (firsts[middle] <= work.begin ? low : high) = middle;
      }
      work.request = low;
      work.first = firsts[low];
    }
    works[block] = work;
  }
  // decode_attend reads the plan without waiting for this kernel to be gone; and it may start as
  // soon as one thread of the block lets it, so all of them must have written by then.
  __threadfence();
  __syncthreads();
  let_next_kernel_start();
}
