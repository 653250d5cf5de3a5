// Log-probabilities of sampled tokens, and the top ones beside them.

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_logprobs(float* chosen, int* ranks, int* top_ids, float* top, int top_stride,
                  const int* sampled, const int* status, const T* logits,
                  const SamplingParams* all_params, const int* slots, const int* positions,
                  const unsigned* allowed, const unsigned* changed, const float* processed,
                  int length, long long stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;
  const SamplingParams params = all_params[slot];
  if (params.logprobs < 0 || status[blockIdx.y] != kSampled) return;
  Row row = row_of(logits, length, stride, params, slot, positions[blockIdx.y], allowed, changed,
                   processed);
  if (!params.processed) row.allowed = row.changed = nullptr;
  const float temperature = params.processed && !params.is_greedy() ? params.temperature : 1.0f;
  const float bits_per_x = kBitsPerNat / temperature;
  if (threadIdx.x == 0) shared.status = kSampled;
  __syncthreads();

  const int count = min(min(params.logprobs, top_stride), length), wanted = max(count, 1);
  const int token = sampled[blockIdx.y];
  const float x = row.read(token);
  const Key own = x == x ? key_of(x, token) : 1;
  const Key highest = ~0ull;
  Key bound = sampled_bound(row, least_for(wanted, length), shared);
  const Shared& first = *in_block(&shared, 0);
#pragma unroll 1
  while (true) {
    collect(row, bound, true, bits_per_x, Spread(bound, 1.0f, 1, bits_per_x), own, shared);
    const bool is_enough = first.count >= wanted || bound == kLeastFinite;
    if (is_enough && first.count <= kList) break;
    sync_cluster();  // before a block counts again
    bound = search_row(row, {kLeastFinite, highest, false}, Truncation::to_number(wanted, false),
                       Weight{}, shared);
  }
  if (rank_in_cluster() == 0) {
    const List list{shared, shared.count};
    const float most = value_of(static_cast<Key>(shared.most) << 32);
    const Weight weight{most, bits_per_x};
    Mass mass = 0, total;
    list.each([&](Key key) { mass += weight(value_of(key)); });
    sum_before(mass, shared.mass_of_warp, &total);
    total += rescaled(shared.rest, Floor(bound).value, most, bits_per_x);
    const float log_sum = static_cast<float>(log(static_cast<double>(total) / kUnit));
    const auto logprob_of = [&](float value) { return (value - most) / temperature - log_sum; };
    if (threadIdx.x == 0) {
      chosen[blockIdx.y] = shared.status == kSampled ? logprob_of(x) : __int_as_float(0x7fffffff);
      ranks[blockIdx.y] = 1 + shared.ahead;
    }
    // The rank of each of the few requested keys is the number of larger ones.
    const Key least =
        search(list, bound, highest, Truncation::to_number(wanted, false), weight, shared);
    Key* kept = shared.masses;
    if (threadIdx.x == 0) shared.bin = 0;
    __syncthreads();
    list.each([&](Key key) {
      if (key >= least) kept[take(&shared.bin)] = key;
    });
    __syncthreads();
    top_ids += static_cast<size_t>(blockIdx.y) * top_stride;
    top += static_cast<size_t>(blockIdx.y) * top_stride;
    for (int i = threadIdx.x; i < count; i += kThreads) {
      int place = i;  // if fewer are finite, the rest is padding
      if (i < shared.bin) {
        place = 0;
#pragma unroll 1
        for (int j = 0; j < shared.bin; ++j) place += kept[j] > kept[i];
      }
      top_ids[place] = i < shared.bin ? id_of(kept[i]) : -1;
      top[place] = i < shared.bin ? logprob_of(value_of(kept[i])) : -kInfinity;
    }
  }
  sync_cluster();
}
