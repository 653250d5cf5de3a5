// Sampling: rows of logits to tokens, one cluster of blocks per row, for any mix of parameters.
//
//   sample_penalties   writes the logits that penalties, bias and bad words change into a workspace
//                      (penalties.cuh)
//   sample_typical     rows of the tokens that locally typical sampling keeps (typical.cuh)
//   sample_tokens      the token of each row: the argmax, or the winner of Gumbel-max sampling
//                      (gumbel_max.cuh) among the tokens that top-k, top-p and min-p keep
//   sample_logprobs    log-probability and rank of the token, and the top log-probabilities
//                      (logprobs.cuh)
//
// Every truncation keeps the keys (keys.cuh) from some threshold on, so all that it has to find is
// a key.
//
// A truncated row is read once in almost every case. From 4096 of its elements, a key is chosen as
// a bound that more than enough elements reach (top-k: k of them, with six standard deviations to
// spare; otherwise about 1 % of a vocabulary). Keys that reach it are collected in shared memory
// while the mass of the rest is summed; the thresholds are then searched in the list, and a token
// is sampled from what they keep. If the list ends before a threshold by mass, bins of the values
// below narrow it down to few keys, the zone: sampling from the row comes first then, and the
// threshold is searched only if a key of the zone wins. That search, and the one after an overflow
// of the list, is done by all blocks in the row itself, digit by digit, and followed by sampling
// once more. Counts are integers and so are masses, in units of 2^-40 of the largest probability:
// totals do not depend on their order, nor tokens on how a row is divided.
//
// Macros: T (element), THREADS, STAGES (0 before Ampere), SHARED_BYTES (dynamic, for Shared).
// Demands: length <= 2^23 (2^63 units of mass), rows contiguous.

// Lists the tokens from the threshold on that can win, each block those that it reads.
__device__ __forceinline__ void filter(const Row& row, Key threshold, const GumbelMax& gumbel,
                                       Shared& shared) {
  const Floor floor(threshold);
  gumbel.warm_up(row, floor, shared);
  bool is_too_much = true;
#pragma unroll 1
  while (agreed(is_too_much)) {  // rising scores: all seem to win, until the best is known
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    const int worst =
        row.each([&](const Neighbours& here) { gumbel.filter(here, floor, shared); }, shared);
    if (worst) atomicMax(&shared.status, worst);
    __syncthreads();
    is_too_much = shared.count > kList;
    __syncthreads();
  }
}

// The threshold of min-p alone, which needs no list: it follows from the argmax.
__device__ __forceinline__ Key threshold_of_min_p(const Row& row, const SamplingParams& params,
                                                  Shared& shared) {
  const Best top = argmax(row, shared);  // in the first block
  if (threadIdx.x == 0) shared.threshold = floor_of_min_p(params, static_cast<float>(top.score));
  sync_cluster();
  return in_block(&shared, 0)->threshold;
}

// The winner from the threshold on, in the first block: of its list, or else of the row.
__device__ __forceinline__ Best best_from(const Row& row, Key threshold, bool is_listed,
                                          const SamplingParams& params, int position,
                                          Shared& shared) {
  const GumbelMax gumbel(params, position);
  if (agreed(!is_listed)) filter(row, threshold, gumbel, shared);
  const int size = !is_listed || rank_in_cluster() == 0 ? min(shared.count, kList) : 0;
  Best best = {-static_cast<double>(kInfinity), row.length};
  List{shared, size}.each([&](Key key) {
    if (key >= threshold) gumbel.enter(key, best);
  });
  return best_of_cluster(best, shared);
}

// The token sampled from a row, in the first block.
//
// Of a threshold in a small zone the key need not be known: sampling starts at the least that it
// may be, and only if a token of the zone wins, the threshold is searched and sampling repeated.
__device__ __forceinline__ Best winner(const Row& row, const SamplingParams& params, int position,
                                       Shared& shared) {
  const bool is_listable = params.truncates_to_k(row.length) || params.top_p < 1.0f;
  const float bits_per_x = kBitsPerNat / params.temperature;
  Key threshold = kLeastFinite;
  if (agreed(is_listable)) threshold = threshold_in_list(row, params, bits_per_x, shared);
  if (agreed(!is_listable && params.min_p > 0.0f))
    threshold = threshold_of_min_p(row, params, shared);
  const bool is_listed = agreed(is_listable && threshold != kAbsent);
  int attempt = is_listable && !is_listed ? 0 : 2;  // 2: the threshold is known
  bool is_over;
  Best best;
#pragma unroll 1
  do {
    if (agreed(attempt == 0)) threshold = least_in_zone(params, shared);
    if (agreed(attempt < 2 && threshold == kAbsent)) {
      threshold = threshold_in_row(row, params, kBitsPerNat / params.temperature, shared);
      attempt = 2;
    }
    best = best_from(row, threshold, is_listed, params, position, shared);
    is_over = agreed(attempt == 2) || is_above_zone(best, row, shared);
    attempt = 1;
    threshold = kAbsent;
  } while (agreed(!is_over));
  return best;
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_tokens(int* out, int* status, int* tokens, const T* logits,
                SamplingParams* all_params, int* slots, int* positions,
                const unsigned* allowed, const unsigned char* kept, const unsigned* changed,
                const float* processed, int is_given,
                const int* given_positions, const long long* seeds, long long seed,
                const float* temperatures, float temperature, const int* top_ks, int top_k,
                const float* top_ps, float top_p, const float* min_ps, float min_p, int length,
                long long stride, int token_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  if (is_given && threadIdx.x == 0) {
    const int number = static_cast<int>(blockIdx.y);
    const GivenParams given{seeds,  seed,  temperatures, temperature, top_ks,
                            top_k, top_ps, top_p,        min_ps,      min_p};
    given.write(&all_params[number], number, allowed != nullptr);
    slots[number] = number;
    positions[number] = given_positions ? given_positions[number] : number;
  }
  if (is_given) __syncthreads();  // every block of the cluster writes, and reads its own
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;  // the whole cluster
  const SamplingParams& params = all_params[slot];  // read where it is needed: registers are scarce
  const int position = positions[blockIdx.y];
  Row row = row_of(logits, blockIdx.y, length, stride, params, slot, position, allowed, changed,
                   processed);
  if (kept && params.is_typical()) {
    const void* row_kept = kept + blockIdx.y * kept_row_bytes(length);
    if (row.is_processed()) {
      row.allowed = static_cast<const unsigned*>(row_kept);
    } else {
      row.raw = static_cast<const T*>(row_kept);
    }
  }
  if (threadIdx.x == 0) shared.status = kSampled;
  __syncthreads();

  const Best best =
      agreed(params.is_greedy()) ? argmax(row, shared) : winner(row, params, position, shared);
  if (rank_in_cluster() == 0 && threadIdx.x == 0) {
    int worst = shared.status;
#pragma unroll 1
    for (int rank = 1; rank < blocks_of_cluster(); ++rank) {
      worst = max(worst, in_block(&shared, rank)->status);
    }
    if (worst == kSampled && best.id >= length) worst = kAllMasked;
    const int token = worst == kSampled ? best.id : 0;
    out[blockIdx.y] = token;
    if (status) status[blockIdx.y] = worst;
    if (tokens) tokens[static_cast<size_t>(slot) * token_stride + position] = token;
  }
  sync_cluster();
}
