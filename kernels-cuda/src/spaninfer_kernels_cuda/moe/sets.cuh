// The stable sort of pairs (token, choice) by expert where a cluster has all tokens: by sets.
//
// A token chooses an expert once at most. So the pairs of an expert are a set of tokens, a bit for
// each, and the rank of a pair among them is the number of bits before its own. Blocks make the
// sets of their tokens, send them to each other, and then know all of them: nothing passes through
// memory but results. Nothing depends on timing.
//
// Macros: PER_LANE (32 times as many experts at most), SHARED.
// Needs reduce.cuh, cluster.cuh, route.cuh.

constexpr int kMostExperts = PER_LANE < 16 ? PER_LANE * kWarp : 512;
constexpr bool kFew = PER_LANE <= 8;             // experts; of many, a thread needs more registers
constexpr int kMostThreads = kFew ? 1024 : 512;
constexpr int kWords = kFew ? 32 : 16;           // of a set: 1024 or 512 tokens
constexpr int kTokens = kWords * kWarp / 8;      // of a block: large clusters have 8 or more

struct Choices {
  // By word and expert; behind the last expert, the tokens that are no padding.
  unsigned sets[kWords][kMostExperts + 1];
  unsigned short chosen[kTokens][kWarp];  // by token of this block, and choice
  Scores scores[kTokens];
  int first[kMostExperts];  // the place of an expert's first pair of this block
  int of_warp[kMostExperts / kWarp];
};

// The blocks that share tokens, and `words` of each set that a block has.
struct Spread {
  int blocks, rank, words, experts;

  __device__ __forceinline__ int own() const { return rank * words; }
  __device__ __forceinline__ int all() const { return blocks * words; }
};

__device__ __forceinline__ void begin_sets(Choices& all, const Spread& spread) {
  if (spread.blocks > 1) arrive_without_fence();  // this block has begun
#pragma unroll 1
  for (int word = spread.own(); word < spread.own() + spread.words; ++word) {
#pragma unroll 1
    for (int set = threadIdx.x; set <= spread.experts; set += blockDim.x) all.sets[word][set] = 0;
  }
  __syncthreads();
}

// Adds token `n` of this block to a set.
__device__ __forceinline__ void add_to_set(Choices& all, const Spread& spread, int n, int set) {
  atomicOr(&all.sets[spread.own() + n / kWarp][set], 1u << n % kWarp);
}

// Sends the sets of this block to the others; wait_for_sets follows.
__device__ __forceinline__ void send_sets(Choices& all, const Spread& spread) {
  __syncthreads();
  if (spread.blocks == 1) return;
  wait_for_cluster();  // until all blocks have begun
#pragma unroll 1
  for (int word = spread.own(); word < spread.own() + spread.words; ++word) {
#pragma unroll 1
    for (int set = threadIdx.x; set <= spread.experts; set += blockDim.x) {
      unsigned* own = &all.sets[word][set];
      const unsigned members = *own;
#pragma unroll 1
      for (int rank = 0; rank < spread.blocks; ++rank) {
        if (rank != spread.rank) *in_block(own, rank) = members;
      }
    }
  }
  arrive_at_cluster();
}

__device__ __forceinline__ void wait_for_sets(const Spread& spread) {
  if (spread.blocks > 1) wait_for_cluster();
}

// How many members of a set, in words from `word` on, come before token `n` of this block.
__device__ __forceinline__ int members_before(const Choices& all, const Spread& spread, int set,
                                              int word, int n) {
  const int last = spread.own() + n / kWarp;
  int count = __popc(all.sets[last][set] & ((1u << n % kWarp) - 1));
#pragma unroll 1
  for (; word < last; ++word) count += __popc(all.sets[word][set]);
  return count;
}

__device__ __forceinline__ int members_of(const Choices& all, const Spread& spread, int set) {
  int count = 0;
#pragma unroll 1
  for (int word = 0; word < spread.all(); ++word) count += __popc(all.sets[word][set]);
  return count;
}

// Finds where experts begin, a thread for each, and writes `ends` of those that logits choose.
__device__ __forceinline__ void find_firsts(Choices& all, const Spread& spread, int* ends) {
  const int expert = threadIdx.x, warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const bool exists = expert < spread.experts;
  int count = 0, earlier = 0;
  if (exists) {
#pragma unroll 4
    for (int word = 0; word < spread.all(); ++word) {
      const int members = __popc(all.sets[word][expert]);
      count += members;
      earlier += word < spread.own() ? members : 0;
    }
  }
  int end = prefix_of_warp(count);
  if (exists && lane == kWarp - 1) all.of_warp[warp] = end;
  __syncthreads();
  if (exists) {
#pragma unroll 1
    for (int each = 0; each < warp; ++each) end += all.of_warp[each];
    all.first[expert] = end - count + earlier;
    if (spread.rank == 0) ends[expert] = end;
  }
  __syncthreads();
}
