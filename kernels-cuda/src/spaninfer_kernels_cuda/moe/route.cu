// The experts of tokens, and the pairs (token, choice) sorted by expert.
//
// moe_route does both where the blocks of a cluster have all tokens. Otherwise moe_choose chooses,
// and moe_count and moe_place sort if asked, each block with its own pairs.
//
// Macros: T (of the logits), PER_LANE, SCORE, GROUP_BEST, SHARED (route.cuh).
// Demands: experts <= 32 PER_LANE, PER_LANE divides experts / groups, groups <= 32, top_k + SHARED
//          <= 32.

constexpr int kChoosers = 8;  // warps of a block

// A warp has a token. What sets need would be 16 to 42 KB of shared memory.
extern "C" __global__ void __launch_bounds__(kChoosers * kWarp)
    moe_choose(int* ids, float* shares, const T* logits, const float* correction, const int* slots,
               int tokens, int experts, int top_k, int groups, int group_topk, int normalise,
               float scale) {
  __shared__ unsigned short chosen[kChoosers][kWarp];
  const int warp = threadIdx.x / kWarp, token = blockIdx.x * kChoosers + warp;
  const Rule rule = {experts, top_k, groups, group_topk, normalise, scale};
  let_next_kernel_start();
  wait_for_kernel_before();
  if (token >= tokens) return;
  const T* own = logits + static_cast<size_t>(token) * experts;
  const Scores scores = choose_experts(chosen[warp], own, correction, rule);
  write_choice(ids, shares, token, chosen[warp], scores, own, slots, rule);
}

// The grid is one cluster, whose blocks have a thread for each expert; a warp takes a token at a
// time.
extern "C" __global__ void __launch_bounds__(kMostThreads, 1)
    moe_route(int* ids, float* shares, int* order, int* ends, int* place, const T* logits,
              const float* correction, const int* slots, int tokens, int of_block, int experts,
              int top_k, int groups, int group_topk, int normalise, float scale) {
  __shared__ Choices all;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, warps = blockDim.x / kWarp;
  const int first = blockIdx.x * of_block, count = min(of_block, tokens - first);
  const int choices = top_k + SHARED;
  const Rule rule = {experts, top_k, groups, group_topk, normalise, scale};
  const Spread spread = {blocks_of_cluster(), rank_in_cluster(), (of_block + kWarp - 1) / kWarp,
                         experts};
  let_next_kernel_start();
  begin_sets(all, spread);
  wait_for_kernel_before();
#pragma unroll 1
  for (int n = warp; n < count; n += warps) {
    const int token = first + n;
    const T* own = logits + static_cast<size_t>(token) * experts;
    all.scores[n] = choose_experts(all.chosen[n], own, correction, rule);
    if (is_padding(slots, token)) continue;
    if (lane < top_k) add_to_set(all, spread, n, all.chosen[n][lane]);
    if (lane == 0) add_to_set(all, spread, n, experts);
  }
  send_sets(all, spread);
  // Weights are computed while sets are under way.
#pragma unroll 1
  for (int n = warp; n < count; n += warps) {
    const int token = first + n;
    const T* own = logits + static_cast<size_t>(token) * experts;
    write_choice(ids, shares, token, all.chosen[n], all.scores[n], own, slots, rule);
  }
  wait_for_sets(spread);
  find_firsts(all, spread, ends);
  const int present = members_of(all, spread, experts);
  if (SHARED > 0 && spread.rank == 0 && threadIdx.x < SHARED) {
    ends[experts + threadIdx.x] = present * (top_k + static_cast<int>(threadIdx.x) + 1);
  }
#pragma unroll 1
  for (int n = warp; n < count; n += warps) {
    if (lane >= choices) break;
    const int token = first + n, pair = token * choices + lane;
    const bool pads = is_padding(slots, token);
    int at;
    if (lane < top_k && !pads) {
      const int expert = all.chosen[n][lane];
      at = all.first[expert] + members_before(all, spread, expert, spread.own(), n);
    } else {
      const int before = members_before(all, spread, experts, 0, n);
      at = pads ? (present + token - before) * choices + lane : present * lane + before;
    }
    order[at] = pair;
    place[pair] = at;
  }
}

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
