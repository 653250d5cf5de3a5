// Log-probabilities of sampled tokens, and the top ones beside them.
//
// Each warp knows its largest element. The least of as many of a block's largest as are wanted is a
// bound that enough elements reach, hardly more of them, where a block has that many warps.

constexpr int kFewKept = 256;  // keys of which each is compared with each

// The largest element of the row, and a key that at least `wanted` of its finite elements reach, if
// it has as many. By all blocks, each of which finds them.
struct Bound {
  float most;
  Key key;
};
__device__ __forceinline__ Bound bound_of(const HeldRow& held, int wanted, Shared& shared) {
  float best = -kInfinity;
  int id = held.row.length;
  const int worst = held.load([&](float x, int at) {
    if (x > best) {
      best = x;
      id = at;
    }
  });
  const int lane = threadIdx.x % kWarp;
  Key own = key_of(best, id);
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    own = max(own, __shfl_xor_sync(0xffffffffu, own, step));
  }
  if (lane == 0) shared.mass_of_warp[threadIdx.x / kWarp] = own;
  if (threadIdx.x == 0) shared.threshold = kLeastFinite;  // where fewer warps have finite elements
  if (worst) atomicMax(&shared.status, worst);
  __syncthreads();
  if (agreed(threadIdx.x < kWarp)) {
    own = lane < kWarps ? shared.mass_of_warp[lane] : kAbsent;
    int ahead = 0;
#pragma unroll
    for (int other = 0; other < kWarps; ++other) {
      ahead += __shfl_sync(0xffffffffu, own, other) > own;
    }
    if (lane < kWarps && ahead == 0) shared.most = static_cast<unsigned>(own >> 32);
    if (lane < kWarps && ahead == wanted - 1) shared.threshold = max(own, kLeastFinite);
  }
  sync_cluster();
  const float most = value_of(static_cast<Key>(cluster_max(&shared.most)) << 32);
  if (wanted <= kWarps) return {most, cluster_max(&shared.threshold)};
  return {most, sampled_bound(held.row, least_for(wanted, held.row.length), shared)};
}

// Lists the keys that reach the bound; sums all masses, and counts the elements that are larger
// than `chosen`. Afterwards all blocks may look at those of each.
__device__ __forceinline__ void list_largest(const HeldRow& held, Key bound, const Weight& weight,
                                             Key chosen, Shared& shared) {
  const Floor floor(bound), mark(chosen);
  Mass mass = 0;
  int ahead = 0;
  if (threadIdx.x == 0) shared.count = shared.ahead = 0;
  __syncthreads();
  held.each([&](float x, int id, bool) {
    mass += weight(x);
    ahead += mark.admits(x, id + 1);
    if (!floor.admits(x, id)) return;
    const int slot = take(&shared.count);
    if (slot < kList) shared.list[slot] = key_of(x, id);
  });
  ahead = warp_sum(ahead);
  if (threadIdx.x % kWarp == 0) atomicAdd(&shared.ahead, ahead);
  mass = block_mass(mass, shared.mass_of_warp);
  if (threadIdx.x == 0) shared.inside = mass;
  sync_cluster();
}

// Writes the `count` largest of some keys in their order; if they are fewer, then padding.
template <typename Logprob>
__device__ __forceinline__ void write_top(const Key* keys, int size, int count, int* ids,
                                          float* logprobs, Logprob logprob_of) {
#pragma unroll 1
  for (int i = threadIdx.x; i < size; i += kThreads) {
    const Key own = keys[i];
    int place = 0;  // the number of larger ones
#pragma unroll 4
    for (int j = 0; j < size; ++j) place += keys[j] > own;
    if (place >= count) continue;
    ids[place] = id_of(own);
    logprobs[place] = logprob_of(value_of(own));
  }
  for (int i = size + threadIdx.x; i < count; i += kThreads) {
    ids[i] = -1;
    logprobs[i] = -kInfinity;
  }
}

// Moves the `wanted` largest keys of the list, which has more of them, to shared.masses.
__device__ __forceinline__ void keep_largest(const List& list, int wanted, Shared& shared) {
  const Key least =
      search(list, kLeastFinite, ~0ull, Truncation::to_number(wanted, false), Weight{}, shared);
  if (threadIdx.x == 0) shared.bin = 0;
  __syncthreads();
  list.each([&](Key key) {
    if (key >= least) shared.masses[take(&shared.bin)] = key;
  });
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_logprobs(float* chosen, int* ranks, int* top_ids, float* top, int top_stride,
                  const int* sampled, const int* status, const T* logits,
                  const SamplingParams* all_params, const int* slots, const int* positions,
                  const unsigned* allowed, const unsigned* changed, const float* processed,
                  int rows, int length, long long stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const auto is_reported = [&](int row) {
    return slots[row] >= 0 && all_params[slots[row]].logprobs >= 0;
  };
  const int number = row_of_cluster(rows, is_reported, shared);
  if (number < 0 || status[number] != kSampled) return;  // the whole cluster
  const int slot = slots[number];
  const SamplingParams params = all_params[slot];
  Row row = row_of(logits, number, length, stride, params, slot, positions[number], allowed,
                   changed, processed);
  if (!params.processed) row.allowed = row.changed = nullptr;
  HeldRow held(row, shared, HeldRow::share_of(length));
  const float temperature = params.processed && !params.is_greedy() ? params.temperature : 1.0f;
  if (threadIdx.x == 0) shared.status = kSampled;
  __syncthreads();

  const int count = min(min(params.logprobs, top_stride), length), wanted = max(count, 1);
  const int token = sampled[number];
  const float x = row.read(token);
  const Key own = x == x ? key_of(x, token) : 1;
  const Bound bound = bound_of(held, wanted, shared);
  const Weight weight{bound.most, kBitsPerNat / temperature};
  list_largest(held, bound.key, weight, own, shared);
  const int listed = cluster_sum(&shared.count);
  if (agreed(listed > kList || (listed < wanted && bound.key > kLeastFinite))) {
    sync_cluster();  // before a block counts again
    const Key least = search_row(row, {kLeastFinite, ~0ull, false},
                                 Truncation::to_number(wanted, false), Weight{}, shared);
    held.let_go();
    list_largest(held, least, weight, own, shared);
  }
  if (agreed(rank_in_cluster() != 0)) {
    sync_cluster();
    return;
  }
  int size = join_lists(shared);
  const int ahead = cluster_sum(&shared.ahead), worst = cluster_max(&shared.status);
  const double total = static_cast<double>(cluster_sum(&shared.inside));
  sync_cluster();
  const float log_sum = static_cast<float>(log(total / kUnit));
  const auto logprob_of = [&](float value) { return (value - bound.most) / temperature - log_sum; };
  if (threadIdx.x == 0) {
    chosen[number] = worst == kSampled ? logprob_of(x) : __int_as_float(0x7fffffff);
    ranks[number] = 1 + ahead;
  }
  const Key* kept = shared.list;
  if (agreed(size > kFewKept)) {
    keep_largest({shared, size}, wanted, shared);
    kept = shared.masses;
    size = wanted;
  }
  const size_t at = static_cast<size_t>(number) * top_stride;
  write_top(kept, size, count, top_ids + at, top + at, logprob_of);
}
