// Divides the blocks of keys of a step equally among thread blocks, on the GPU; see mla/plan.cuh.
//
// A group costs its blocks and OVERHEAD more. All groups in order are one line of cost, of which
// each part gets an equal piece: a group that does not fit into one is in several, whose results
// mla_merge adds. Where whole groups are nearly as equal, parts are of whole groups; always where
// `splits` is 0: a line's bits then do not depend on the rest of the step.
//
// Where `causal` is 0, each query sees all tokens of its slice's sequence, at most `most`. Without
// `query_start_loc`, a slice is one token.
//
// Macros: TILE (lines of a tile), OVERHEAD (blocks).
// Demands: parts < kThreads; room for every group.

constexpr int kThreads = 1024;
constexpr int kLeast = 2;      // blocks of a group in one part
// Blocks that are read while parts are written and merged.
constexpr int kMergeCost = TILE == 64 ? 12 : 4;

struct Cut {
  int group, block;
};

struct Line {
  Plan plan;
  int groups, total;

  // What all groups before `group` cost together.
  __device__ __forceinline__ int cost(int group) const {
    return group < groups ? __ldcg(plan.group_words(group) + 1).z : total;
  }
  // The last group that begins at or before `at`.
  __device__ __forceinline__ int group_at(int at) const {
    int low = 0, high = groups;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (cost(middle) <= at ? low : high) = middle;
    }
    return low;
  }
  __device__ __forceinline__ Cut whole(int at) const {
    if (at >= total) return {groups, 0};
    const int group = group_at(at);
    return {2 * (at - cost(group)) <= cost(group + 1) - cost(group) ? group : group + 1, 0};
  }
  __device__ __forceinline__ Cut split(int at) const {
    if (at >= total) return {groups, 0};
    const int group = group_at(at), blocks = cost(group + 1) - cost(group) - OVERHEAD;
    const int block = max(at - cost(group) - OVERHEAD, 0) / 2 * 2;
    if (block < kLeast) return {group, 0};
    if (blocks - block < kLeast) return {group + 1, 0};
    return {group, block};
  }
};

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    mla_plan(int4* words, int* ends, const int* query_start_loc, const int* seq_lens,
             const int* table_rows, int slices, int heads, int lanes, int parts, int splits,
             int causal, int most) {
  __shared__ Cut cuts[kThreads];
  __shared__ int num_merges;
  wait_for_kernel_before();
  const Plan plan{words, parts};
  const int thread = threadIdx.x;
  const auto start_of = [&](int slice) {
    return query_start_loc ? query_start_loc[slice] : slice;
  };
  if (thread == 0) num_merges = 0;
  int groups = 0;
  for (int first = 0; first < slices; first += kThreads) {
    const int slice = first + thread;
    int own = 0;
    if (slice < slices) {
      const int lines = (start_of(slice + 1) - start_of(slice)) * heads;
      own = (lines + TILE * lanes - 1) / (TILE * lanes);
    }
    int all;
    const int end = groups + running_sum<kThreads>(own, all);
    if (slice < slices) ends[slice] = end;
    groups += all;
  }
  __syncthreads();

  int total = 0;
  for (int first = 0; first < groups; first += kThreads) {
    const int number = first + thread;
    int4 records[2] = {};
    int cost = 0;
    if (number < groups) {
      int slice = 0, high = slices - 1;
      while (slice < high) {
        const int middle = (slice + high) / 2;
        if (ends[middle] > number) {
          high = middle;
        } else {
          slice = middle + 1;
        }
      }
      const int start = start_of(slice), rows = start_of(slice + 1) - start;
      const int offset = (number - (slice > 0 ? ends[slice - 1] : 0)) * lanes * TILE;
      const int lines = rows * heads - offset;
      const int length = min(seq_lens[slice], most);
      const int position = causal ? length - rows : length - 1;
      const int ahead = causal ? (offset + min(lines, lanes * TILE) - 1) / heads : 0;
      const int last = position + ahead;
      const int blocks = length > 0 ? last / kBlock + 1 : 0;
      records[0] = make_int4(table_rows[slice], start * heads + offset, lines, blocks);
      records[1] = make_int4(length > 0 ? position : -rows, offset, 0, 0);
      cost = blocks + OVERHEAD;
    }
    int all;
    records[1].z = total + running_sum<kThreads>(cost, all) - cost;
    if (number < groups) {
      plan.group_words(number)[0] = records[0];
      plan.group_words(number)[1] = records[1];
    }
    total += all;
  }
  __threadfence_block();
  __syncthreads();

  const Line line{plan, groups, total};
  // Few keys: as many parts as there can be, since the longest one is what takes time. 512 tokens
  // of 16 heads take 10.5 us instead of 17.7, 8 times 512 of 128 heads 15.5 instead of 23.2 (H200).
  const int least = total / kLeast < parts ? kLeast : kLeast + 1;
  const int used = max(min(parts, total / least), 1);
  const auto piece = [&](int part) {
    return part >= used ? total : static_cast<int>(static_cast<long long>(part) * total / used);
  };
  const bool is_part = thread < parts;
  Cut cut = {groups, 0};
  int load = 0;
  if (is_part && groups > 0) {
    cut = line.whole(piece(thread));
    load = line.cost(line.whole(piece(thread + 1)).group) - line.cost(cut.group);
  }
  if (__syncthreads_or(splits && load > total / used + kMergeCost) && is_part) {
    cut = line.split(piece(thread));
  }
  if (thread <= parts) cuts[thread] = is_part ? cut : Cut{groups, 0};
  __syncthreads();
  if (is_part) {
    const Cut next = cuts[thread + 1];
    words[1 + thread] = make_int4(cut.group, cut.block, next.group, next.block);
    const bool begins = next.group > cut.group || (next.group == cut.group && cut.block == 0);
    if (next.block > 0 && begins) {
      int last = thread + 1;
      while (cuts[last + 1].group == next.group && cuts[last + 1].block > 0) ++last;
      words[1 + parts + atomicAdd(&num_merges, 1)] =
          make_int4(thread, last - thread + 1, next.group, 0);
    }
  }
  __syncthreads();
  if (thread == 0) words[0] = make_int4(groups, num_merges, 0, 0);
  // Runs read the plan without waiting for this kernel to end, and may start as soon as one thread
  // of the block lets them, so all of them must have written by then.
  __threadfence();
  __syncthreads();
  let_next_kernel_start();
}
