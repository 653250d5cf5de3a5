// The truncations of a request, one after another: top-k, top-p, min-p.

// The least key that min-p keeps.
__device__ __forceinline__ Key floor_of_min_p(const SamplingParams& params, float most) {
  if (params.min_p <= 0.0f) return kLeastFinite;
  const float least = most + params.temperature * logf(params.min_p);
  return max(static_cast<Key>(order_of(least)) << 32, kLeastFinite);
}

// The least key that all truncations of a row keep, among the keys from `least` on that `find`
// searches: all, or if there `is_more` below them, `rest` is the mass of those. kAbsent if the
// threshold is not among them.
template <typename Find>
__device__ __forceinline__ Key find_threshold(const SamplingParams& params, int length, Key least,
                                              float most, bool is_more, Mass rest, Find find) {
  const Key high = highest_of(most), floor = floor_of_min_p(params, most);
  Key low = least;
  bool is_settled = !is_more || floor >= least;  // without a search
#pragma unroll 1
  for (int by_mass = 0; by_mass < 2; ++by_mass) {
    if (agreed(by_mass ? params.top_p >= 1.0f : !params.truncates_to_k(length))) continue;
    low = find(low, high,
               by_mass ? Truncation::to_share(params.top_p, rest)
                       : Truncation::to_number(params.top_k, is_more));
    if (agreed(low == kAbsent)) return by_mass && floor >= least ? floor : kAbsent;
    is_settled = true;
    rest = 0;  // all that top-k kept is here
  }
  return is_settled ? max(low, floor) : kAbsent;
}

// Finds the zone of a threshold by mass that is not in the list; shared.zone.wanted is 0 if it is
// in it. By the first block.
//
// The mass above a bin is bounded from above the bin, up to the distance of the larger bins' edges,
// and from below it, since the total is known exactly, up to that of the smaller bins' edges: the
// nearer a share is to 1, the tighter.
__device__ __forceinline__ void find_zone(const List& list, int length, const Spread& spread,
                                          Key bound, float share, const Weight& weight,
                                          Shared& shared) {
  Mass own = 0, listed;
  list.each([&](Key key) { own += weight(value_of(key)); });
  sum_before(own, shared.mass_of_warp, &listed);
  const float scale = exp2f((spread.from - weight.largest) * weight.bits_per_x);
  const Mass rest = static_cast<Mass>(static_cast<double>(shared.rest) * scale);
  const Mass all = Truncation::to_share(share, rest).wanted(listed);
  if (threadIdx.x == 0) {
    shared.zone = {0, 0, 0, 0};
    shared.highest = -1;
    shared.lowest = kSpreadBins;
  }
  if (agreed(all <= listed)) return;
  __syncthreads();
  const double missing = ceil(static_cast<double>(all - listed) / scale);  // in units of the bound
  const Mass wanted = min(static_cast<Mass>(missing), shared.rest);

  const Weight below{spread.from, weight.bits_per_x};
  const int* bins = spread_bins(shared);
  constexpr int kOwn = of_thread(kSpreadBins);
  const int first = kOwn * static_cast<int>(threadIdx.x);
  int in_bin[kOwn];
#pragma unroll
  for (int b = 0; b < kOwn; ++b) in_bin[b] = first + b < kSpreadBins ? bins[first + b] : 0;
  const auto at_least = [&](int b) {
    const Mass mass = in_bin[b] * below(spread.below(first + b));
    return mass - (mass >> 20);  // 2^x is rounded
  };
  const auto at_most = [&](int b) {
    const Mass mass = in_bin[b] * below(spread.above(first + b));
    return mass + (mass >> 20) + in_bin[b];
  };
  Mass least = 0, most = 0, count = 0, all_least, all_most, all_count;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    least += at_least(b);
    most += at_most(b);
    count += in_bin[b];
  }
  least = sum_before(least, shared.mass_of_warp, &all_least);
  most = sum_before(most, shared.mass_of_warp, &all_most);
  sum_before(count, shared.mass_of_warp, &all_count);
  const Mass beyond = (length - list.size - all_count) * below(spread.above(kSpreadBins));
  // Bounds of the mass above an edge, from the least and the most that the bins above it weigh.
  const auto above_at_least = [&](Mass least, Mass most) {
    const Mass others = all_most - most + beyond;
    return max(least, shared.rest > others ? shared.rest - others : 0);
  };
  const auto above_at_most = [&](Mass least, Mass most) {
    return min(most, shared.rest - (all_least - least));
  };
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    const Mass before = above_at_least(least, most);
    least += at_least(b);
    most += at_most(b);
    if (in_bin[b] > 0 && before < wanted && wanted <= above_at_most(least, most)) {
      atomicMin(&shared.lowest, first + b);
      atomicMax(&shared.highest, first + b);
      atomicAdd(&shared.zone.count, in_bin[b]);
    }
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const bool is_further = above_at_least(all_least, all_most) < wanted;  // possibly below all bins
  const Key low = static_cast<Key>(order_of(spread.below(shared.highest))) << 32;
  const Key high = highest_of(spread.above(min(shared.lowest, kSpreadBins - 1)));
  shared.zone.low = is_further ? kLeastFinite : max(low, kLeastFinite);
  shared.zone.high = min(high, bound - 1);
  shared.zone.wanted = wanted + list.size * static_cast<Mass>(kUnit);
  if (is_further) shared.zone.count = kList + 1;
}

// Finds the threshold of a row if the first block's list holds it, and with it every candidate: all
// blocks then get it. Otherwise kAbsent, and the first block has its zone, if there is one.
__device__ __forceinline__ Key threshold_in_list(const Row& row, const SamplingParams& params,
                                                 float bits_per_x, Shared& shared) {
  const bool to_k = params.truncates_to_k(row.length), with_rest = !to_k && params.top_p < 1.0f;
  const int least = to_k ? least_for(params.top_k, row.length) : kLeastShare;
  const Key bound = sampled_bound(row, least, shared);
  const Spread spread(bound, with_rest ? params.top_p : 1.0f, least, bits_per_x);
  collect(row, bound, with_rest, bits_per_x, spread, kAbsent, shared);
  if (agreed(rank_in_cluster() == 0)) {
    const float most = value_of(static_cast<Key>(shared.most) << 32);
    // Without a finite maximum there is nothing to truncate, and the list of candidates is empty.
    const bool is_empty = shared.status != kSampled || most == -kInfinity;
    Key found = is_empty ? ~0ull : kAbsent;
    if (threadIdx.x == 0) {
      shared.zone.wanted = 0;
      shared.zone_from = spread.from;
    }
    if (agreed(!is_empty && shared.count <= kList)) {
      const Weight weight{most, bits_per_x};
      const List list{shared, shared.count};
      if (agreed(with_rest && floor_of_min_p(params, most) < bound)) {
        find_zone(list, row.length, spread, bound, params.top_p, weight, shared);
      }
      __syncthreads();
      if (agreed(shared.zone.wanted == 0)) {
        const Mass rest = rescaled(shared.rest, spread.from, most, bits_per_x);
        const auto find = [&](Key low, Key high, const Truncation& threshold) {
          return search(list, low, high, threshold, weight, shared);
        };
        found = find_threshold(params, row.length, bound, most, bound > kLeastFinite, rest, find);
      }
    }
    if (threadIdx.x == 0) shared.threshold = found;
  }
  sync_cluster();
  return in_block(&shared, 0)->threshold;
}

// Finds the threshold of a row that is not in the list. By all blocks, in the row itself.
__device__ __forceinline__ Key threshold_in_row(const Row& row, const SamplingParams& params,
                                                float bits_per_x, Shared& shared) {
  const Shared& first = *in_block(&shared, 0);
  const float most = value_of(static_cast<Key>(first.most) << 32);
  const Key low = static_cast<Key>(order_of(most + kReach * params.temperature)) << 32;
  const auto find = [&](Key low, Key high, const Truncation& threshold) {
    const Zone& zone = first.zone;
    const bool has_zone = agreed(zone.wanted > 0);
    const Range range =
        has_zone ? Range{zone.low, zone.high, zone.count <= kList} : Range{low, high, false};
    return search_row(row, range, has_zone ? Truncation::to_mass(zone.wanted) : threshold,
                      Weight{has_zone ? first.zone_from : most, bits_per_x}, shared);
  };
  return find_threshold(params, row.length, max(low, kLeastFinite), most, false, 0, find);
}

// The least key that may be the threshold, where the zone is so small that the token sampled will
// hardly be in it; else kAbsent.
__device__ __forceinline__ Key least_in_zone(const SamplingParams& params, const Shared& shared) {
  const Shared& first = *in_block(&shared, 0);
  if (agreed(first.zone.wanted == 0 || first.zone.count > kFewInZone)) return kAbsent;
  return max(first.zone.low, floor_of_min_p(params, value_of(static_cast<Key>(first.most) << 32)));
}

// True if the winner in the first block is above the zone, whichever of its keys is the threshold.
// By all blocks.
__device__ __forceinline__ bool is_above_zone(const Best& winner, const Row& row, Shared& shared) {
  const int id = min(winner.id, row.length - 1);
  const Key key = key_of(row.read(id), id);  // by all threads, for whom it is the same
  if (rank_in_cluster() == 0 && threadIdx.x == 0) {
    shared.threshold = key > shared.zone.high ? key : kAbsent;
  }
  sync_cluster();
  return agreed(in_block(&shared, 0)->threshold != kAbsent);
}
