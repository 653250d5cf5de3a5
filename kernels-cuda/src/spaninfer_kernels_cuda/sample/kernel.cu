// From rows of logits to tokens: one cluster of blocks per row, whatever the row asks for.
//
//   sample_penalties   writes beside the logits what penalties, bias and bans make of single ones
//                   (penalties.cuh)
//   sample_tokens     the token of each row: the largest, or the winner of the Gumbel-max draw
//                   (Gumbel-max) among what top-k, top-p and min-p leave
//   sample_logprobs   log-probability and rank of the token, and the most likely tokens beside it
//                   (logprobs.cuh)
//
// Every threshold keeps the keys (keys.cuh) from some bound on, so all that a threshold has to find
// is a key.
//
// A row that is truncated is read once in almost every case. Of 4096 of its elements, one key is
// chosen that more than enough elements will reach (top-k: k of them, six standard deviations away;
// else about 1% of a vocabulary). What reaches it is collected in shared memory while the mass of
// all the rest is summed; the truncations are then searched in the list, and the draw is among its
// rest. If the list ends before a truncation by mass, bins beside it leave few keys for the
// threshold: the draw through the row comes first then, and the threshold is searched only if one
// of those keys wins. That, and what is left where the list overflows, all blocks do in the row
// itself, digit by digit, and draw from it once more. Counts are integers and so are masses, in
// units of 2^-40 of the most likely one: sums do not depend on their order, nor tokens on how a row is
// divided.
//
// Macros: T (element), THREADS, STAGES (0 before Ampere), SHARED_BYTES (dynamic, for Shared).
// Demands: length <= 2^23 (2^63 units of mass), rows contiguous.

// The most likely one token of the row, its value as the score.
__device__ __forceinline__ Best argmax(const Row& row, Shared& shared) {
  float best = -kInfinity;
  int id = row.length;
  const auto visit = [&](const Neighbours& here) {
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (here.x[v] > best) {
        best = here.x[v];
        id = here.first + v;
      }
    }
  };
  const int worst = row.each(visit, shared);
  if (worst) atomicMax(&shared.status, worst);
  return best_of_cluster({best, id}, shared);
}

// Lists what can be sampled, from the threshold on. Each block for what it reads.
__device__ __forceinline__ void filter(const Row& row, Key threshold, const GumbelMax& gumbel,
                                       Shared& shared) {
  const Floor floor(threshold);
  gumbel.warm_up(row, floor, shared);
  bool is_too_much = true;
#pragma unroll 1
  while (agreed(is_too_much)) {  // where scores rise steadily, all seem to win; then the best is known
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

// The threshold of min-p alone, which takes no list: the most likely token says it.
__device__ __forceinline__ Key threshold_of_min_p(const Row& row, const SamplingParams& params,
                                                  Shared& shared) {
  const Best top = argmax(row, shared);  // in the first block
  if (threadIdx.x == 0) shared.threshold = floor_of_min_p(params, static_cast<float>(top.score));
  sync_cluster();
  return in_block(&shared, 0)->threshold;
}

// The best of the draw from the threshold on, in the first block: of its list, or else of the row.
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

// The token sampled of a row, in the first block.
//
// Of a threshold in a small zone the key need not be known: the draw is made from the least that it
// may be, and only if a token of the zone wins, the threshold is searched and the draw made again.
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
                const SamplingParams* all_params, const int* slots, const int* positions,
                const unsigned* allowed, const unsigned* changed, const float* processed, int length,
                long long stride, int token_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;  // the whole cluster
  const SamplingParams& params = all_params[slot];  // read where it is needed: registers are scarce
  const int position = positions[blockIdx.y];
  const Row row = row_of(logits, length, stride, params, slot, position, allowed, changed, processed);
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
    status[blockIdx.y] = worst;
    if (tokens) tokens[static_cast<size_t>(slot) * token_stride + position] = token;
  }
  sync_cluster();
}
