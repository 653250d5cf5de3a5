// Locally typical sampling (Meister et al. 2022): the tokens of a row that it keeps, as a mask.
//
// A token's surprise is -log p, its deviation the distance of that from the expected surprise, the
// entropy. With d = (largest logit - logit) / temperature, the deviation is |d - E[d]|. Kept are
// the tokens of the least deviations that together have the mass typical_p, of equal ones smaller
// ids first, among those that top-k keeps. Keys are therefore those of negative deviations.
//
// Masses of keys are counted in bins, in units of which all keys of the range have 2^30; those are
// rounded up, so that a mass is known up to the number of keys. The bins that may contain the
// threshold are the next range, until the list can hold its keys.

// The keys of a row by deviation, and their masses.
struct Deviations {
  const Row& row;
  Floor floor;  // of the candidates
  Weight weight;
  float inverse, expected;  // of the temperature; d

  __device__ __forceinline__ float distance(float x) const {
    return (weight.largest - x) * inverse;
  }
  __device__ __forceinline__ Key operator()(float x, int id) const {
    return floor.admits(x, id) ? key_of(-fabsf(distance(x) - expected), id) : kAbsent;
  }
  __device__ __forceinline__ Mass mass_of(Key key) const { return weight(row.read(id_of(key))); }
};

// The mass of the candidates, and their mass times d, over all blocks. kReach bounds d, so the sums
// of 2^23 products fit into 64 bits.
__device__ __forceinline__ Found measure_row(const Deviations& keys, Shared& shared) {
  Mass mass = 0, moment = 0;
  if (threadIdx.x == 0) shared.above = shared.inside = 0;
  __syncthreads();
  const auto visit = [&](const Neighbours& here) {
#pragma unroll 1
    for (int v = 0; v < kVector; ++v) {
      const float x = here.at(v);
      if (!keys.floor.admits(x, here.first + v)) continue;
      const Mass own = keys.weight(x);
      mass += own;
      moment += __float2ull_rn(__ull2float_rn(own) * keys.distance(x));
    }
  };
  keys.row.each(visit, shared);
  mass = warp_sum(mass);
  moment = warp_sum(moment);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&shared.inside, mass);
    atomicAdd(&shared.above, moment);
  }
  sync_cluster();
  const Found found = found_by_cluster(shared);
  sync_cluster();  // before a block continues whose memory others read
  return found;
}

// Lists the keys of the range, or sums their masses in bins, in units of 2^shift.
__device__ __forceinline__ void look_at_deviations(const Deviations& keys, int shift,
                                                   Shared& shared) {
  const Range range = shared.range;
  const Bins bins(range.low, range.high, kRowDigitBits);
  unsigned* sums = reinterpret_cast<unsigned*>(shared.list);
  Mass own_above = 0, own_inside = 0;
  int own_count = 0;
  if (threadIdx.x == 0) {
    shared.count = 0;
    shared.above = shared.inside = 0;
    shared.highest = -1;
    shared.lowest = kRowBins;
  }
  for_each(range.is_short ? 0 : kRowBins, [&](int i) { sums[i] = 0; });
  const auto visit = [&](const Neighbours& here) {
#pragma unroll 1
    for (int v = 0; v < kVector; ++v) {
      const float x = here.at(v);
      const Key key = keys(x, here.first + v);
      if (key == kAbsent || key < range.low) continue;
      const Mass mass = keys.weight(x);
      if (key > range.high) {
        own_above += mass;
        continue;
      }
      own_inside += mass;
      if (!range.is_short) {
        ++own_count;
        atomicAdd(&sums[bins.of(key)], static_cast<unsigned>(mass >> shift) + 1);
        continue;
      }
      const int slot = take(&shared.count);
      if (slot < kList) shared.list[slot] = key;
    }
  };
  keys.row.each(visit, shared);
  own_above = warp_sum(own_above);
  own_inside = warp_sum(own_inside);
  own_count = warp_sum(own_count);
  if (threadIdx.x % kWarp == 0) {
    atomicAdd(&shared.above, own_above);
    atomicAdd(&shared.inside, own_inside);
    atomicAdd(&shared.count, own_count);
  }
}

// Makes the bins that may contain the threshold the range: `wanted` is the mass of the range's keys
// that are kept. By the first block, of the sums of all.
__device__ __forceinline__ void narrow_deviations(Mass wanted, int num_keys, int shift,
                                                  Shared& shared) {
  const Key high = shared.range.high;
  const Bins bins(shared.range.low, high, kRowDigitBits);
  const unsigned* sums = reinterpret_cast<const unsigned*>(shared.list);
  constexpr int kOwn = of_thread(kRowBins);
  const int first = kRowBins - 1 - kOwn * static_cast<int>(threadIdx.x);
  Mass own = 0, total;
#pragma unroll
  for (int b = 0; b < kOwn; ++b) own += first < b ? 0 : sums[first - b];
  Mass before = sum_before(own, shared.mass_of_warp, &total);
#pragma unroll
  for (int b = 0; b < kOwn; ++b) {
    if (first < b) break;
    const Mass here = sums[first - b], after = before + here;
    const Mass least = before > num_keys ? before - num_keys : 0;
    if (here > 0 && least << shift < wanted && wanted <= after << shift) {
      atomicMax(&shared.highest, first - b);
      atomicMin(&shared.lowest, first - b);
    }
    before = after;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.zone.low = bins.first_of(shared.lowest);
    shared.zone.high = min(high, bins.last_of(shared.highest));
  }
}

// The least key of those that have the mass `wanted`, of keys with the mass `total`.
__device__ __forceinline__ Key least_typical(const Deviations& keys, Mass wanted, Mass total,
                                             Shared& shared) {
  int shift = 0;
  if (threadIdx.x == 0) {
    shared.range = {kLeastFinite, highest_of(0.0f), false};
    shared.wanted = total;  // of the range's keys
  }
  __syncthreads();
#pragma unroll 1
  while (true) {
    const bool is_short = agreed(shared.range.is_short);
    shift = max(34 - __clzll(static_cast<long long>(shared.wanted)), 0);
    look_at_deviations(keys, shift, shared);
    sync_cluster();
    const Found found = found_by_cluster(shared);
    sync_cluster();
    if (agreed(is_short && found.listed <= kList)) {
      if (threadIdx.x == 0) shared.wanted = wanted - found.above;
      break;
    }
    if (threadIdx.x == 0) {
      shared.wanted = found.inside;
      shared.range.is_short = false;
    }
    __syncthreads();
    if (agreed(is_short)) continue;
    add_bins(reinterpret_cast<int*>(shared.list), kRowBins);
    sync_cluster();
    if (agreed(rank_in_cluster() == 0)) {
      narrow_deviations(wanted - found.above, found.listed, shift, shared);
    }
    sync_cluster();
    if (threadIdx.x == 0) {
      const Zone& zone = in_block(&shared, 0)->zone;
      shared.range = {zone.low, zone.high, true};
    }
    __syncthreads();
  }
  gather(false, shared);
  if (agreed(rank_in_cluster() == 0)) {
    const Key least = search({shared, shared.count}, shared.range.low, shared.range.high,
                             Truncation::to_mass(shared.wanted), keys, shared);
    if (threadIdx.x == 0) shared.threshold = least;
  }
  sync_cluster();
  return in_block(&shared, 0)->threshold;
}

// Writes a bit per token of the row that is kept, each block its words.
template <typename Keeps>
__device__ __forceinline__ void write_mask(unsigned* kept, int length, Keeps keeps) {
  const int words = (length + 31) / 32, step = blocks_of_cluster() * kThreads;
#pragma unroll 1
  for (int word = rank_in_cluster() * kThreads + threadIdx.x; word < words; word += step) {
    unsigned bits = 0;
#pragma unroll 4
    for (int bit = 0; bit < 32; ++bit) {
      const int id = 32 * word + bit;
      if (id < length && keeps(id)) bits |= 1u << bit;
    }
    kept[word] = bits;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_typical(unsigned* kept, const T* logits, const SamplingParams* all_params,
                   const int* slots, const int* positions, const unsigned* allowed,
                   const unsigned* changed, const float* processed, int length, long long stride,
                   int token_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;  // the whole cluster
  const SamplingParams& params = all_params[slot];
  if (!params.is_typical()) return;
  const Row row = row_of(logits, length, stride, params, slot, positions[blockIdx.y], allowed,
                         changed, processed);
  kept += blockIdx.y * static_cast<size_t>((length + 31) / 32);
  if (threadIdx.x == 0) shared.status = kSampled;
  __syncthreads();

  const Best top = argmax(row, shared);  // in the first block
  if (threadIdx.x == 0) shared.threshold = key_of(static_cast<float>(top.score), 0);
  sync_cluster();
  const float largest = value_of(in_block(&shared, 0)->threshold);
  sync_cluster();
  if (agreed(!(fabsf(largest) < kInfinity))) {  // sample_tokens says what is wrong
    write_mask(kept, length, [&](int id) { return row.read(id) > -kInfinity; });
    return;
  }
  Key least = static_cast<Key>(order_of(largest + kReach * params.temperature)) << 32;
  if (agreed(params.truncates_to_k(length))) {
    least = max(least, search_row(row, {kLeastFinite, highest_of(largest), false},
                                  Truncation::to_number(params.top_k, false), Weight{}, shared));
    sync_cluster();
  }
  const float bits_per_x = kBitsPerNat / params.temperature;
  Deviations keys{row, Floor(max(least, kLeastFinite)), Weight{largest, bits_per_x},
                  1.0f / params.temperature, 0.0f};
  const Found found = measure_row(keys, shared);
  keys.expected =
      static_cast<float>(static_cast<double>(found.above) / static_cast<double>(found.inside));
  const double share = params.typical_p;
  const Mass wanted = static_cast<Mass>(ceil(share * static_cast<double>(found.inside)));
  const Key threshold =
      least_typical(keys, min(max(wanted, Mass(1)), found.inside), found.inside, shared);
  write_mask(kept, length, [&](int id) { return keys(row.read(id), id) >= threshold; });
  sync_cluster();
}
