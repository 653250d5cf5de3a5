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
// their barriers. What follows from what blocks have told each other is computed by one warp: by
// all 32 of a block, a hundred instructions take 0.4 µs.

constexpr int kListed = kList / 4;  // keys of all blocks that a search may leave
constexpr int kCoarseBins = 64, kFineBins = kSpreadBins / kCoarseBins;

// What a search keeps where counts would be: weights of the block's keys in units of mass, and
// each block's masses in coarse bins.
__device__ __forceinline__ float* listed_weights(Shared& shared) {
  return reinterpret_cast<float*>(shared.counts);
}
__device__ __forceinline__ unsigned* coarse_bins(Shared& shared, int rank) {
  static_assert(kListed + kMostOfTypical * kCoarseBins <= kBins, "both fit");
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
// element of a row take longer than all barriers. For the same reason floats are converted to
// integers where they must be: for such a conversion, sixteen lanes take as long as 128 for a sum.
struct Deviations {
  Floor floor;  // of the candidates, which are within reach
  float largest, inverse, expected;  // of the temperature; d

  // A row is not held where top-k cuts it: otherwise all of equal values are candidates, or none.
  __device__ __forceinline__ bool admits(float x, int id, bool is_held) const {
    if (is_held) return x >= floor.value;
    return (x > floor.value) | ((x == floor.value) & (id <= floor.last));
  }
  __device__ __forceinline__ float distance(float x) const {
    return __fmul_rn(largest - x, inverse);  // rounded: the same in every pass
  }
  __device__ __forceinline__ float at(float distance) const { return fabsf(distance - expected); }
  // A candidate's weight, and in units of mass. Without the instructions for numbers that are not
  // normal, as no candidate's is.
  __device__ __forceinline__ static float weight(float distance) {
    float weight;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(weight) : "f"(distance * -kBitsPerNat));
    return weight;
  }
  __device__ __forceinline__ static float units(float distance) { return weight(distance) * kUnit; }
};

// The sum of the integers that are next to at most 2047 numbers from 0 to 2^41, as __float2ull_rn
// has them: by adding numbers so large that the sum's last bit is worth 2^20, and 1.
struct RoundedSum {
  static constexpr float kHigh = 0x1.8p43f, kLow = 0x1.8p23f;
  int high = 0, low = 0;

  __device__ __forceinline__ void add(float x) {
    const float multiple = __fadd_rn(x, kHigh);
    const float rest = __fadd_rn(__fsub_rn(x, __fsub_rn(multiple, kHigh)), kLow);
    high += __float_as_int(multiple) - __builtin_bit_cast(int, kHigh);
    low += __float_as_int(rest) - __builtin_bit_cast(int, kLow);
  }
  __device__ __forceinline__ Mass sum() const {
    return static_cast<Mass>((static_cast<long long>(high) << 20) + low);
  }
};

// Bins of equal width in the deviation, the smallest in the first one. What is in the last one is
// not counted: a threshold hardly lies there, but of many rows most keys, whose additions to one
// number would take turns.
struct ByDeviation {
  static constexpr int kCounted = kSpreadBins - 1;
  float per_deviation;

  // Where a key lies among the bins; of a counted one, the number of its bin.
  __device__ __forceinline__ float place_of(float deviation, int) const {
    return deviation * per_deviation;
  }
  __device__ __forceinline__ static bool counts(float place) { return place < kCounted; }
  __device__ __forceinline__ static int bin_at(float place) {
    return __float_as_int(__fadd_rz(place, 0x1p23f)) & (kSpreadBins - 1);
  }
  // Where a bin begins and ends.
  __device__ __forceinline__ static float begin_of(int bin) { return static_cast<float>(bin); }
  __device__ __forceinline__ static float end_of(int bin) {
    return bin == kSpreadBins - 1 ? kInfinity : static_cast<float>(bin + 1);
  }
};

// Bins of the keys of a zone, the largest in the first one; outside of the zone -1 above,
// kSpreadBins below.
struct ByKey {
  static constexpr int kCounted = kSpreadBins;
  const Zone& zone;  // read where it is needed: registers are scarce

  __device__ __forceinline__ int place_of(float deviation, int id) const {
    const Key key = key_of(-deviation, id), low = zone.low, high = zone.high;
    if (key < low || key > high) return key > high ? -1 : kSpreadBins;
    constexpr int kBits = kDigitBits + 1;
    return static_cast<int>((high - key) >>
                            max(64 - kBits - __clzll(static_cast<long long>(high - low)), 0));
  }
  __device__ __forceinline__ static bool counts(int place) {
    return static_cast<unsigned>(place) < static_cast<unsigned>(kCounted);
  }
  __device__ __forceinline__ static int bin_at(int place) { return place; }
  __device__ __forceinline__ static int begin_of(int bin) { return bin; }
  __device__ __forceinline__ static int end_of(int bin) { return bin + 1; }
};

// The largest value, in every block; +inf if there is one or NaN. Each block writes its own into
// all: what is there after a barrier takes no way to another block and back.
__device__ __forceinline__ float largest_of(const HeldRow& held, Shared& shared) {
  float most = -kInfinity;
  bool is_odd = false;
  held.load([&](float x, int) {
    most = fmaxf(most, x);
    is_odd |= !(x < kInfinity);
  });
  most = lanes_max<kWarp>(is_odd ? kInfinity : most);
  const int lane = threadIdx.x % kWarp, blocks = blocks_of_cluster();
  if (lane == 0) shared.float_of_warp[threadIdx.x / kWarp] = most;
  __syncthreads();
  wait_for_cluster();  // all blocks have begun
  if (agreed(threadIdx.x < kWarp)) {
    most = lanes_max<kWarp>(lane < kWarps ? shared.float_of_warp[lane] : -kInfinity);
    if (lane < blocks) in_block(shared.most_of, lane)[rank_in_cluster()] = most;
  }
  sync_cluster_after_block();
  return lanes_max<kWarp>(lane < blocks ? shared.most_of[lane] : -kInfinity);
}

// Two sums over the lanes of a warp: the lower half of them gets that of the first numbers, the
// upper half that of the second ones.
__device__ __forceinline__ Mass warp_sums(Mass first, Mass second) {
  const bool is_lower = threadIdx.x % kWarp < kWarp / 2;
  Mass own = is_lower ? first : second;
  own += __shfl_xor_sync(0xffffffffu, is_lower ? second : first, kWarp / 2);
#pragma unroll
  for (int step = kWarp / 4; step > 0; step /= 2) own += __shfl_xor_sync(0xffffffffu, own, step);
  return own;
}

// The sums over the lanes of a warp, which all get them.
__device__ __forceinline__ Moments warp_moments(const Moments& own) {
  const Mass both = warp_sums(own.mass, own.moment);
  return {__shfl_sync(0xffffffffu, both, 0), __shfl_sync(0xffffffffu, both, kWarp / 2),
          warp_sum(own.square)};
}

// Bins per deviation, the last of which holds no threshold: by Chebyshev, the mass of deviations
// beyond s / sqrt(1 - p) is at most 1 - p, s being the standard deviation of d. Rounding may break
// that, and then costs time alone: approximations will do.
__device__ __forceinline__ float bins_per_deviation(const Moments& found, float expected,
                                                    float typical_p) {
  const float square = __fdividef(found.square, static_cast<float>(found.mass));
  const float mean = expected * expected;
  const float variance = fmaxf(square - mean, 0.0f) * 1.01f + 1e-5f * (1.0f + mean);
  constexpr float kLeast = 1.0f / (0.5f - kReach);  // where all candidates are in reach
  return kSpreadBins * fmaxf(rsqrtf(__fdividef(variance, 1.0f - typical_p)), kLeast);
}

__device__ __forceinline__ void clear_bins(Shared& shared) {
  uint4* fours = reinterpret_cast<uint4*>(shared.masses);
#pragma unroll 1
  for (int i = threadIdx.x; i < kSpreadBins / 4; i += kThreads) fours[i] = uint4{0, 0, 0, 0};
}

// Sums the mass of the candidates, their mass times d, and times the square of d, over all blocks;
// returns what is looked for. Leaves bins empty.
//
// kReach bounds d, so the sums of 2^23 products fit into 64 bits. The last sum is rounded.
__device__ __forceinline__ Target measure_row(const HeldRow& held, const Deviations& keys,
                                              Shared& shared) {
  clear_bins(shared);
  Moments own = {0, 0, 0.0f};
  RoundedSum moments;
  held.each([&](float x, int id, bool is_held) {
    constexpr float kFar = 1e30f;  // weighs nothing
    const float distance = keys.admits(x, id, is_held) ? keys.distance(x) : kFar;
    const float units = Deviations::units(distance), moment = __fmul_rn(units, distance);
    own.mass += __float2ull_rn(units);
    if (is_held) {  // both kinds of conversions: there is time for each
      moments.add(moment);
    } else {
      own.moment += __float2ull_rn(moment);
    }
    own.square += moment * distance;
  });
  own.moment += moments.sum();
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, blocks = blocks_of_cluster();
  const Mass both = warp_sums(own.mass, own.moment);
  own.square = warp_sum(own.square);
  if (lane == 0) {
    shared.mass_of_warp[warp] = both;
    shared.float_of_warp[warp] = own.square;
  }
  if (lane == kWarp / 2) shared.other_of_warp[warp] = both;
  __syncthreads();
  if (agreed(threadIdx.x < kWarp)) {
    own = {0, 0, 0.0f};
    if (lane < kWarps) {
      own = {shared.mass_of_warp[lane], shared.other_of_warp[lane], shared.float_of_warp[lane]};
    }
    own = warp_moments(own);
    if (lane < blocks) in_block(shared.moments_of, lane)[rank_in_cluster()] = own;
  }
  sync_cluster_after_block();
  if (agreed(threadIdx.x < kWarp)) {
    Moments all = {0, 0, 0.0f};
    if (lane < blocks) all = shared.moments_of[lane];
    all = warp_moments(all);
    const double mass = static_cast<double>(all.mass), share = shared.typical_p;
    const float expected = static_cast<float>(static_cast<double>(all.moment) / mass);
    const Mass wanted = static_cast<Mass>(ceil(share * mass));
    if (lane == 0) {
      shared.target = {min(max(wanted, Mass(1)), all.mass), all.mass, expected,
                       bins_per_deviation(all, expected, shared.typical_p)};
      shared.listed = {0, held.row.length, 0};
    }
  }
  __syncthreads();
  return shared.target;
}

// Sums masses of keys in bins, which are empty, in units of 2^shift, and in coarse bins, those in
// all blocks.
template <typename Division>
__device__ __forceinline__ void fill_bins(const HeldRow& held, const Deviations& keys,
                                          const Division& division, int shift, Shared& shared) {
  unsigned* bins = reinterpret_cast<unsigned*>(shared.masses);
  const uint4* fours = reinterpret_cast<const uint4*>(bins);
  const float per_weight = kUnit * __int_as_float((127 - shift) << 23);
  held.each([&](float x, int id, bool is_held) {
    const float distance = keys.distance(x);
    const auto place = division.place_of(keys.at(distance), id);
    if (keys.admits(x, id, is_held) & Division::counts(place)) {
      const unsigned mass = __float2uint_rz(Deviations::weight(distance) * per_weight) + 1;
      atomicAdd(&bins[Division::bin_at(place)], mass);
    }
  });
  __syncthreads();
  constexpr int kLanes = kFineBins / 4;  // that have a coarse bin
  static_assert(kLanes >= kMostOfTypical && kSpreadBins / 4 % kWarp == 0, "a lane for each block");
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

// Finds the bins that may contain the threshold, from shared.lowest to shared.highest, with the
// mass shared.inside at most; by one warp. All bins have the mass `total` at most.
//
// A bin's mass is exact but for less than a unit of each key too much. The last bin has what the
// others have not. Of other blocks' bins only those are read that lie in coarse bins with the
// threshold.
__device__ __forceinline__ void find_bins(Mass total, int shift, Shared& shared) {
  const int lane = threadIdx.x % kWarp, blocks = blocks_of_cluster();
  const Mass wanted = shared.target.wanted - shared.listed.above;
  const unsigned least = static_cast<unsigned>((wanted + (1ull << shift) - 1) >> shift);
  const unsigned beyond = least + shared.listed.count;
  unsigned first_sum = 0, second_sum = 0;
#pragma unroll 4
  for (int rank = 0; rank < blocks; ++rank) {
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
#pragma unroll 8
    for (int rank = 0; rank < blocks; ++rank) {
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
// kept, and leaves the mass above and the number of listed keys, of all blocks, in shared.listed.
template <typename Division>
__device__ __forceinline__ void list_bins(const HeldRow& held, const Deviations& keys,
                                          const Division& division, Shared& shared) {
  const auto begin = Division::begin_of(shared.lowest), end = Division::end_of(shared.highest);
  Mass above = 0;
  held.write_kept(shared.kept, [&](float x, int id, bool is_held) {
    const float distance = keys.distance(x), deviation = keys.at(distance);
    const auto place = division.place_of(deviation, id);
    const bool is_kept = keys.admits(x, id, is_held) & (place < end);
    const bool is_above = is_kept & (place < begin);
    const float units = Deviations::units(distance);
    above += __float2ull_rn(is_above ? units : 0.0f);
    if (is_kept & !is_above) {
      const int slot = take(&shared.count);
      if (slot < kListed) {
        shared.list[slot] = key_of(-deviation, id);
        listed_weights(shared)[slot] = units;
      }
    }
    return is_kept;
  });
  above = block_mass(above, shared.mass_of_warp);  // and a barrier: all keys are counted
  const int lane = threadIdx.x, blocks = blocks_of_cluster();
  if (lane < blocks) {
    in_block(shared.listed_of, lane)[rank_in_cluster()] = {above, shared.count, 0};
  }
  sync_cluster_after_block();
  if (agreed(lane < kWarp)) {
    Listed own = {0, 0, 0};
    if (lane < blocks) own = shared.listed_of[lane];
    int behind = own.count;  // the end of this block's keys among those of all
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const int before = __shfl_up_sync(0xffffffffu, behind, step);
      if (lane >= step) behind += before;
    }
    if (lane < blocks) shared.listed_of[lane].count_before = behind - own.count;
    above = warp_sum(own.above);
    if (lane == kWarp - 1) shared.listed = {above, behind, 0};
  }
  __syncthreads();
}

// Copies the lists of all blocks, in their order, and the masses of their keys to shared.masses.
__device__ __forceinline__ void join_keys(Shared& shared) {
  const int blocks = blocks_of_cluster();
  const int warp = threadIdx.x / kWarp, theirs = warp % blocks;  // warps take the lists in turn
  const int base = shared.listed_of[theirs].count_before, count = shared.listed_of[theirs].count;
  static_assert(kWarps >= kMostOfTypical, "each list is copied by a warp, or several");
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
  const auto begin = Division::begin_of(shared.lowest), end = Division::end_of(shared.highest);
  Key low = ~0ull, high = kAbsent;
  clear_bins(shared);
  held.each([&](float x, int id, bool is_held) {
    const float deviation = keys.at(keys.distance(x));
    const auto place = division.place_of(deviation, id);
    if (!keys.admits(x, id, is_held) || place < begin || place >= end) return;
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
__device__ __forceinline__ void drop_joined(const HeldRow& held, int size, Mass wanted,
                                            Shared& shared) {
  const Key* keys = joined_keys(shared);
  void* kept = shared.kept;
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
// threshold. shared.listed is the mass above all bins and the number of keys in them, and then the
// mass above the listed keys and their number.
template <typename Division>
__device__ __forceinline__ void search_bins(const HeldRow& held, const Deviations& keys,
                                            const Division& division, Mass total, Shared& shared) {
  const int shift = max(34 - __clzll(static_cast<long long>(total)), 0);
  fill_bins(held, keys, division, shift, shared);
  if (agreed(threadIdx.x < kWarp)) find_bins(total, shift, shared);
  __syncthreads();
  list_bins(held, keys, division, shared);
}

// Writes the row of the keys that are kept: the largest that have the mass shared.target.wanted.
__device__ __forceinline__ void keep_typical(const HeldRow& held, const Deviations& keys,
                                             const ByDeviation& bins, Shared& shared) {
  search_bins(held, keys, bins, shared.target.total, shared);
  if (agreed(shared.listed.count > kListed)) {
    divide(held, keys, bins, shared);
    const ByKey by_key{shared.zone};
#pragma unroll 1
    while (true) {
      search_bins(held, keys, by_key, shared.inside, shared);
      if (agreed(shared.listed.count <= kListed)) break;
      divide(held, keys, by_key, shared);
    }
  }
  join_keys(shared);
  arrive_without_fence();
  drop_joined(held, shared.listed.count, shared.target.wanted - shared.listed.above, shared);
  wait_for_cluster();  // blocks whose lists others read are still there
}

// The row of a cluster, as a warp of each block finds it.
struct Task {
  Row row;
  unsigned share;  // of a block, in packs
  float temperature;
  int top_k;  // 0: none
};

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
  Task& found = *reinterpret_cast<Task*>(shared.list);
  if (agreed(threadIdx.x < kWarp)) {
    const int slot = slots[number];
    const SamplingParams& params = all_params[slot];
    const Row row = row_of(logits, number, length, stride, params, slot, positions[number],
                           allowed, changed, processed);
    const int top_k = params.truncates_to_k(length) ? params.top_k : 0;
    if (threadIdx.x == 0) {
      found = {row, HeldRow::share_of(length), params.temperature, top_k};
      shared.kept = kept + number * kept_row_bytes(length);
      shared.typical_p = params.typical_p;
    }
  }
  __syncthreads();
  const Task task = found;
  const float temperature = task.temperature;
  HeldRow held(task.row, shared, task.share);
  const float largest = largest_of(held, shared);
  if (agreed(!(fabsf(largest) < kInfinity))) {  // sample_tokens says what is wrong
    held.write_kept(shared.kept, [](float x, int, bool) { return x != -kInfinity; });
    return;
  }
  Key least = static_cast<Key>(order_of(largest + kReach * temperature)) << 32;
  if (agreed(task.top_k > 0)) {
    least = max(least, search_row(task.row, {kLeastFinite, highest_of(largest), false},
                                  Truncation::to_number(task.top_k, false), Weight{}, shared));
    held.let_go();
    sync_cluster();
  }
  Deviations keys{Floor(max(least, kLeastFinite)), largest, 1.0f / temperature, 0.0f};
  const Target target = measure_row(held, keys, shared);
  keys.expected = target.expected;
  keep_typical(held, keys, {target.bins_per_deviation}, shared);
}
