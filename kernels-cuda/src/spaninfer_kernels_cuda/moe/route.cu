// The experts of tokens, and the pairs (token, choice) sorted by expert.
//
// One launch where a block can sort all pairs: the last block that has routed its tokens does. For
// more, moe_count and moe_place follow, each block with its own pairs.
//
// Macros: T (of the logits), PER_LANE, SCORE, GROUP_BEST (route.cuh), SHARED (experts of every
//         token, behind those that logits choose, with a weight of 1).
// Demands: experts <= 32 PER_LANE, PER_LANE divides experts / groups, groups <= 32, top_k + SHARED
//          <= 32.

// `routers` warps of a block route a token each. Tokens with a negative slot are padding: they get
// expert -1. Nothing is sorted without `ends`. `ticket` is 0 before and after.
extern "C" __global__ void __launch_bounds__(1024, 1)
    moe_route(int* ids, float* shares, int* order, int* ends, int* place, unsigned* ticket,
              const T* logits, const float* correction, const int* slots, int tokens, int routers,
              int experts, int top_k, int groups, int group_topk, int normalise, float scale) {
  __shared__ SortSpace space;
  __shared__ bool is_last;
  let_next_kernel_start();
  wait_for_kernel_before();
  const Rule rule = {experts, top_k, groups, group_topk, normalise, scale};
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int token = blockIdx.x * routers + warp, choices = top_k + SHARED;
  if (warp < routers && token < tokens) {
    const size_t pair = static_cast<size_t>(token) * choices;
    if (!slots || slots[token] >= 0) {
      const T* own = logits + static_cast<size_t>(token) * experts;
      route_token(ids + pair, shares + pair, own, correction, rule);
      if (lane >= top_k && lane < choices) {
        ids[pair + lane] = experts + lane - top_k;
        shares[pair + lane] = 1.0f;
      }
    } else if (lane < choices) {
      ids[pair + lane] = -1;
      shares[pair + lane] = 0.0f;
    }
  }
  if (!ends) return;
  if (gridDim.x > 1) {
    __threadfence();
    __syncthreads();
    const unsigned last = gridDim.x - 1;  // with which the count begins anew
    if (threadIdx.x == 0) is_last = atomicInc(ticket, last) == last;
  } else if (threadIdx.x == 0) {
    is_last = true;
  }
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  const Pairs pairs = {ids, 0, tokens * choices, experts + SHARED + 1};
  Ranked ranked = rank_pairs(pairs, space);
  sum_warps(space, pairs.buckets);
  const int bucket = threadIdx.x, count = bucket < pairs.buckets ? space.first[bucket] : 0;
  find_places(ranked, ends, pairs, space, count, 0);
  __syncthreads();
  // Through shared memory: an SM stores a single number all over memory once in a cycle or two.
  for_places(ranked, pairs, [&](int pair, int at) {
    space.sorted[at] = static_cast<unsigned short>(pair);
    place[pair] = at;
  });
  __syncthreads();
  for (int at = threadIdx.x; at < pairs.end; at += kThreads) order[at] = space.sorted[at];
}

// Makes fresh memory a ticket.
extern "C" __global__ void __launch_bounds__(1) moe_clear(unsigned* ticket) { *ticket = 0; }

// counts[block][experts + 1]: the pairs of a block, by expert.
extern "C" __global__ void __launch_bounds__(1024, 1)
    moe_count(int* counts, const int* ids, int pairs, int experts) {
  __shared__ SortSpace space;
  let_next_kernel_start();
  wait_for_kernel_before();
  const int begin = blockIdx.x * kPairsOfBlock, buckets = experts + 1;
  const Pairs own = {ids, begin, min(begin + kPairsOfBlock, pairs), buckets};
  rank_pairs(own, space);
  sum_warps(space, buckets);
  for (int bucket = threadIdx.x; bucket < buckets; bucket += kThreads) {
    counts[blockIdx.x * buckets + bucket] = space.first[bucket];
  }
}

extern "C" __global__ void __launch_bounds__(1024, 1)
    moe_place(int* order, int* ends, int* place, const int* counts, const int* ids, int pairs,
              int experts) {
  __shared__ SortSpace space;
  let_next_kernel_start();
  wait_for_kernel_before();
  const int begin = blockIdx.x * kPairsOfBlock, buckets = experts + 1, bucket = threadIdx.x;
  const Pairs own = {ids, begin, min(begin + kPairsOfBlock, pairs), buckets};
  Ranked ranked = rank_pairs(own, space);
  sum_warps(space, buckets);
  int count = 0, earlier = 0;
  const int blocks = bucket < buckets ? gridDim.x : 0;
#pragma unroll 16  // loads that wait for memory together
  for (int block = 0; block < blocks; ++block) {
    const int of_block = __ldcg(counts + block * buckets + bucket);
    count += of_block;
    earlier += block < static_cast<int>(blockIdx.x) ? of_block : 0;
  }
  find_places(ranked, ends, own, space, count, earlier);
  for_places(ranked, own, [&](int pair, int at) {
    order[at] = pair;
    place[pair] = at;
  });
}
