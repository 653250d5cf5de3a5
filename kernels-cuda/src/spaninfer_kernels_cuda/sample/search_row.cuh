// The search for a threshold that is not in the list: by all blocks of the cluster, in the row
// itself.
//
// Keys are counted in bins until the list can hold those among which the threshold lies. The mass
// of a bin is known up to the distance of its edges, the mass above all bins exactly.

// The result of a pass over the row, over all blocks.
struct Found {
  Mass above, inside;
  int listed;
};

__device__ __forceinline__ Found found_by_cluster(Shared& shared) {
  Found found = {};
#pragma unroll 1
  for (int rank = 0; rank < blocks_of_cluster(); ++rank) {
    const Shared& theirs = *in_block(&shared, rank);
    found.above += theirs.above;
    found.inside += theirs.inside;
    found.listed += theirs.count;
  }
  return found;
}

// Lists the keys of the range, or counts them in bins; sums their mass and the mass above them.
__device__ __forceinline__ void look_at_row(const Row& row, bool is_by_mass, const Weight& weight,
                                            Shared& shared) {
  const Range range = shared.range;
  const Bins bins(range.low, range.high, kRowDigitBits);
  int* counts = reinterpret_cast<int*>(shared.list);
  Mass own_above = 0, own_inside = 0;
  if (threadIdx.x == 0) {
    shared.count = 0;
    shared.above = shared.inside = 0;
    shared.highest = -1;
    shared.lowest = kRowBins;
  }
  for_each(range.is_short ? 0 : kRowBins, [&](int i) { counts[i] = 0; });
  const auto visit = [&](const Neighbours& here) {
#pragma unroll 1
    for (int v = 0; v < kVector; ++v) {
      const float x = here.at(v);  // not all of them at once: registers are scarce
      const Key key = key_of(x, here.first + v);
      if (key < range.low) continue;
      const Mass measure = is_by_mass ? weight(x) : 1;
      if (key > range.high) {
        own_above += measure;
        continue;
      }
      own_inside += measure;
      if (!range.is_short) {
        atomicAdd(&counts[bins.of(key)], 1);
        continue;
      }
      const int slot = take(&shared.count);
      if (slot < kList) shared.list[slot] = key;
    }
  };
  row.each(visit, shared);
  own_above = warp_sum(own_above);
  own_inside = warp_sum(own_inside);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&shared.above, own_above);
    atomicAdd(&shared.inside, own_inside);
  }
}

// Finds the bins that may contain the threshold: with such a bin, all larger ones may weigh enough;
// without it, they may weigh too little. By the first block: shared.zone, in numbers of bins.
__device__ __forceinline__ void narrow(bool is_by_mass, Mass above, Mass wanted,
                                       const Weight& weight, Shared& shared) {
  const Key high = shared.range.high;
  const Bins bins(shared.range.low, high, kRowDigitBits);
  const int* counts = reinterpret_cast<const int*>(shared.list);
  constexpr int kOwn = of_thread(kRowBins);
  const int first = kRowBins - 1 - kOwn * static_cast<int>(threadIdx.x);
  int in_bin[kOwn];
#pragma unroll
  for (int b = 0; b < kOwn; ++b) in_bin[b] = first < b ? 0 : counts[first - b];
  const auto at_least = [&](int b) -> Mass {
    if (!is_by_mass) return in_bin[b];
    const Mass mass = in_bin[b] * weight(value_of(bins.first_of(first - b)));
    return mass - (mass >> 20);  // 2^x is rounded
  };
  const auto at_most = [&](int b) -> Mass {
    if (!is_by_mass) return in_bin[b];
    const Mass mass = in_bin[b] * weight(value_of(min(high, bins.last_of(first - b))));
    return mass + (mass >> 20) + in_bin[b];
  };
  Mass least = 0, most = 0, total;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    least += at_least(b);
    most += at_most(b);
  }
  least = above + sum_before(least, shared.mass_of_warp, &total);
  most = above + sum_before(most, shared.mass_of_warp, &total);
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    most += at_most(b);
    if (in_bin[b] > 0 && least < wanted && wanted <= most) {
      atomicMax(&shared.highest, first - b);
      atomicMin(&shared.lowest, first - b);
      atomicAdd(&shared.count, in_bin[b]);
    }
    least += at_least(b);
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.zone.low = bins.first_of(shared.lowest);
    shared.zone.high = min(high, bins.last_of(shared.highest));
    shared.zone.count = shared.count;
  }
}

// The least key that the threshold keeps of the row's in the range; its least where they are too
// few. By all blocks of the cluster.
__device__ __forceinline__ Key search_row(const Row& row, const Range& range,
                                          const Truncation& threshold, const Weight& weight,
                                          Shared& shared) {
  if (threadIdx.x == 0) {
    shared.range = range;
    shared.wanted = 0;
  }
  __syncthreads();
#pragma unroll 1
  while (true) {
    look_at_row(row, threshold.is_by_mass, weight, shared);
    sync_cluster();
    const Found found = found_by_cluster(shared);
    const Mass wanted = shared.wanted ? shared.wanted : threshold.wanted(found.inside);
    const bool was_short = agreed(shared.range.is_short), is_listed = found.listed <= kList;
    sync_cluster();  // before a block continues whose memory others read
    if (threadIdx.x == 0) shared.wanted = wanted;
    if (agreed(was_short && is_listed)) {
      if (threadIdx.x == 0) shared.wanted = wanted - found.above;
      break;
    }
    if (agreed(wanted > found.above + found.inside)) return shared.range.low;
    if (agreed(was_short)) {  // more than estimated
      if (threadIdx.x == 0) shared.range.is_short = false;
      __syncthreads();
      continue;
    }
    add_bins(reinterpret_cast<int*>(shared.list), kRowBins);
    sync_cluster();
    if (agreed(rank_in_cluster() == 0)) {
      narrow(threshold.is_by_mass, found.above, wanted, weight, shared);
    }
    sync_cluster();
    if (threadIdx.x == 0) {
      const Zone& zone = in_block(&shared, 0)->zone;
      Key low = zone.low;
      // Of one value, indices below the row's length are all there is.
      if (low >> 32 == zone.high >> 32) {
        low = max(low, low >> 32 << 32 | ~static_cast<unsigned>(row.length - 1));
      }
      shared.range = {low, zone.high, zone.count <= kList};
    }
    __syncthreads();
  }
  gather(false, shared);
  if (agreed(rank_in_cluster() == 0)) {
    const Truncation here{threshold.is_by_mass, false, shared.wanted, 0, 0.0, 0};
    const Key least =
        search({shared, shared.count}, shared.range.low, shared.range.high, here, weight, shared);
    if (threadIdx.x == 0) shared.threshold = least;
  }
  sync_cluster();
  return in_block(&shared, 0)->threshold;
}
