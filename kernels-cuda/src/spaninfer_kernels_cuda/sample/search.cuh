// The search for a threshold among the keys of a list, by one block.

// The weight of a key: its probability relative to the largest one.
struct Weight {
  float largest, bits_per_x;

  // The weight in units of mass, of which `operator()` is the nearest number.
  __device__ __forceinline__ float units(float x) const {
    const float bits = fminf((x - largest) * bits_per_x, 0.0f);
    return bits < kReach * kBitsPerNat ? 0.0f : exp2_fast(bits) * kUnit;
  }
  __device__ __forceinline__ Mass operator()(float x) const { return __float2ull_rn(units(x)); }
  __device__ __forceinline__ Mass mass_of(Key key) const { return (*this)(value_of(key)); }
};

// The keys of the block's list.
struct List {
  const Shared& shared;
  int size;

  template <typename Visit>
  __device__ __forceinline__ void each(Visit visit) const {
#pragma unroll 1
    for (int i = threadIdx.x; i < size; i += kThreads) visit(shared.list[i]);
  }
};

// The exclusive sum over the threads before this one, and in `total` that over all.
template <typename Number>
__device__ __forceinline__ Number sum_before(Number own, Number (&of_warp)[kWarps], Number* total) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  Number sum = own;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const Number before = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarp - 1) of_warp[warp] = sum;
  __syncthreads();
  const Number part = lane < kWarps ? of_warp[lane] : 0;
  *total = warp_sum(part);
  const Number before = warp_sum(lane < warp ? part : Number(0));
  __syncthreads();
  return before + sum - own;
}

// The row of a cluster: its own where there are as many clusters as rows, else among the rows with
// work that of its number; -1 where there are fewer of them.
template <typename HasWork>
__device__ __forceinline__ int row_of_cluster(int rows, HasWork has_work, Shared& shared) {
  const int number = static_cast<int>(blockIdx.y);
  if (static_cast<int>(gridDim.y) == rows) return has_work(number) ? number : -1;
  if (threadIdx.x == 0) shared.bin = -1;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  int before = 0;  // rows with work
#pragma unroll 1
  for (int first = 0; first < rows; first += kThreads) {
    const int row = first + static_cast<int>(threadIdx.x);
    const bool takes_part = row < rows && has_work(row);
    const unsigned lanes = __ballot_sync(0xffffffffu, takes_part);
    if (lane == 0) shared.counts[warp] = __popc(lanes);
    __syncthreads();
    const int warps = min((rows - first + kWarp - 1) / kWarp, kWarps);  // that have rows
    int place = before + __popc(lanes & ((1u << lane) - 1));
#pragma unroll 1
    for (int other = 0; other < warps; ++other) {
      if (other < warp) place += shared.counts[other];
      before += shared.counts[other];
    }
    if (takes_part && place == number) shared.bin = row;
    __syncthreads();
  }
  return shared.bin;
}

// The keys that a threshold keeps: a number of them, a mass, or a share of their mass and of the
// mass below them. Up to `enough` keys are equally good where that saves a round.
struct Truncation {
  bool is_by_mass;
  bool has_more;  // keys below the candidates may be kept, too
  Mass fixed, enough;
  double share;  // 0: what is fixed
  Mass rest;

  __device__ __forceinline__ static Truncation to_number(int number, bool has_more,
                                                         int enough = 0) {
    return {false, has_more, static_cast<Mass>(number), static_cast<Mass>(enough), 0.0, 0};
  }
  __device__ __forceinline__ static Truncation to_share(double share, Mass rest) {
    return {true, rest > 0, 0, 0, share, rest};
  }
  __device__ __forceinline__ static Truncation to_mass(Mass mass) {
    return {true, false, mass, 0, 0.0, 0};
  }
  __device__ __forceinline__ Truncation after(Mass wanted, Mass above) const {
    return {is_by_mass, false, wanted - above, 0, 0.0, 0};
  }
  __device__ __forceinline__ Mass wanted(Mass total) const {
    if (share == 0.0) return fixed;
    const Mass wanted = static_cast<Mass>(ceil(share * static_cast<double>(total + rest)));
    return max(has_more ? wanted : min(wanted, total), Mass(1));
  }
};

// Bins of equal width from `low` to `high`, at most 2^bits.
struct Bins {
  Key low;
  int shift;

  __device__ __forceinline__ Bins(Key low, Key high, int bits)
      : low(low), shift(max(64 - bits - __clzll(static_cast<long long>(high - low)), 0)) {}
  __device__ __forceinline__ int of(Key key) const {
    return static_cast<int>((key - low) >> shift);
  }
  __device__ __forceinline__ Key first_of(int bin) const {
    return low + (static_cast<Key>(bin) << shift);
  }
  __device__ __forceinline__ Key last_of(int bin) const {
    const Key first = first_of(bin), last = first + ((1ull << shift) - 1);
    return last < first ? ~0ull : last;
  }
};

// The least key that the threshold keeps of those of the list in [low, high]; where they are too
// few, kAbsent if there are more, else `low`. By one block.
template <typename Masses>
__device__ __forceinline__ Key search(const List& list, Key low, Key high,
                                      const Truncation& threshold, const Masses& masses,
                                      Shared& shared) {
  Mass wanted = 0, larger = 0;
  while (true) {
    const Bins bins(low, high, kDigitBits);
    for_each(kBins, [&](int i) {
      shared.counts[i] = 0;
      shared.masses[i] = 0;
    });
    list.each([&](Key key) {
      if (key < low || key > high) return;
      // An atomic add whose result is unused is one operation for all lanes with the same bin.
      atomicAdd(&shared.counts[bins.of(key)], 1);
      if (threshold.is_by_mass) atomicAdd(&shared.masses[bins.of(key)], masses.mass_of(key));
    });
    __syncthreads();

    // A thread reads adjacent bins, the first thread the largest.
    constexpr int kOwn = of_thread(kBins);
    const int first = kBins - 1 - kOwn * static_cast<int>(threadIdx.x);
    Mass own = 0, measures[kOwn] = {}, total;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      if (first < b) break;
      measures[b] = threshold.is_by_mass ? shared.masses[first - b] : shared.counts[first - b];
      own += measures[b];
    }
    Mass before = larger + sum_before(own, shared.mass_of_warp, &total);
    if (wanted == 0) wanted = threshold.wanted(total);
    const bool is_beyond = wanted > larger + total;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      if (before < wanted && wanted <= before + measures[b]) {
        shared.bin = first - b;
        shared.larger = before;
        shared.reached = before + measures[b];
      }
      before += measures[b];
    }
    __syncthreads();
    if (agreed(is_beyond)) return threshold.has_more ? kAbsent : low;
    const int bin = shared.bin;
    larger = shared.larger;
    const bool is_found = shared.counts[bin] == 1 || bins.shift == 0 ||
                          shared.reached <= max(wanted, threshold.enough);
    low = bins.first_of(bin);
    high = min(high, bins.last_of(bin));
    __syncthreads();  // before it is overwritten
    if (agreed(is_found)) return low;
  }
}
