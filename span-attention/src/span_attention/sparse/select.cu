// The positions of the k largest of each row's scores, in ascending order; of equal scores the
// lower position, NaN as minus infinity. A row that has no more than k selects all; -1 follows.
//
// A cluster of thread blocks has a row, each an equal piece of it, which it reads once and holds as
// keys of 32 bits as far as they fit. A radix select of 11, 11 and 10 bits finds the k-th key; then
// each warp knows how many of a piece before its own are selected, and writes its own behind them.
// Few bins of a digit are not empty, so that each block adds its own to the sums of all others.
//
// Macros: none. Demands: k <= the length of a row that does not select all.

constexpr int kThreads = 1024, kWarps = kThreads / kWarp, kBins = 2048, kPasses = 3;

// How many keys are above the k-th, and how many equal it.
struct Count {
  int above, equal;
};

struct Shared {
  int bins[kBins];           // of the block's own piece
  int sums[kPasses][kBins];  // of the row
  int of_warp[kWarps];
  Count counts[kWarps];  // of each warp
  Count count;           // of the block
  int bin, above;
};
static_assert(sizeof(Shared) == 33168, "SELECT_BYTES of sparse/tuning.py");

// A number that is in the order of scores.
__device__ __forceinline__ unsigned key_of(float score) {
  if (!(score == score)) score = __int_as_float(0xff800000);
  const unsigned bits = score == 0.0f ? 0u : __float_as_uint(score);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// A thread block's piece of a row.
struct Piece {
  const float* scores;  // of its first position
  int first, size;
  unsigned* held;
  int num_held;

  __device__ __forceinline__ unsigned key(int i) const {
    return i < num_held ? held[i] : key_of(__ldcg(scores + i));
  }
};

// Adds the block's bins, which are empty then, to those of the row in all blocks. Behind it comes
// a barrier of the cluster.
__device__ __forceinline__ void share_bins(Shared& shared, int pass) {
  const int blocks = blocks_of_cluster(), rank = rank_in_cluster();
  __syncthreads();
  for (int bin = threadIdx.x; bin < kBins; bin += kThreads) {
    const int own = shared.bins[bin];
    if (own == 0) continue;
    shared.bins[bin] = 0;
    for (int n = 0; n < blocks; ++n) {
      atomicAdd(in_block(&shared.sums[pass][bin], (rank + n) % blocks), own);
    }
  }
}

// Finds the bin of the `wanted`-th key of the row, largest first: shared.bin, and how many keys are
// in larger ones. A thread has two bins.
__device__ __forceinline__ void find_bin(int pass, int wanted, Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int lower = kBins - 2 - 2 * static_cast<int>(threadIdx.x);
  const int2 own = *reinterpret_cast<const int2*>(&shared.sums[pass][lower]);
  int sum = own.x + own.y;
#pragma unroll
  for (int step = 1; step < kWarp; step *= 2) {
    const int before = __shfl_up_sync(0xffffffffu, sum, step);
    if (lane >= step) sum += before;
  }
  if (lane == kWarp - 1) shared.of_warp[warp] = sum;
  __syncthreads();
  int above = sum - own.x - own.y + warp_sum(lane < warp ? shared.of_warp[lane] : 0);
  if (above < wanted && wanted <= above + own.y) shared.bin = lower + 1, shared.above = above;
  above += own.y;
  if (above < wanted && wanted <= above + own.x) shared.bin = lower, shared.above = above;
  __syncthreads();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sparse_select(int* selected, const float* scores, long long stride, const int* lengths, int k,
                  int most_held) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  unsigned* const held = reinterpret_cast<unsigned*>(memory + sizeof(Shared));
  wait_for_kernel_before();
  let_next_kernel_start();
  const int blocks = blocks_of_cluster(), rank = rank_in_cluster();
  const int row = blockIdx.x / blocks, length = lengths[row];
  int* const out = selected + static_cast<long long>(row) * k;
  if (length <= k) {
    for (int i = rank * kThreads + threadIdx.x; i < k; i += blocks * kThreads) {
      out[i] = i < length ? i : -1;
    }
    return;
  }
  const int each = ((length + blocks - 1) / blocks + 3) / 4 * 4, first = min(rank * each, length);
  const Piece piece{scores + row * stride + first, first, min(each, length - first), held,
                    most_held};
  for (int i = threadIdx.x; i < kBins; i += kThreads) shared.bins[i] = 0;
  for (int i = threadIdx.x; i < kPasses * kBins; i += kThreads) shared.sums[0][i] = 0;
  __syncthreads();
  arrive_at_cluster();

  for (int i = threadIdx.x; 4 * i < piece.size; i += kThreads) {
    const float4 four = __ldcg(reinterpret_cast<const float4*>(piece.scores) + i);
    const uint4 keys = make_uint4(key_of(four.x), key_of(four.y), key_of(four.z), key_of(four.w));
    const unsigned of_four[4] = {keys.x, keys.y, keys.z, keys.w};
    if (4 * i < most_held) reinterpret_cast<uint4*>(held)[i] = keys;
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      if (4 * i + n < piece.size) atomicAdd(&shared.bins[of_four[n] >> 21], 1);
    }
  }
  wait_for_cluster();
  share_bins(shared, 0);
  sync_cluster();
  int wanted = k;
  find_bin(0, wanted, shared);
  unsigned bound = static_cast<unsigned>(shared.bin);
  wanted -= shared.above;

  for (int i = threadIdx.x; i < piece.size; i += kThreads) {
    const unsigned key = piece.key(i);
    if (key >> 21 == bound) atomicAdd(&shared.bins[key >> 10 & (kBins - 1)], 1);
  }
  share_bins(shared, 1);
  sync_cluster();
  find_bin(1, wanted, shared);
  bound = bound << 11 | shared.bin;
  wanted -= shared.above;

  for (int i = threadIdx.x; i < piece.size; i += kThreads) {
    const unsigned key = piece.key(i);
    if (key >> 10 == bound) atomicAdd(&shared.bins[key & 1023], 1);
  }
  share_bins(shared, 2);
  sync_cluster();
  find_bin(2, wanted, shared);
  bound = bound << 10 | shared.bin;
  wanted -= shared.above;  // of those that equal the bound

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int each_warp = ((piece.size + kWarps - 1) / kWarps + kWarp - 1) / kWarp * kWarp;
  const int from = min(warp * each_warp, piece.size), to = min(from + each_warp, piece.size);
  Count own{0, 0};
  for (int i = from + lane; i < to; i += kWarp) {
    const unsigned key = piece.key(i);
    own.above += key > bound, own.equal += key == bound;
  }
  own.above = warp_sum(own.above), own.equal = warp_sum(own.equal);
  if (lane == 0) shared.counts[warp] = own;
  __syncthreads();
  if (warp == 0) {
    const Count mine = shared.counts[lane];
    const Count all{warp_sum(mine.above), warp_sum(mine.equal)};
    if (lane == 0) shared.count = all;
  }
  sync_cluster();
  Count before{lane < warp ? shared.counts[lane].above : 0,
               lane < warp ? shared.counts[lane].equal : 0};
  if (lane < rank) {
    const Count theirs = *in_block(&shared.count, lane);
    before.above += theirs.above, before.equal += theirs.equal;
  }
  before.above = warp_sum(before.above), before.equal = warp_sum(before.equal);
  for (int start = from; start < to; start += kWarp) {
    const int i = start + lane;
    const unsigned key = i < to ? piece.key(i) : 0u;
    const bool is_above = i < to && key > bound, is_equal = i < to && key == bound;
    const unsigned above = __ballot_sync(0xffffffffu, is_above);
    const unsigned equal = __ballot_sync(0xffffffffu, is_equal);
    const unsigned lower = (1u << lane) - 1;
    const int equals = before.equal + __popc(equal & lower);
    if (is_above || (is_equal && equals < wanted)) {
      out[before.above + __popc(above & lower) + min(equals, wanted)] = piece.first + i;
    }
    before.above += __popc(above), before.equal += __popc(equal);
  }
  sync_cluster();  // others may still look into this block's counts
}
