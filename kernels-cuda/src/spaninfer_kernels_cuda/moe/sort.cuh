// The stable sort of pairs (token, choice) by expert where many blocks share them.
//
// A warp takes neighbouring pairs, 32 at a time, and counts them by expert; the count before a pair
// is its rank among the warp's. Prefix sums over warps, blocks and experts make places of ranks.
// Nothing depends on timing. Pairs of no expert (-1) lie in a bucket of their own, the last.
//
// Macros: PER_LANE (32 times as many experts at most, beside those of every token), SHARED.
// Needs reduce.cuh, route.cuh.

// Two blocks on an SM would leave a thread 32 registers, and ptxas prefers that to not spilling.
constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kRounds = 2;                     // of 32 pairs, of a warp
constexpr int kPairsOfBlock = kRounds * kThreads;
constexpr int kBuckets = PER_LANE * kWarp + SHARED + 1;

struct SortSpace {
  unsigned short before[kWarps][kBuckets];  // pairs of earlier warps, by bucket
  int first[kBuckets];                      // the place of the block's first pair of a bucket
  int of_warp[kWarps];
};

// The pairs of a thread: their buckets, -1 beyond the last pair, and ranks among those of the warp.
struct Ranked {
  int bucket[kRounds], rank[kRounds];
};

struct Pairs {
  const int* ids;
  int begin, end;  // of this block
  int buckets;     // experts, and one for rows without an expert

  // Pairs of a warp are neighbours, so that the order of warps is that of pairs.
  __device__ __forceinline__ int rounds() const { return (end - begin + kThreads - 1) / kThreads; }
  __device__ __forceinline__ int pair(int round) const {
    return begin + (threadIdx.x / kWarp * rounds() + round) * kWarp + threadIdx.x % kWarp;
  }
};

// Ranks pairs, and counts those of each warp in `space.before`.
__device__ __forceinline__ Ranked rank_pairs(const Pairs& pairs, SortSpace& space) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, rounds = pairs.rounds();
  for (int bucket = lane; bucket < pairs.buckets; bucket += kWarp) space.before[warp][bucket] = 0;
  __syncwarp();
  Ranked ranked;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int pair = pairs.pair(round);
    int bucket = -1;
    if (round < rounds && pair < pairs.end) {
      const int id = __ldcg(pairs.ids + pair);
      bucket = id < 0 ? pairs.buckets - 1 : id;
    }
    ranked.bucket[round] = bucket;
  }
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (round >= rounds) break;
    const int bucket = ranked.bucket[round];
    const unsigned peers = __match_any_sync(kAll, bucket);
    const int mine = __popc(peers & ((1u << lane) - 1));
    const int before = bucket < 0 ? 0 : space.before[warp][bucket];
    ranked.rank[round] = before + mine;
    __syncwarp();
    if (bucket >= 0 && mine == 0) space.before[warp][bucket] = before + __popc(peers);
    __syncwarp();
  }
  return ranked;
}

__device__ __forceinline__ int prefix_of_warp(int x) {
  int sum = x;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(kAll, sum, step);
    if (static_cast<int>(threadIdx.x % kWarp) >= step) sum += before;
  }
  return sum;  // x included
}

// Turns the counts of warps into those of earlier warps, and leaves the block's in `first`.
__device__ __forceinline__ void sum_warps(SortSpace& space, int buckets) {
  __syncthreads();
  const int lane = threadIdx.x % kWarp;
  for (int bucket = threadIdx.x / kWarp; bucket < buckets; bucket += kWarps) {
    const int count = space.before[lane][bucket], sum = prefix_of_warp(count);
    space.before[lane][bucket] = sum - count;
    if (lane == kWarp - 1) space.first[bucket] = sum;
  }
  __syncthreads();
}

// The sum of `count` over the threads up to and with this one.
__device__ __forceinline__ int prefix_of_block(int count, SortSpace& space) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int sum = prefix_of_warp(count);
  if (lane == kWarp - 1) space.of_warp[warp] = sum;
  __syncthreads();
  if (warp == 0) space.of_warp[lane] = prefix_of_warp(space.of_warp[lane]);
  __syncthreads();
  return sum + (warp > 0 ? space.of_warp[warp - 1] : 0);
}

// Makes places of ranks, and writes `ends` by one block. `count` is the number of this thread's
// bucket in all blocks, `earlier` that in those before this one.
__device__ __forceinline__ void find_places(Ranked& ranked, int* ends, const Pairs& pairs,
                                            SortSpace& space, int count, int earlier) {
  const int bucket = threadIdx.x, end = prefix_of_block(count, space);
  if (bucket < pairs.buckets) space.first[bucket] = end - count + earlier;
  if (pairs.begin == 0 && bucket < pairs.buckets - 1) ends[bucket] = end;
  __syncthreads();
  const int warp = threadIdx.x / kWarp;
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    const int to = ranked.bucket[round];
    if (to >= 0) ranked.rank[round] += space.first[to] + space.before[warp][to];
  }
}

// Calls `each(pair, place)` for this thread's pairs.
template <typename Each>
__device__ __forceinline__ void for_places(const Ranked& ranked, const Pairs& pairs, Each each) {
#pragma unroll
  for (int round = 0; round < kRounds; ++round) {
    if (ranked.bucket[round] >= 0) each(pairs.pair(round), ranked.rank[round]);
  }
}
