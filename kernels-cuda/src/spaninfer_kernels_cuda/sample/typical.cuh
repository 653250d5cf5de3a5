// Locally typical sampling (Meister et al. 2022): the tokens of a row that it keeps, as a mask.
//
// A token's surprise is -log p, its deviation the distance of that from the expected surprise, the
// entropy. With d = (largest logit - logit) / temperature, the deviation is |d - E[d]|. Kept are
// the tokens of the least deviations that together have the mass typical_p, of equal ones smaller
// ids first, among those that top-k keeps. Keys are therefore those of negative deviations.
//
// Masses of keys are counted in bins, in units of which all keys have 2^30; each is rounded up, so
// that a mass is known up to the number of keys. Keys of the bins that may contain the threshold
// are listed. Bins are of equal width in the deviation, which leaves some hundred keys of flat
// rows; where the list cannot hold them, as of equal logits, these keys are counted in bins of keys
// next. Every block reads the bins and the list of all, and finds the same: what one would tell the
// others takes a barrier of the cluster more, and a few rows take as long as their barriers.

constexpr int kListed = kList / 2;  // keys of a search, whose sums of 20 bits fit into 32
constexpr float kBinsPerDeviation = kSpreadBins / (0.5f - kReach);

// The keys of a row by deviation, and their masses.
struct Deviations {
  const Row& row;
  Floor floor;  // of the candidates
  Weight weight;
  float inverse, expected;  // of the temperature; d

  __device__ __forceinline__ float distance(float x) const {
    return (weight.largest - x) * inverse;
  }
  __device__ __forceinline__ float of(float x) const { return fabsf(distance(x) - expected); }
  __device__ __forceinline__ Mass mass_of(Key key) const { return weight(row.read(id_of(key))); }
};

// Bins of keys, the largest in the first one: by deviation, or of the keys of a zone.
struct Division {
  bool is_by_deviation;
  const Zone& zone;  // read where it is needed: registers are scarce

  // The bin of a key; outside of the zone -1 above, kSpreadBins below.
  __device__ __forceinline__ int of(float deviation, int id) const {
    if (is_by_deviation) {
      return min(static_cast<int>(deviation * kBinsPerDeviation), kSpreadBins - 1);
    }
    const Key key = key_of(-deviation, id), low = zone.low, high = zone.high;
    if (key < low || key > high) return key > high ? -1 : kSpreadBins;
    constexpr int kBits = kDigitBits + 1;
    return static_cast<int>((high - key) >>
                            max(64 - kBits - __clzll(static_cast<long long>(high - low)), 0));
  }
};

// The mass of the candidates, and their mass times d, over all blocks. kReach bounds d, so the sums
// of 2^23 products fit into 64 bits.
struct Moments {
  Mass mass, moment;
};
__device__ __forceinline__ Moments measure_row(const HeldRow& held, const Deviations& keys,
                                               Shared& shared) {
  Mass mass = 0, moment = 0;
  held.each([&](float x, int id) {
    if (!keys.floor.admits(x, id)) return;
    const float own = keys.weight.units(x);
    mass += __float2ull_rn(own);
    moment += __float2ull_rn(own * keys.distance(x));
  });
  mass = block_mass(mass, shared.mass_of_warp);
  moment = block_mass(moment, shared.other_of_warp);
  if (threadIdx.x == 0) {
    shared.inside = mass;
    shared.above = moment;
  }
  sync_cluster();
  return {cluster_sum(&shared.inside), cluster_sum(&shared.above)};
}

// Sums masses of keys in bins, in units of 2^shift.
__device__ __forceinline__ void fill_bins(const HeldRow& held, const Deviations& keys,
                                          const Division& division, int shift, Shared& shared) {
  unsigned* bins = reinterpret_cast<unsigned*>(shared.masses);
  for_each(kSpreadBins, [&](int i) { bins[i] = 0; });
  const float per_unit = __int_as_float((127 - shift) << 23);
  held.each([&](float x, int id) {
    const int bin = division.of(keys.of(x), id);
    if (!keys.floor.admits(x, id) || bin < 0 || bin == kSpreadBins) return;
    atomicAdd(&bins[bin], __float2uint_rz(keys.weight.units(x) * per_unit) + 1);
  });
}

// Finds the bins of all blocks that may contain the threshold: `wanted` is the mass of keys that
// are kept. The first and the last of them are shared.lowest and shared.highest then.
__device__ __forceinline__ void find_bins(Mass wanted, int num_keys, int shift, Shared& shared) {
  unsigned* bins = reinterpret_cast<unsigned*>(shared.masses);
  unsigned* sums = reinterpret_cast<unsigned*>(shared.list);
  if (threadIdx.x == 0) {
    shared.lowest = kSpreadBins;
    shared.highest = -1;
  }
  for_each(kSpreadBins, [&](int i) { sums[i] = cluster_sum(&bins[i]); });
  constexpr int kOwn = of_thread(kSpreadBins);
  const int first = kOwn * static_cast<int>(threadIdx.x);
  unsigned in_bin[kOwn];
  Mass own = 0, total;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    in_bin[b] = first + b < kSpreadBins ? sums[first + b] : 0;
    own += in_bin[b];
  }
  Mass before = sum_before(own, shared.mass_of_warp, &total);
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    const Mass after = before + in_bin[b], least = before > num_keys ? before - num_keys : 0;
    if (in_bin[b] > 0 && least << shift < wanted && wanted <= after << shift) {
      atomicMin(&shared.lowest, first + b);
      atomicMax(&shared.highest, first + b);
    }
    before = after;
  }
  __syncthreads();
}

// Lists the keys of the bins that may contain the threshold; sums their mass, and the mass above.
__device__ __forceinline__ void list_bins(const HeldRow& held, const Deviations& keys,
                                          const Division& division, Shared& shared) {
  const int lowest = shared.lowest, highest = shared.highest;
  Mass above = 0, inside = 0;
  if (threadIdx.x == 0) shared.count = 0;
  __syncthreads();
  held.each([&](float x, int id) {
    const float deviation = keys.of(x);
    const int bin = division.of(deviation, id);
    if (!keys.floor.admits(x, id) || bin < 0 || bin > highest) return;
    const Mass own = keys.weight(x);
    if (bin < lowest) {
      above += own;
      return;
    }
    inside += own;
    const int slot = take(&shared.count);
    if (slot < kList) shared.list[slot] = key_of(-deviation, id);
  });
  above = block_mass(above, shared.mass_of_warp);
  inside = block_mass(inside, shared.other_of_warp);
  if (threadIdx.x == 0) {
    shared.above = above;
    shared.inside = inside;
  }
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
__device__ __forceinline__ void divide(const HeldRow& held, const Deviations& keys,
                                       const Division& division, Shared& shared) {
  const int lowest = shared.lowest, highest = shared.highest;
  Key low = ~0ull, high = kAbsent;
  held.each([&](float x, int id) {
    const float deviation = keys.of(x);
    const int bin = division.of(deviation, id);
    if (!keys.floor.admits(x, id) || bin < lowest || bin > highest) return;
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

// The least key of the list that is kept: those from it on have the mass `wanted`. By one block.
//
// Of keys between the least and the largest that may be it, masses are summed in bins. A key's mass
// is summed in parts of 20 and 21 bits: atomic additions of 64 bits to shared memory take turns.
__device__ __forceinline__ Key least_of_list(const List& list, const Deviations& keys, Mass wanted,
                                             Shared& shared) {
  constexpr int kLowBits = 20;
  unsigned* low_parts = reinterpret_cast<unsigned*>(shared.masses);
  unsigned* high_parts = low_parts + kBins;
  Key first = 1, last = ~0ull;
#pragma unroll 1
  while (true) {
    Key low = ~0ull, high = kAbsent;
    list.each([&](Key key) {
      if (key < first || key > last) return;
      low = min(low, key);
      high = max(high, key);
    });
    const Range range = bounds_of_block(low, high, shared);
    if (agreed(range.low >= range.high)) return range.low;
    const Bins bins(range.low, range.high, kDigitBits);
    for_each(2 * kBins, [&](int i) { low_parts[i] = 0; });
    list.each([&](Key key) {
      if (key < range.low || key > range.high) return;
      const Mass mass = keys.mass_of(key);
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

// The least key of those that have the mass `wanted`, of keys with the mass `total`. By all blocks,
// each of which finds it.
__device__ __forceinline__ Key least_typical(const HeldRow& held, const Deviations& keys,
                                             Mass wanted, Mass total, Shared& shared) {
  bool is_by_deviation = true;
#pragma unroll 1
  while (true) {
    const Division division{is_by_deviation, shared.zone};
    const int shift = max(34 - __clzll(static_cast<long long>(total)), 0);
    fill_bins(held, keys, division, shift, shared);
    sync_cluster();
    find_bins(wanted, held.row.length, shift, shared);
    list_bins(held, keys, division, shared);
    sync_cluster();
    wanted -= cluster_sum(&shared.above);
    total = cluster_sum(&shared.inside);
    if (agreed(cluster_sum(&shared.count) <= kListed)) break;
    divide(held, keys, division, shared);
    is_by_deviation = false;
  }
  const List list{shared, join_lists(shared)};
  arrive_at_cluster();
  const Key least = least_of_list(list, keys, wanted, shared);
  wait_for_cluster();  // blocks whose lists others read are still there
  return least;
}

// The mask of the cluster's row.
__device__ __forceinline__ unsigned* mask_of(unsigned* kept, int length, const Shared& shared) {
  return kept + shared.number * static_cast<size_t>((length + 31) / 32);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_typical(unsigned* kept, const T* logits, const SamplingParams* all_params,
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
  const int slot = slots[number];
  const SamplingParams& params = all_params[slot];
  const Row row = row_of(logits, number, length, stride, params, slot, positions[number], allowed,
                         changed, processed);
  HeldRow held(row, shared);
  if (threadIdx.x == 0) {
    shared.most = 0;
    shared.number = number;
  }
  __syncthreads();

  float most = -kInfinity;
  held.load([&](float x, int) { most = fmaxf(most, x); });
  most = lanes_max<kWarp>(most);
  if (threadIdx.x % kWarp == 0) atomicMax(&shared.most, order_of(most));
  sync_cluster();
  const float largest = value_of(static_cast<Key>(cluster_max(&shared.most)) << 32);
  if (agreed(!(fabsf(largest) < kInfinity))) {  // sample_tokens says what is wrong
    held.write_mask(mask_of(kept, length, shared), [&](float x, int) { return x > -kInfinity; });
    sync_cluster();  // blocks whose memory others read are still there
    return;
  }
  Key least = static_cast<Key>(order_of(largest + kReach * params.temperature)) << 32;
  if (agreed(params.truncates_to_k(length))) {
    least = max(least, search_row(row, {kLeastFinite, highest_of(largest), false},
                                  Truncation::to_number(params.top_k, false), Weight{}, shared));
    held.let_go();
    sync_cluster();
  }
  const float bits_per_x = kBitsPerNat / params.temperature;
  Deviations keys{row, Floor(max(least, kLeastFinite)), Weight{largest, bits_per_x},
                  1.0f / params.temperature, 0.0f};
  const Moments found = measure_row(held, keys, shared);
  keys.expected =
      static_cast<float>(static_cast<double>(found.moment) / static_cast<double>(found.mass));
  const double share = params.typical_p;
  const Mass wanted = static_cast<Mass>(ceil(share * static_cast<double>(found.mass)));
  const Floor edge(
      least_typical(held, keys, min(max(wanted, Mass(1)), found.mass), found.mass, shared));
  held.write_mask(mask_of(kept, length, shared), [&](float x, int id) {
    return keys.floor.admits(x, id) && edge.admits(-keys.of(x), id);
  });
}
