// Locally typical sampling (Meister et al. 2022): a row without the tokens that it does not keep,
// or a mask of those that it keeps (HeldRow::write_kept).
//
// A token's surprise is -log p, its deviation the distance of that from the expected surprise, the
// entropy. With d = (largest logit - logit) / temperature, the deviation is |d - E[d]|. Kept are
// the tokens of the least deviations that together have the mass typical_p, of equal ones smaller
// ids first, among those that top-k keeps. Keys are therefore those of negative deviations.
//
// Masses of keys are counted in bins, in units of which all keys have 2^30; each is rounded up, so
// that a mass is known up to the number of keys. Keys of the bins that may contain the threshold
// are listed. Bins are of equal width in the deviation, which leaves a few hundred keys; where the
// list cannot hold them, as of equal logits, these keys are counted in bins of keys next. Of listed
// keys each is compared with all. Every block finds the same bins and joins the lists of all: what
// one would tell the others takes a barrier of the cluster more, and a few rows take as long as
// their barriers.

constexpr int kListed = kList / 4;  // keys of all blocks that a search may leave
constexpr int kCoarseBins = 64, kFineBins = kSpreadBins / kCoarseBins;

// What a search keeps where counts would be: weights of the block's keys in units of mass, and
// each block's masses in coarse bins.
__device__ __forceinline__ float* listed_weights(Shared& shared) {
  return reinterpret_cast<float*>(shared.counts);
}
__device__ __forceinline__ unsigned* coarse_bins(Shared& shared, int rank) {
  static_assert(kListed + kMostBlocks * kCoarseBins <= kBins, "both fit");
  return reinterpret_cast<unsigned*>(shared.counts) + kListed + rank * kCoarseBins;
}

// The keys of all blocks: this block's are in front of them, until all have copied them.
__device__ __forceinline__ Key* joined_keys(Shared& shared) { return shared.list + kListed; }
struct Joined {
  Shared& shared;
  int size;

  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < size; i += kThreads) visit(joined_keys(shared)[i], i);
  }
};

// The keys of a row by deviation, and their masses. Without branches: a few instructions more per
// element of a row take longer than all barriers.
struct Deviations {
  Floor floor;  // of the candidates, which are within reach
  float largest, inverse, expected;  // of the temperature; d

  __device__ __forceinline__ bool admits(float x, int id) const {
    return (x > floor.value) | ((x == floor.value) & (id <= floor.last));
  }
  __device__ __forceinline__ float distance(float x) const { return (largest - x) * inverse; }
  __device__ __forceinline__ float at(float distance) const { return fabsf(distance - expected); }
  // A candidate's weight in units of mass. Without the instructions for numbers that are not
  // normal, as no candidate's is.
  __device__ __forceinline__ static float units(float distance) {
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(distance * -kBitsPerNat));
    return weight * kUnit;
  }
};

// Bins of equal width in the deviation, the smallest in the first one. What is in the last one is
// not counted: a threshold hardly lies there, but of many rows most keys, whose additions to one
// number would take turns.
struct ByDeviation {
  static constexpr int kCounted = kSpreadBins - 1;
  float per_deviation;

  __device__ __forceinline__ int of(float deviation, int) const {
    return min(static_cast<int>(deviation * per_deviation), kSpreadBins - 1);
  }
};

// Bins of the keys of a zone, the largest in the first one; outside of the zone -1 above,
// kSpreadBins below.
struct ByKey {
  static constexpr int kCounted = kSpreadBins;
  const Zone& zone;  // read where it is needed: registers are scarce

  __device__ __forceinline__ int of(float deviation, int id) const {
    const Key key = key_of(-deviation, id), low = zone.low, high = zone.high;
    if (key < low || key > high) return key > high ? -1 : kSpreadBins;
    constexpr int kBits = kDigitBits + 1;
    return static_cast<int>((high - key) >>
                            max(64 - kBits - __clzll(static_cast<long long>(high - low)), 0));
  }
};

// The largest value, in every block. Each block writes its own into all: what is there after a
// barrier takes no way to another block and back.
__device__ __forceinline__ float largest_of(const HeldRow& held, Shared& shared) {
  float most = -kInfinity;
  held.load([&](float x, int) { most = fmaxf(most, x); });
  most = lanes_max<kWarp>(most);
  const int lane = threadIdx.x % kWarp;
  if (lane == 0) shared.float_of_warp[threadIdx.x / kWarp] = most;
  __syncthreads();
  wait_for_cluster();  // all blocks have begun
  if (threadIdx.x < kWarp) {
    most = lanes_max<kWarp>(lane < kWarps ? shared.float_of_warp[lane] : -kInfinity);
    if (lane < blocks_of_cluster()) in_block(shared.most_of, lane)[rank_in_cluster()] = most;
  }
  sync_cluster_after_block();
  most = -kInfinity;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank < blocks_of_cluster()) most = fmaxf(most, shared.most_of[rank]);
  }
  return most;
}

// The mass of the candidates, their mass times d, and times the square of d, over all blocks.
// kReach bounds d, so the sums of 2^23 products fit into 64 bits. The last sum is rounded.
__device__ __forceinline__ Moments measure_row(const HeldRow& held, const Deviations& keys,
                                               Shared& shared) {
  Moments own = {0, 0, 0.0f};
  held.each([&](float x, int id) {
    constexpr float kFar = 1e30f;  // weighs nothing
    const float distance = keys.admits(x, id) ? keys.distance(x) : kFar;
    const float units = Deviations::units(distance), moment = units * distance;
    own.mass += __float2ull_rn(units);
    own.moment += __float2ull_rn(moment);
    own.square += moment * distance;
  });
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto over_lanes = [&] {
    own = {warp_sum(own.mass), warp_sum(own.moment), warp_sum(own.square)};
  };
  over_lanes();
  if (lane == 0) {
    shared.mass_of_warp[warp] = own.mass;
    shared.other_of_warp[warp] = own.moment;
    shared.float_of_warp[warp] = own.square;
  }
  __syncthreads();
  if (threadIdx.x < kWarp) {
    own = {0, 0, 0.0f};
    if (lane < kWarps) {
      own = {shared.mass_of_warp[lane], shared.other_of_warp[lane], shared.float_of_warp[lane]};
    }
    over_lanes();
    if (lane < blocks_of_cluster()) in_block(shared.moments_of, lane)[rank_in_cluster()] = own;
  }
  sync_cluster_after_block();
  Moments all = {0, 0, 0.0f};
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank >= blocks_of_cluster()) continue;
    const Moments& theirs = shared.moments_of[rank];
    all = {all.mass + theirs.mass, all.moment + theirs.moment, all.square + theirs.square};
  }
  return all;
}

// Bins per deviation, the last of which holds no threshold: by Chebyshev, the mass of deviations
// beyond s / sqrt(1 - p) is at most 1 - p, s being the standard deviation of d. Rounding may break
// that, and then costs time alone.
__device__ __forceinline__ float bins_per_deviation(const Moments& found, float expected,
                                                    float typical_p) {
  const float square = found.square / static_cast<float>(found.mass), mean = expected * expected;
  const float variance = fmaxf(square - mean, 0.0f) * 1.01f + 1e-5f * (1.0f + mean);
  const float most = fminf(sqrtf(variance / (1.0f - typical_p)), 0.5f - kReach);
  return kSpreadBins / most;
}

// Sums masses of keys in bins, in units of 2^shift, and in coarse bins, those in all blocks.
template <typename Division>
__device__ __forceinline__ void fill_bins(const HeldRow& held, const Deviations& keys,
                                          const Division& division, int shift, Shared& shared) {
  unsigned* bins = reinterpret_cast<unsigned*>(shared.masses);
  uint4* fours = reinterpret_cast<uint4*>(bins);
  for_each(kSpreadBins / 4, [&](int i) { fours[i] = uint4{0, 0, 0, 0}; });
  const float per_unit = __int_as_float((127 - shift) << 23);
  held.each([&](float x, int id) {
    const float distance = keys.distance(x);
    const int bin = division.of(keys.at(distance), id);
    const bool is_inside = static_cast<unsigned>(bin) < static_cast<unsigned>(Division::kCounted);
    const unsigned mass = __float2uint_rz(Deviations::units(distance) * per_unit) + 1;
    if (keys.admits(x, id) & is_inside) atomicAdd(&bins[bin], mass);
  });
  __syncthreads();
  constexpr int kLanes = kFineBins / 4;  // that have a coarse bin
  static_assert(kLanes >= kMostBlocks && kSpreadBins / 4 % kWarp == 0, "for each block a lane");
#pragma unroll 1
  for (int i = threadIdx.x; i < kSpreadBins / 4; i += kThreads) {
    const uint4 four = fours[i];
    unsigned sum = four.x + four.y + four.z + four.w;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    const int rank = i % kLanes;
    if (rank < blocks_of_cluster()) {
      coarse_bins(*in_block(&shared, rank), rank_in_cluster())[i / kLanes] = sum;
    }
  }
  __syncthreads();
  sync_cluster_after_block();
}

// Masses of 64 adjacent bins, two per lane: the mass before each, and behind the last one.
struct Cumulated {
  unsigned before, between, after;

  __device__ __forceinline__ Cumulated(unsigned first, unsigned second, unsigned start) {
    const int lane = threadIdx.x % kWarp;
    unsigned sum = first + second;
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const unsigned less = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += less;
    }
    after = start + sum;
    between = after - second;
    before = between - first;
  }
  __device__ __forceinline__ unsigned end() const { return __shfl_sync(~0u, after, kWarp - 1); }
  // How many of the bins end below a mass, and how many begin below it.
  __device__ __forceinline__ int ending_below(unsigned mass) const {
    return __popc(__ballot_sync(~0u, between < mass)) + __popc(__ballot_sync(~0u, after < mass));
  }
  __device__ __forceinline__ int beginning_below(unsigned mass) const {
    return __popc(__ballot_sync(~0u, before < mass)) + __popc(__ballot_sync(~0u, between < mass));
  }
};

// Finds the bins that may contain the threshold: `wanted` is the mass of keys that are kept, of
// `num_keys` and the mass `total` at most. From shared.lowest to shared.highest, with the mass
// shared.inside at most; by one warp.
//
// A bin's mass is exact but for less than a unit of each key too much. The last bin has what the
// others have not. Of other blocks' bins only those are read that lie in coarse bins with the
// threshold.
__device__ __forceinline__ void find_bins(Mass wanted, int num_keys, Mass total, int shift,
                                          Shared& shared) {
  const int lane = threadIdx.x % kWarp, blocks = blocks_of_cluster();
  const unsigned least = static_cast<unsigned>((wanted + (1ull << shift) - 1) >> shift);
  const unsigned beyond = least + num_keys;
  unsigned first_sum = 0, second_sum = 0;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank >= blocks) continue;
    const uint2 theirs = reinterpret_cast<const uint2*>(coarse_bins(shared, rank))[lane];
    first_sum += theirs.x;
    second_sum += theirs.y;
  }
  const Cumulated coarse(first_sum, second_sum, 0);
  const int first = min(coarse.ending_below(least), kCoarseBins - 1);
  const int last = max(coarse.beginning_below(beyond) - 1, first);
  unsigned start = __shfl_sync(~0u, first % 2 ? coarse.between : coarse.before, first / 2);
  const unsigned start_of_first = start;
  int lowest = kSpreadBins - 1, highest = 0;  // where no bin ends beyond the threshold: the last
#pragma unroll 1
  for (int bin = first; bin <= last; ++bin) {
    const uint2* own = reinterpret_cast<const uint2*>(shared.masses) + bin * (kFineBins / 2) + lane;
    first_sum = second_sum = 0;
#pragma unroll
    for (int rank = 0; rank < kMostBlocks; ++rank) {
      if (rank >= blocks) continue;
      const uint2 theirs = *in_block(own, rank);
      first_sum += theirs.x;
      second_sum += theirs.y;
    }
    const Cumulated fine(first_sum, second_sum, start);
    const int below = fine.ending_below(least), begun = fine.beginning_below(beyond);
    if (below < kFineBins) lowest = min(lowest, bin * kFineBins + below);
    if (begun > 0) highest = bin * kFineBins + begun - 1;
    start = fine.end();
  }
  if (lane == 0) {
    shared.lowest = lowest;
    shared.highest = max(highest, lowest);
    const bool has_last = highest == kSpreadBins - 1;
    shared.inside = has_last ? total : static_cast<Mass>(start - start_of_first) << shift;
    shared.count = 0;
  }
}

// Lists the keys of the bins that may contain the threshold, writes the row as if all of them were
// kept, and returns the mass above and the number of listed keys, of all blocks. NaN stays in the
// row, for sample_tokens to say so.
template <typename Division>
__device__ __forceinline__ Listed list_bins(const HeldRow& held, const Deviations& keys,
                                            const Division& division, void* kept,
                                            Shared& shared) {
  const int lowest = shared.lowest, highest = shared.highest;
  Mass above = 0;
  held.write_kept(kept, [&](float x, int id) {
    const float distance = keys.distance(x), deviation = keys.at(distance);
    const int bin = division.of(deviation, id);
    const bool is_kept = keys.admits(x, id) & (bin <= highest), is_above = is_kept & (bin < lowest);
    const float units = Deviations::units(distance);
    above += __float2ull_rn(is_above ? units : 0.0f);
    if (is_kept & !is_above) {
      const int slot = take(&shared.count);
      if (slot < kListed) {
        shared.list[slot] = key_of(-deviation, id);
        listed_weights(shared)[slot] = units;
      }
    }
    return is_kept | (x != x);
  });
  above = block_mass(above, shared.mass_of_warp);  // and a barrier: all keys are counted
  if (threadIdx.x < blocks_of_cluster()) {
    in_block(shared.listed_of, threadIdx.x)[rank_in_cluster()] = {above, shared.count};
  }
  sync_cluster_after_block();
  Listed all = {0, 0};
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank >= blocks_of_cluster()) continue;
    all.above += shared.listed_of[rank].above;
    all.count += shared.listed_of[rank].count;
  }
  return all;
}

// Copies the lists of all blocks, in their order, and the masses of their keys to shared.masses.
__device__ __forceinline__ void join_keys(Shared& shared) {
  const int blocks = blocks_of_cluster();
  const int warp = threadIdx.x / kWarp, theirs = warp % blocks;  // warps take the lists in turn
  int base = 0;
#pragma unroll
  for (int rank = 0; rank < kMostBlocks; ++rank) {
    if (rank < theirs) base += shared.listed_of[rank].count;
  }
  const int count = shared.listed_of[theirs].count;
  Shared& from = *in_block(&shared, theirs);
  const int step = (kWarps - theirs + blocks - 1) / blocks * kWarp;
#pragma unroll 1
  for (int i = warp / blocks * kWarp + threadIdx.x % kWarp; i < count; i += step) {
    joined_keys(shared)[base + i] = from.list[i];
    shared.masses[base + i] = __float2ull_rn(listed_weights(from)[i]);
  }
  __syncthreads();
}

// The least and the largest of the threads' keys.
__device__ __forceinline__ Range bounds_of_block(Key low, Key high, Shared& shared) {
  const auto over_lanes = [&] {
#pragma unroll
    for (int step = kWarp / 2; step > 0; step /= 2) {
      low = min(low, __shfl_xor_sync(0xffffffffu, low, step));
      high = max(high, __shfl_xor_sync(0xffffffffu, high, step));
    }
  };
  const int lane = threadIdx.x % kWarp;
  over_lanes();
  if (lane == 0) {
    shared.mass_of_warp[threadIdx.x / kWarp] = low;
    shared.other_of_warp[threadIdx.x / kWarp] = high;
  }
  __syncthreads();
  low = shared.mass_of_warp[lane % kWarps];
  high = shared.other_of_warp[lane % kWarps];
  over_lanes();
  __syncthreads();  // before they are overwritten
  return {low, high, false};
}

// Makes the keys of the bins that may contain the threshold the next ones to be divided.
template <typename Division>
__device__ __forceinline__ void divide(const HeldRow& held, const Deviations& keys,
                                       const Division& division, Shared& shared) {
  const int lowest = shared.lowest, highest = shared.highest;
  Key low = ~0ull, high = kAbsent;
  held.each([&](float x, int id) {
    const float deviation = keys.at(keys.distance(x));
    const int bin = division.of(deviation, id);
    if (!keys.admits(x, id) || bin < lowest || bin > highest) return;
    const Key key = key_of(-deviation, id);
    low = min(low, key);
    high = max(high, key);
  });
  const Range own = bounds_of_block(low, high, shared);
  if (threadIdx.x == 0) shared.range = own;
  sync_cluster();
#pragma unroll 1
  for (int rank = 0; rank < blocks_of_cluster(); ++rank) {
    const Range& theirs = in_block(&shared, rank)->range;
    low = min(low, theirs.low);
    high = max(high, theirs.high);
  }
  if (threadIdx.x == 0) {
    shared.zone.low = low;
    shared.zone.high = high;
  }
  __syncthreads();
}

// The least of the joined keys that is kept: those from it on have the mass `wanted`. By one block.
//
// Of keys between the least and the largest that may be it, masses are summed in bins. A key's mass
// is summed in parts of 20 and 21 bits: atomic additions of 64 bits to shared memory take turns.
__device__ __forceinline__ Key least_of_list(int size, Mass wanted, Shared& shared) {
  constexpr int kLowBits = 20;
  static_assert(2 * kListed + kBins <= kList, "behind the keys");
  unsigned* low_parts = reinterpret_cast<unsigned*>(shared.list + 2 * kListed);
  unsigned* high_parts = low_parts + kBins;
  const Joined joined{shared, size};
  Key first = 1, last = ~0ull;
#pragma unroll 1
  while (true) {
    Key low = ~0ull, high = kAbsent;
    joined.each([&](Key key, int) {
      if (key < first || key > last) return;
      low = min(low, key);
      high = max(high, key);
    });
    const Range range = bounds_of_block(low, high, shared);
    if (agreed(range.low >= range.high)) return range.low;
    const Bins bins(range.low, range.high, kDigitBits);
    for_each(2 * kBins, [&](int i) { low_parts[i] = 0; });
    joined.each([&](Key key, int i) {
      if (key < range.low || key > range.high) return;
      const Mass mass = shared.masses[i];
      atomicAdd(&low_parts[bins.of(key)], static_cast<unsigned>(mass) & ((1u << kLowBits) - 1));
      atomicAdd(&high_parts[bins.of(key)], static_cast<unsigned>(mass >> kLowBits));
    });
    if (threadIdx.x == 0) shared.bin = 0;
    __syncthreads();

    // A thread reads adjacent bins, the first thread the largest.
    constexpr int kOwn = of_thread(kBins);
    const int top = kBins - 1 - kOwn * static_cast<int>(threadIdx.x);
    Mass own = 0, in_bin[kOwn], total;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      in_bin[b] = 0;
      if (top >= b) {
        in_bin[b] = low_parts[top - b] + (static_cast<Mass>(high_parts[top - b]) << kLowBits);
      }
      own += in_bin[b];
    }
    Mass before = sum_before(own, shared.mass_of_warp, &total);
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      if (before < wanted && wanted <= before + in_bin[b]) {
        shared.bin = top - b;
        shared.larger = before;
      }
      before += in_bin[b];
    }
    __syncthreads();
    const int bin = shared.bin;
    wanted -= shared.larger;
    first = max(bins.first_of(bin), range.low);
    last = min(bins.last_of(bin), range.high);
    __syncthreads();  // before it is overwritten
  }
}

// Takes out of the row the joined keys that are not kept: those above which there is the mass
// `wanted`. Each block decides on a part of the keys.
__device__ __forceinline__ void drop_joined(const HeldRow& held, int size, Mass wanted, void* kept,
                                            Shared& shared) {
  const Key* keys = joined_keys(shared);
  const int rank = rank_in_cluster(), blocks = blocks_of_cluster();
  const auto drop = [&](Key key) {
    const unsigned id = id_of(key);
    if (held.row.is_processed()) {
      atomicAnd(&static_cast<unsigned*>(kept)[id / 32], ~(1u << (id % 32)));
    } else {
      static_cast<T*>(kept)[id] = from_float<T>(-kInfinity);
    }
  };
  if (agreed(size * size > blocks << 15)) {  // comparing all with all would take longer
    const Key least = least_of_list(size, wanted, shared);
#pragma unroll 1
    for (int i = rank + blocks * threadIdx.x; i < size; i += blocks * kThreads) {
      if (keys[i] < least) drop(keys[i]);
    }
    return;
  }
  const int lane = threadIdx.x % kWarp;
#pragma unroll 1
  for (int i = rank + blocks * (threadIdx.x / kWarp); i < size; i += blocks * kWarps) {
    const Key own = keys[i];
    Mass larger = 0;
#pragma unroll 4
    for (int j = lane; j < size; j += kWarp) larger += keys[j] > own ? shared.masses[j] : 0;
    larger = warp_sum(larger);
    if (lane == 0 && larger >= wanted) drop(own);
  }
}

// A round of a search: writes the row, and lists the keys of the bins that may contain the
// threshold. shared.wanted is the mass of keys that are kept, `known` the mass above all bins, and
// the number of keys in them.
template <typename Division>
__device__ __forceinline__ Listed search_bins(const HeldRow& held, const Deviations& keys,
                                              const Division& division, Mass total,
                                              const Listed& known, void* kept, Shared& shared) {
  const int shift = max(34 - __clzll(static_cast<long long>(total)), 0);
  fill_bins(held, keys, division, shift, shared);
  if (agreed(threadIdx.x < kWarp)) {
    find_bins(shared.wanted - known.above, known.count, total, shift, shared);
  }
  __syncthreads();
  return list_bins(held, keys, division, kept, shared);
}

// Writes the row of the keys that are kept: the largest that have the mass `wanted` of `total`.
__device__ __forceinline__ void keep_typical(const HeldRow& held, const Deviations& keys,
                                             const ByDeviation& bins, Mass wanted, Mass total,
                                             void* kept, Shared& shared) {
  if (threadIdx.x == 0) shared.wanted = wanted;  // read where it is needed: registers are scarce
  Listed found = search_bins(held, keys, bins, total, {0, held.row.length}, kept, shared);
  if (agreed(found.count > kListed)) {
    divide(held, keys, bins, shared);
    const ByKey by_key{shared.zone};
#pragma unroll 1
    while (true) {
      found = search_bins(held, keys, by_key, shared.inside, found, kept, shared);
      if (agreed(found.count <= kListed)) break;
      divide(held, keys, by_key, shared);
    }
  }
  join_keys(shared);
  arrive_without_fence();
  drop_joined(held, found.count, shared.wanted - found.above, kept, shared);
  wait_for_cluster();  // blocks whose lists others read are still there
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_typical(unsigned char* kept, const T* logits, const SamplingParams* all_params,
                   const int* slots, const int* positions, const unsigned* allowed,
                   const unsigned* changed, const float* processed, int rows, int length,
                   long long stride, int token_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const auto is_typical = [&](int row) {
    return slots[row] >= 0 && all_params[slots[row]].is_typical();
  };
  const int number = row_of_cluster(rows, is_typical, shared);
  if (number < 0) return;  // the whole cluster
  arrive_without_fence();
  const int slot = slots[number];
  const SamplingParams& params = all_params[slot];
  const Row row = row_of(logits, number, length, stride, params, slot, positions[number], allowed,
                         changed, processed);
  const float temperature = params.temperature, typical_p = params.typical_p;
  const int top_k = params.truncates_to_k(length) ? params.top_k : 0;  // 0: none
  HeldRow held(row, shared);
  kept += number * kept_row_bytes(length);
  const float largest = largest_of(held, shared);
  if (agreed(!(fabsf(largest) < kInfinity))) {  // sample_tokens says what is wrong
    held.write_kept(kept, [](float, int) { return true; });
    return;
  }
  Key least = static_cast<Key>(order_of(largest + kReach * temperature)) << 32;
  if (agreed(top_k > 0)) {
    least = max(least, search_row(row, {kLeastFinite, highest_of(largest), false},
                                  Truncation::to_number(top_k, false), Weight{}, shared));
    held.let_go();
    sync_cluster();
  }
  Deviations keys{Floor(max(least, kLeastFinite)), largest, 1.0f / temperature, 0.0f};
  const Moments found = measure_row(held, keys, shared);
  keys.expected =
      static_cast<float>(static_cast<double>(found.moment) / static_cast<double>(found.mass));
  const double share = typical_p;
  const Mass wanted = static_cast<Mass>(ceil(share * static_cast<double>(found.mass)));
  keep_typical(held, keys, {bins_per_deviation(found, keys.expected, typical_p)},
               min(max(wanted, Mass(1)), found.mass), found.mass, kept, shared);
}
