// One pass over a row: keys that reach a bound are listed, the mass of the rest is summed.

// A key that about `least` of kSamples elements reach. Every block finds it independently.
__device__ __forceinline__ Key sampled_bound(const Row& row, int least, Shared& shared) {
  const float stretch = static_cast<float>(row.length) / kSamples;
  const int size = min(row.length, kSamples);
  constexpr int kOwn = of_thread(kSamples);
  const auto id_of_sample = [&](int i) {
    return min(stretch > 1.0f ? static_cast<int>(i * stretch) : i, row.length - 1);
  };
  float x[kOwn];
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    x[j] = to_float(row.raw[id_of_sample(j * kThreads + threadIdx.x)]);
  }
  row.prefetch();  // after the sample's loads are issued: before, it takes twice as long
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int i = j * kThreads + threadIdx.x, id = id_of_sample(i);
    if (row.is_processed()) x[j] = row.read(id);
    if (i < kSamples) shared.list[i] = x[j] == x[j] ? key_of(x[j], id) : kAbsent;
  }
  __syncthreads();
  const Truncation threshold = Truncation::to_number(least, false, least + least / 4);
  return max(search({shared, size}, 1, ~0ull, threshold, Weight{}, shared), kLeastFinite);
}

// The number of sampled elements that must reach a bound so that k elements of the row do.
__device__ __forceinline__ int least_for(int k, int length) {
  const float expected = static_cast<float>(k) * kSamples / length;
  return static_cast<int>(expected + 6.0f * sqrtf(expected) + 8.0f);
}

// Values below a bound in bins of equal width, the first one next to the bound. Values below the
// last one usually weigh too little for a threshold to lie there.
struct Spread {
  float from, per_x;
  int size;  // 0: nothing is counted

  // Where `share` of the mass is to be kept and `least` of kSamples elements reach the bound: were
  // all elements as likely as the last bin's, they would have at most the mass to be truncated,
  // even if only half as many reach the bound as the sample says.
  __device__ __forceinline__ Spread(Key bound, float share, int least, float bits_per_x)
      : from(Floor(bound).value), per_x(0.0f), size(0) {
    if (share >= 1.0f) return;
    size = kSpreadBins;
    per_x = kSpreadBins * bits_per_x / log2f(2.0f * kSamples / (least * (1.0f - share)));
  }
  __device__ __forceinline__ bool counts() const { return size > 0; }
  __device__ __forceinline__ int of(float x) const {
    return static_cast<int>((from - x) * per_x);  // at most INT_MAX, whatever x
  }
  // Values that enclose a bin, however its number was rounded.
  __device__ __forceinline__ float above(int bin) const {
    return from - (bin - 0.01f) / per_x + slack();
  }
  __device__ __forceinline__ float below(int bin) const {
    return from - (bin + 1.01f) / per_x - slack();
  }

 private:
  __device__ __forceinline__ float slack() const { return fabsf(from) * 0x1p-22f; }
};

// Adds the bins of all blocks into the first block's; needs cluster barriers before and after.
__device__ __forceinline__ void add_bins(int* bins, int count) {
  const int blocks = blocks_of_cluster();
#pragma unroll 1
  for (int i = rank_in_cluster() * kThreads + threadIdx.x; i < count; i += blocks * kThreads) {
    int sum = 0;
#pragma unroll 1
    for (int first = 0; first < blocks; first += kMostBlocks) {  // of sample_typical up to twice
#pragma unroll
      for (int rank = first; rank < first + kMostBlocks; ++rank) {
        sum += rank < blocks ? in_block(bins, rank)[i] : 0;
      }
    }
    in_block(bins, 0)[i] = sum;
  }
}

__device__ __forceinline__ int* spread_bins(Shared& shared) {
  return reinterpret_cast<int*>(shared.masses);
}

// Gathers the lists and totals of all blocks in the first one, and the bins of the spread.
__device__ __forceinline__ void gather(bool with_spread, Shared& shared) {
  sync_cluster();
  if (with_spread) add_bins(spread_bins(shared), kSpreadBins);
  if (rank_in_cluster() != 0) {
    Shared& all = *in_block(&shared, 0);
    if (threadIdx.x == 0) {
      shared.bin = atomicAdd(&all.count, shared.count);
      atomicAdd(&all.rest, shared.rest);
      atomicAdd(&all.ahead, shared.ahead);
      atomicMax(&all.most, shared.most);
      atomicMax(&all.status, shared.status);
    }
    __syncthreads();
    const int own = min(shared.count, kList), base = shared.bin;
#pragma unroll 1
    for (int i = threadIdx.x; i < own; i += kThreads) {
      if (base + i < kList) all.list[base + i] = shared.list[i];
    }
  }
  sync_cluster();
}

// Collects the keys of the row that reach the bound in the first block's list, and finds the
// largest value; sums the mass of the others if `with_rest`, counts them in the bins of the spread,
// and counts the elements that are larger than `chosen`. Afterwards all blocks see the first one's.
__device__ __forceinline__ void collect(const Row& row, Key bound, bool with_rest, float bits_per_x,
                                        const Spread& spread, Key chosen, Shared& shared) {
  const Floor floor(bound), mark(chosen);
  const Weight weight{floor.value, bits_per_x};
  Mass rest = 0;
  int ahead = 0;
  float most = -kInfinity;
  if (threadIdx.x == 0) {
    shared.count = 0;
    shared.rest = 0;
    shared.ahead = 0;
    shared.most = 0;
  }
  int* bins = spread_bins(shared);
  for_each(spread.counts() ? kSpreadBins : 0, [&](int i) { bins[i] = 0; });
  const auto visit = [&](const Neighbours& here) {
    unsigned hits = 0;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      most = fmaxf(most, here.x[v]);
      if (floor.admits(here.x[v], here.first + v)) hits |= 1u << v;
    }
    if (with_rest) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        if (hits >> v & 1) continue;
        rest += weight(here.x[v]);
        // An atomic add whose result is unused is one operation for all lanes with the same bin.
        const int bin = spread.of(here.x[v]);
        if (bin < spread.size) atomicAdd(&bins[bin], 1);
      }
    }
    if (chosen != kAbsent) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) ahead += mark.admits(here.x[v], here.first + v + 1);
    }
    while (hits != 0) {
      const int v = __ffs(hits) - 1;
      hits &= hits - 1;
      const int slot = take(&shared.count);
      if (slot < kList) shared.list[slot] = key_of(here.at(v), here.first + v);
    }
  };
  const int worst = row.each(visit, shared);
  rest = warp_sum(rest);
  ahead = warp_sum(ahead);
  most = lanes_max<kWarp>(most);
  if (threadIdx.x % kWarp == 0) {
    atomicMax(&shared.most, order_of(most));
    atomicAdd(&shared.rest, rest);
    atomicAdd(&shared.ahead, ahead);
  }
  if (worst) atomicMax(&shared.status, worst);
  gather(spread.counts(), shared);
}

__device__ __forceinline__ Mass rescaled(Mass rest, float from, float to, float bits_per_x) {
  return static_cast<Mass>(static_cast<double>(rest) * exp2f((from - to) * bits_per_x));
}
