// From rows of logits to tokens: one cluster of blocks per row, whatever the row asks for.
//
//   sample_revise   writes beside the logits what penalties, bias and bans make of single ones
//   sample_draw     the token of each row: the largest, or the winner of the exponential race
//                   (Gumbel-max) among what top-k, top-p and min-p leave
//   sample_report   log-probability and rank of the token, and the likeliest tokens beside it
//
// An element has a key of 64 bits, its value above, its complemented index below: no two keys of a
// row are equal, "larger key" means likelier, of equally likely the smaller id. Every cut keeps the
// keys from some bound on, so all that a cut has to find is a key.
//
// A row that is cut is read once in almost every case. Of 4096 of its elements, one key is chosen
// that more than enough elements will reach (top-k: k of them, six standard deviations away; else
// about 1% of a vocabulary). What reaches it is collected in shared memory while the mass of all
// the rest is summed; the cuts are then searched in the list, and the race is among its rest. If
// the list overflows or ends before the cut, all blocks search the row itself, digit by digit, and
// race through it once more. Counts are integers and so are masses, in units of 2^-40 of the
// likeliest: sums do not depend on their order, nor tokens on how a row is divided.
//
// Macros: T (element), THREADS, STAGES (0 before Ampere), SHARED_BYTES (dynamic, for Shared).
// Demands: length <= 2^23 (2^63 units of mass), rows contiguous.

using Key = unsigned long long;
using Mass = unsigned long long;

constexpr int kThreads = THREADS, kWarps = kThreads / kWarp;
constexpr int kVector = 16 / sizeof(T);
constexpr int kStages = STAGES;  // packs of a thread that are under way; 0: no copies
constexpr int kList = 4096;     // keys that shared memory holds
constexpr int kSamples = kList;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr int kRowDigitBits = 13, kRowBins = 1 << kRowDigitBits;  // in the place of the list
constexpr int kLeastShare = 40;  // of the sample, where top-k does not say how many are wanted
// How many of `count` things a thread has, at most.
__device__ constexpr int of_thread(int count) { return (count + kThreads - 1) / kThreads; }
constexpr Key kAbsent = 0;                         // no element's key
constexpr Key kLeastFinite = 0x00800000ull << 32;  // the least of a finite value
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float kBitsPerNat = 1.44269504f;
constexpr float kReach = -26.0f;      // tokens further below the likeliest never win a race
constexpr float kUnit = 1ull << 40;   // of mass
constexpr float kColdest = 1e-5f;     // temperatures below are greedy

enum Status { kDrawn = 0, kAllMasked = 1, kInfinite = 2, kNaN = 3 };

// What a request wants: parameters.py has the same fields.
struct Wish {
  unsigned long long seed;
  float temperature;
  int top_k;
  float top_p, min_p;
  float repetition, presence, frequency;
  int ngram;
  int prompt_len;
  int bias_first, bias_count;
  int word_first, word_count;
  int end_first, end_count, end_until;
  int masked;
  int logprobs;  // -1: none
  int processed;

  __device__ __forceinline__ bool cuts_to_k(int length) const {
    return top_k > 0 && top_k < length;
  }
  __device__ __forceinline__ bool is_greedy() const { return temperature < kColdest; }
  __device__ __forceinline__ bool penalizes() const {
    return repetition != 1.0f || presence != 0.0f || frequency != 0.0f;
  }
  __device__ __forceinline__ bool is_revised(int position) const {
    return penalizes() || ngram > 0 || bias_count > 0 || word_count > 0 ||
           (end_count > 0 && position < end_until);
  }
};

struct Best {
  double score;
  int id;
};

struct Shared {
  Key list[kList];
#if STAGES > 0
  Pack<T, kVector> ring[kStages][kThreads];
#endif
  Mass masses[kBins];
  int counts[kBins];
  Mass mass_of_warp[kWarps];
  Best best_of_warp[kWarps];
  Best best;
  Key cut;        // what the first block found in the list; kAbsent: the cut is not there
  Mass rest;      // mass of what is not in the list, in units of its bound's
  int count;      // keys collected
  int ahead;      // elements likelier than the chosen one
  unsigned most;  // the largest value, as order_of says it
  int status;
  int reach;      // what a score has to exceed to win, in bits, ordered as an integer
  int bin;  // these are a search's own
  Mass larger, reached;
  int lowest, highest;
  Mass above, inside, wanted;
};
static_assert(sizeof(Shared) <= SHARED_BYTES, "what the host asks for");
static_assert(sizeof(Wish) == 88, "the size of a record of parameters.py");

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// What all lanes of a warp agree on, said so that the compiler knows: branches that might diverge
// take a convergence barrier each, and of those there are 16 before they are spilled.
__device__ __forceinline__ bool agreed(bool is_so) { return __any_sync(0xffffffffu, is_so); }

// Calls visit(0), visit(1), … visit(count - 1), one thread each; then all threads have done so.
template <typename Visit>
__device__ __forceinline__ void for_each(int count, Visit visit) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) visit(i);
  __syncthreads();
}

// ---- keys

__device__ __forceinline__ unsigned order_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0 becomes +0
  return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ Key key_of(float x, int id) {
  return static_cast<Key>(order_of(x)) << 32 | ~static_cast<unsigned>(id);
}

// The largest key of a value.
__device__ __forceinline__ Key highest_of(float x) {
  return static_cast<Key>(order_of(x)) << 32 | 0xffffffffu;
}

__device__ __forceinline__ float value_of(Key key) {
  const unsigned ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}

// A bound as floats are compared with it: larger values reach it, equal ones up to id `last`.
struct Floor {
  float value;
  int last;

  __device__ __forceinline__ explicit Floor(Key bound)
      : value(value_of(bound)),
        last(static_cast<int>(min(~static_cast<unsigned>(bound), 0x7fffffffu))) {}
  __device__ __forceinline__ bool admits(float x, int id) const {
    return x > value || (x == value && id <= last);
  }
};

// ---- rows

// The packs of a row that a thread reads: copied ahead, each by the thread that looks at it, so
// that many are under way, none in registers, and the loop over them is short: its instructions
// have to be at hand, too. Where a pack cannot be copied it is loaded when its turn comes.
struct Stream {
  const T* row;
  unsigned length, next, step;
  bool is_aligned;
  int stage;
#if STAGES > 0
  Pack<T, kVector>* ring;
#endif

  __device__ __forceinline__ Stream(const T* row, int length, unsigned first, unsigned step,
                                    Shared& shared)
      : row(row), length(length), next(first), step(step),
        is_aligned(reinterpret_cast<size_t>(row) % 16 == 0), stage(0) {
#if STAGES > 0
    ring = &shared.ring[0][threadIdx.x];
#pragma unroll 1
    for (int ahead = 0; ahead < kStages - 1; ++ahead) ask(ahead);
#endif
  }

  // Moves to the pack that begins at `first`. Whether `held` then knows it.
  __device__ __forceinline__ bool take(int first, Pack<T, kVector>& pack) {
    const bool is_whole = is_aligned && first + kVector <= length;
#if STAGES > 0
    const int last = stage;
    stage = stage + 1 == kStages ? 0 : stage + 1;
    ask(last == 0 ? kStages - 1 : last - 1);
    wait_for_copies<kStages - 1>();
    if (is_whole) {
      pack = ring[last * kThreads];
      return true;
    }
#else
    if (is_whole) {
      pack = *reinterpret_cast<const Pack<T, kVector>*>(row + first);
      return false;
    }
#endif
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      pack.at[v] = first + v < length ? row[first + v] : from_float<T>(-kInfinity);
    }
    return false;
  }

#if STAGES > 0
  // Element v of the pack it is at.
  __device__ __forceinline__ float held(int v) const {
    return to_float(ring[(stage == 0 ? kStages - 1 : stage - 1) * kThreads].at[v]);
  }
#endif

 private:
#if STAGES > 0
  __device__ __forceinline__ void ask(int at) {
    const unsigned first = next * kVector;
    if (is_aligned && first + kVector <= length) copy_16(&ring[at * kThreads], row + first, true);
    commit_copies();
    next += step;
  }
#endif
};

// A row of logits as it is read: masked and revised where it is. Absent elements are -inf.
struct Row {
  const T* raw;
  int length;
  const unsigned* allowed;  // a bit per token; null: all are
  const unsigned* touched;  // a bit per token that has a value of its own in `revised`; null: none
  const float* revised;

  __device__ __forceinline__ bool is_revised() const { return allowed || touched; }

  // Asks for what this block will read first, 256 KiB at most.
  __device__ __forceinline__ void prefetch() const {
    constexpr unsigned kBytes = kThreads * sizeof(Pack<T, kVector>), kMost = (1u << 18) / kBytes;
    const unsigned chunk = threadIdx.x * blocks_of_cluster() + rank_in_cluster();
    const char* from = reinterpret_cast<const char*>(raw) + static_cast<size_t>(chunk) * kBytes;
    const bool is_whole = (chunk + 1) * kThreads * kVector <= static_cast<unsigned>(length);
    if (threadIdx.x < kMost && is_whole && reinterpret_cast<size_t>(raw) % 16 == 0) {
      prefetch_to_l2(from, kBytes);
    }
  }

  __device__ __forceinline__ float read(int id) const {
    if (allowed && !(allowed[id / 32] >> (id % 32) & 1)) return -kInfinity;
    if (touched && touched[id / 32] >> (id % 32) & 1) return revised[id];
    return to_float(raw[id]);
  }

  // Calls visit(Neighbours) for this block's packs; returns the worst Status of what this thread
  // read.
  template <typename Visit>
  __device__ __forceinline__ int each(Visit visit, Shared& shared) const;

  __device__ __forceinline__ void revise(int id, float (&x)[kVector]) const {
    const unsigned open = allowed ? allowed[id / 32] >> (id % 32) : ~0u;
    const unsigned other = touched ? touched[id / 32] >> (id % 32) : 0u;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (other >> v & 1) x[v] = revised[id + v];
      if (!(open >> v & 1)) x[v] = -kInfinity;
    }
  }

  __device__ __forceinline__ static int worst_of(const float (&x)[kVector]) {
    int worst = kDrawn;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      if (!(x[v] < kInfinity)) worst = max(worst, x[v] == kInfinity ? kInfinite : kNaN);
    }
    return worst;
  }
};

// kVector neighbours of a row, as they are visited: x[v] is the value of token first + v.
struct Neighbours {
  const Row& row;
  const Stream& stream;
  bool is_held;
  int first;
  float x[kVector];

  // Value v, for a v that is not known before: x lies in registers, which have no index.
  __device__ __forceinline__ float at(int v) const {
#if STAGES > 0
    if (is_held) return stream.held(v);
#endif
    return row.read(first + v);
  }
};

template <typename Visit>
__device__ __forceinline__ int Row::each(Visit visit, Shared& shared) const {
  const unsigned packs = (length + kVector - 1) / kVector;
  const unsigned step = blocks_of_cluster() * kThreads;
  unsigned pack = rank_in_cluster() * kThreads + threadIdx.x;
  Stream stream(raw, length, pack, step, shared);
  int worst = kDrawn;
#pragma unroll 1
  for (; pack < packs; pack += step) {
    const int first = static_cast<int>(pack * kVector);
    Pack<T, kVector> here;
    const bool is_held = stream.take(first, here);
    Neighbours values{*this, stream, is_held && !is_revised(), first};
#pragma unroll
    for (int v = 0; v < kVector; ++v) values.x[v] = to_float(here.at[v]);
    worst = max(worst, worst_of(values.x));
    if (is_revised()) {
      revise(first, values.x);
      worst = max(worst, worst_of(values.x));
    }
    visit(values);
  }
  return worst;
}

// The next number of a counter for each lane that is here: one atomic for all of them.
__device__ __forceinline__ int take(int* counter) {
  const unsigned lanes = __activemask();
  const int leader = __ffs(lanes) - 1, lane = threadIdx.x % kWarp;
  int first = 0;
  if (lane == leader) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(lanes, first, leader) + __popc(lanes & ((1u << lane) - 1));
}

// ---- random numbers

struct Four {
  unsigned word[4];

  __device__ __forceinline__ unsigned of(int id) const {
    const unsigned even = id & 2 ? word[2] : word[0], odd = id & 2 ? word[3] : word[1];
    return id & 1 ? odd : even;
  }
};

// Philox4x32-10 (Salmon et al. 2011) of the counter [block, 0, position, 0].
__device__ __forceinline__ Four philox(unsigned long long seed, unsigned position, unsigned block) {
  unsigned x0 = block, x1 = 0, x2 = position, x3 = 0;
  unsigned k0 = static_cast<unsigned>(seed), k1 = static_cast<unsigned>(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long left = 0xD2511F53ull * x0, right = 0xCD9E8D57ull * x2;
    x0 = static_cast<unsigned>(right >> 32) ^ x1 ^ k0;
    x1 = static_cast<unsigned>(right);
    x2 = static_cast<unsigned>(left >> 32) ^ x3 ^ k1;
    x3 = static_cast<unsigned>(left);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{x0, x1, x2, x3}};
}

// The exponential race of a row. Token i's time is E_i / p_i, E_i = -log(1 - u_i); its score, the
// logarithm of the reciprocal, is x_i / temperature - log(E_i). The largest score wins.
struct Race {
  unsigned long long seed;
  unsigned position;
  double inverse;     // of the temperature
  float bits_per_x;

  __device__ __forceinline__ Race(const Wish& wish, int position)
      : seed(wish.seed), position(position), inverse(1.0 / wish.temperature),
        bits_per_x(kBitsPerNat / wish.temperature) {}

  // Lets the token of a key take part.
  __device__ __forceinline__ void enter(Key key, Best& best) const {
    const int id = id_of(key);
    const unsigned word = philox(seed, position, static_cast<unsigned>(id) / 4).of(id);
    const float number = static_cast<float>((word + 0.5) * 0x1p-32);
    const double u = fminf(number, 1.0f - 0x1p-24f);
    const double score = value_of(key) * inverse - log(-log1p(-u));
    if (score > best.score || (score == best.score && id < best.id)) best = {score, id};
  }

  // Lists those of kVector neighbours that can still win, from the floor on. E > u, so a token
  // whose u exceeds what its E would have to be need not be looked at more closely.
  __device__ __forceinline__ void sift(const Neighbours& here, const Floor& floor,
                                       Shared& shared) const {
    const int ordered = *static_cast<volatile int*>(&shared.reach);
    const float least = __int_as_float(ordered ^ signs(__int_as_float(ordered)));
#pragma unroll
    for (int block = 0; block < kVector; block += 4) {
      const int first = here.first + block;
      float room[4], most = 0.0f;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float x = here.x[block + v];
        const bool takes_part = floor.admits(x, first + v);
        room[v] = takes_part ? exp2_fast(fmaf(x, bits_per_x, -least)) : 0.0f;
        most = fmaxf(most, room[v]);
      }
      if (most < 0x1p-34f) continue;  // the smallest u is 2^-33
      const Four four = philox(seed, position, first / 4);
      unsigned hits = 0;
#pragma unroll
      for (int v = 0; v < 4; ++v) {
        const float one_and_u = __uint_as_float(four.word[v] >> 9 | 0x3f800000u);  // cut off
        if (room[v] > 0.0f && one_and_u <= 1.0f + room[v]) hits |= 1u << v;
      }
#pragma unroll 1
      while (hits != 0) {
        const int v = __ffs(hits) - 1;
        hits &= hits - 1;
        const float x = here.at(block + v);
        const int slot = take(&shared.count);
        if (slot < kList) shared.list[slot] = key_of(x, first + v);
        surpass(least_score(x, four.of(v)), shared);
      }
    }
  }

  // Finds a score that is surpassed, so that only few tokens are listed. All threads of the block
  // take part, each with one token.
  __device__ __forceinline__ void warm_up(const Row& row, const Floor& floor,
                                          Shared& shared) const {
    const int id = static_cast<int>(rank_in_cluster() * kThreads + threadIdx.x) * kVector;
    float bits = -kInfinity;
    if (id < row.length) {
      const float x = row.read(id);
      if (floor.admits(x, id)) bits = least_score(x, philox(seed, position, id / 4).word[0]);
    }
    bits = lanes_max<kWarp>(bits);
    if (threadIdx.x == 0) shared.reach = __float_as_int(-kInfinity) ^ 0x7fffffff;
    __syncthreads();
    if (threadIdx.x % kWarp == 0) surpass(bits, shared);
    __syncthreads();
  }

 private:
  // What a token's score in bits is at least: E < u / (1 - u).
  __device__ __forceinline__ float least_score(float x, unsigned word) const {
    const float u = (word + 0.5f) * 0x1p-32f;
    return x * bits_per_x + __log2f((1.0f - u) / u);
  }

  // Lets no token win whose score is below these bits, a score that some token surpasses.
  __device__ __forceinline__ static void surpass(float bits, Shared& shared) {
    // 2^-22 of the largest number involved is more than the rounding of `room`.
    const float least = bits - (1e-3f + 0x1p-22f * (fabsf(bits) + 40.0f));
    if (bits > -kInfinity) atomicMax(&shared.reach, __float_as_int(least) ^ signs(least));
  }

  // All bits but the first where x is negative: floats then compare as integers do.
  __device__ __forceinline__ static int signs(float x) {
    return static_cast<int>(static_cast<unsigned>(__float_as_int(x) >> 31) >> 1);
  }
};

// ---- what a block agrees on

__device__ __forceinline__ bool is_better(const Best& a, const Best& b) {
  return a.score > b.score || (a.score == b.score && a.id < b.id);
}

__device__ __forceinline__ Best best_of_warp(Best best) {
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) {
    const Best other = {__shfl_xor_sync(0xffffffffu, best.score, step),
                        __shfl_xor_sync(0xffffffffu, best.id, step)};
    if (is_better(other, best)) best = other;
  }
  return best;
}

// The best of the block, in every thread.
__device__ __forceinline__ Best best_of_block(Best best, Shared& shared) {
  const int lane = threadIdx.x % kWarp;
  best = best_of_warp(best);
  __syncthreads();
  if (lane == 0) shared.best_of_warp[threadIdx.x / kWarp] = best;
  __syncthreads();
  return best_of_warp(shared.best_of_warp[lane % kWarps]);
}

// The best of the cluster, in every thread of its first block.
__device__ __forceinline__ Best best_of_cluster(Best best, Shared& shared) {
  best = best_of_block(best, shared);
  if (threadIdx.x == 0) shared.best = best;
  sync_cluster();
  if (rank_in_cluster() == 0) {
#pragma unroll 1
    for (int rank = 1; rank < blocks_of_cluster(); ++rank) {
      const Best other = *in_block(&shared.best, rank);
      if (is_better(other, best)) best = other;
    }
  }
  return best;
}

// ---- searching for a cut

// How much a key weighs: its probability over that of the likeliest.
struct Weight {
  float largest, bits_per_x;

  __device__ __forceinline__ Mass operator()(float x) const {
    const float bits = (x - largest) * bits_per_x;
    return bits < kReach * kBitsPerNat ? 0 : __float2ull_rn(exp2_fast(bits) * kUnit);
  }
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

// How much of the keys in question a cut keeps: a number of them, or of their mass, or as many as
// have a share of their mass and of what lies below them. Up to `enough` are as good where that
// spares a round.
struct Cut {
  bool is_by_mass;
  bool has_more;  // below the keys in question there may be others that it keeps
  Mass fixed, enough;
  double share;  // 0: what is fixed
  Mass rest;

  __device__ __forceinline__ static Cut to_number(int number, bool has_more, int enough = 0) {
    return {false, has_more, static_cast<Mass>(number), static_cast<Mass>(enough), 0.0, 0};
  }
  __device__ __forceinline__ static Cut to_share(double share, Mass rest) {
    return {true, rest > 0, 0, 0, share, rest};
  }
  __device__ __forceinline__ Cut after(Mass wanted, Mass above) const {
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

// The least key that the cut keeps of those of the list in [low, high]; where they are too few,
// kAbsent if there are more, else `low`. By one block.
__device__ __forceinline__ Key search(const List& list, Key low, Key high, const Cut& cut,
                                      const Weight& weight, Shared& shared) {
  Mass wanted = 0, larger = 0;
  while (true) {
    const Bins bins(low, high, kDigitBits);
    for_each(kBins, [&](int i) {
      shared.counts[i] = 0;
      shared.masses[i] = 0;
    });
    list.each([&](Key key) {
      if (key < low || key > high) return;
      // Adding one, the result unused, is one operation for all lanes that name the same bin.
      atomicAdd(&shared.counts[bins.of(key)], 1);
      if (cut.is_by_mass) atomicAdd(&shared.masses[bins.of(key)], weight(value_of(key)));
    });
    __syncthreads();

    // A thread looks at neighbouring bins, the first one at the largest.
    constexpr int kOwn = of_thread(kBins);
    const int first = kBins - 1 - kOwn * static_cast<int>(threadIdx.x);
    Mass own = 0, measures[kOwn] = {}, total;
#pragma unroll
    for (int b = 0; b < kOwn; ++b) {
      if (first < b) break;
      measures[b] = cut.is_by_mass ? shared.masses[first - b] : shared.counts[first - b];
      own += measures[b];
    }
    Mass before = larger + sum_before(own, shared.mass_of_warp, &total);
    if (wanted == 0) wanted = cut.wanted(total);
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
    if (agreed(is_beyond)) return cut.has_more ? kAbsent : low;
    const int bin = shared.bin;
    larger = shared.larger;
    const bool is_found = shared.counts[bin] == 1 || bins.shift == 0 ||
                          shared.reached <= max(wanted, cut.enough);
    low = bins.first_of(bin);
    high = min(high, bins.last_of(bin));
    __syncthreads();  // before anyone writes over what was read here
    if (agreed(is_found)) return low;
  }
}

// ---- collecting what can be a candidate

// A key that about `least` of kSamples elements reach. Every block finds it by itself.
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
  row.prefetch();  // after the sample has been asked for: before, it takes twice as long
#pragma unroll
  for (int j = 0; j < kOwn; ++j) {
    const int i = j * kThreads + threadIdx.x, id = id_of_sample(i);
    if (row.is_revised()) x[j] = row.read(id);
    if (i < kSamples) shared.list[i] = x[j] == x[j] ? key_of(x[j], id) : kAbsent;
  }
  __syncthreads();
  const Cut cut = Cut::to_number(least, false, least + least / 4);
  return max(search({shared, size}, 1, ~0ull, cut, Weight{}, shared), kLeastFinite);
}

// How many of the sample have to reach a bound so that k elements of the row do.
__device__ __forceinline__ int least_for(int k, int length) {
  const float expected = static_cast<float>(k) * kSamples / length;
  return static_cast<int>(expected + 6.0f * sqrtf(expected) + 8.0f);
}

// Brings the lists and sums of all blocks together in the first one.
__device__ __forceinline__ void gather(Shared& shared) {
  sync_cluster();
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
// largest value; sums up the mass of the others where that is asked for, and counts the elements
// that are ahead of `chosen`. All blocks see what the first one then has.
__device__ __forceinline__ void collect(const Row& row, Key bound, bool with_rest, float bits_per_x,
                                        Key chosen, Shared& shared) {
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
  __syncthreads();
  const auto visit = [&](const Neighbours& here) {
    unsigned hits = 0;
#pragma unroll
    for (int v = 0; v < kVector; ++v) {
      most = fmaxf(most, here.x[v]);
      if (floor.admits(here.x[v], here.first + v)) hits |= 1u << v;
    }
    if (with_rest) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) rest += hits >> v & 1 ? 0 : weight(here.x[v]);
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
  gather(shared);
}

__device__ __forceinline__ Mass rescaled(Mass rest, float from, float to, float bits_per_x) {
  return static_cast<Mass>(static_cast<double>(rest) * exp2f((from - to) * bits_per_x));
}

// The least key that the cut keeps of the row's in [low, high]; `low` where they are too few. By
// all blocks of the cluster: keys are counted in bins until the list can hold those among which the
// cut lies. What a bin weighs is known as exactly as its edges are close; what lies above the bins,
// exactly.
__device__ __forceinline__ Key search_row(const Row& row, Key low, Key high, const Cut& cut,
                                          const Weight& weight, Shared& shared) {
  int* counts = reinterpret_cast<int*>(shared.list);
  constexpr int kOwn = of_thread(kRowBins);
  if (threadIdx.x == 0) shared.wanted = 0;
  bool is_listed = false;
#pragma unroll 1
  while (true) {
    const Bins bins(low, high, kRowDigitBits);
    Mass own_above = 0, own_inside = 0;
    if (agreed(!is_listed)) for_each(kRowBins, [&](int i) { counts[i] = 0; });
    if (threadIdx.x == 0) {
      shared.count = 0;
      shared.above = shared.inside = 0;
      shared.highest = -1;
      shared.lowest = kRowBins;
    }
    __syncthreads();
    const auto visit = [&](const Neighbours& here) {
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        const Key key = key_of(here.x[v], here.first + v);
        if (key < low) continue;
        const Mass measure = cut.is_by_mass ? weight(here.x[v]) : 1;
        if (key > high) {
          own_above += measure;
          continue;
        }
        own_inside += measure;
        if (!is_listed) {
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
    sync_cluster();
    Mass above = 0, inside = 0, wanted = shared.wanted;
#pragma unroll 1
    for (int rank = 0; rank < blocks_of_cluster(); ++rank) {
      above += in_block(&shared, rank)->above;
      inside += in_block(&shared, rank)->inside;
    }
    if (wanted == 0) wanted = cut.wanted(inside);
    if (agreed(is_listed || wanted > above + inside)) {
      sync_cluster();  // before a block that others look into goes on
      if (agreed(!is_listed)) return low;
      if (threadIdx.x == 0) shared.above = above;
      break;
    }

    // A thread looks at neighbouring bins, the first one at the largest. The cut is in one that
    // with all larger ones weighs enough at most, and without it too little at least.
    const int first = kRowBins - 1 - kOwn * static_cast<int>(threadIdx.x);
    int in_bin[kOwn] = {};
#pragma unroll 1
    for (int rank = 0; rank < blocks_of_cluster(); ++rank) {
      const int* theirs = in_block(counts, rank);
#pragma unroll
      for (int b = 0; b < kOwn; ++b) in_bin[b] += first < b ? 0 : theirs[first - b];
    }
    const auto at_least = [&](int b) -> Mass {
      if (!cut.is_by_mass) return in_bin[b];
      const Mass mass = in_bin[b] * weight(value_of(bins.first_of(first - b)));
      return mass - (mass >> 20);  // 2^x is rounded
    };
    const auto at_most = [&](int b) -> Mass {
      if (!cut.is_by_mass) return in_bin[b];
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
    sync_cluster();
    if (threadIdx.x == 0) shared.wanted = wanted;
    is_listed = shared.count <= kList;
    high = min(high, bins.last_of(shared.highest));
    low = bins.first_of(shared.lowest);
    __syncthreads();
  }
  gather(shared);
  if (agreed(rank_in_cluster() == 0)) {
    const Cut here = cut.after(shared.wanted, shared.above);
    const Key found = search({shared, shared.count}, low, high, here, weight, shared);
    if (threadIdx.x == 0) shared.cut = found;
  }
  sync_cluster();
  return in_block(&shared, 0)->cut;
}

// The least key that min-p leaves.
__device__ __forceinline__ Key floor_of_min_p(const Wish& wish, float most) {
  if (wish.min_p <= 0.0f) return kLeastFinite;
  const float least = most + wish.temperature * logf(wish.min_p);
  return max(static_cast<Key>(order_of(least)) << 32, kLeastFinite);
}

// The key from which on a row's cuts leave candidates, of the keys from `low` on that `find` looks
// at: all, unless there `is_more` below them, `rest` being the mass of those. kAbsent if the cut is
// not among them.
template <typename Find>
__device__ __forceinline__ Key find_cut(const Wish& wish, int length, Key low, float most,
                                        bool is_more, Mass rest, Find find) {
  const Key high = highest_of(most), floor = floor_of_min_p(wish, most);
  bool is_settled = !is_more || floor >= low;  // without a search
#pragma unroll 1
  for (int by_mass = 0; by_mass < 2; ++by_mass) {
    if (agreed(by_mass ? wish.top_p >= 1.0f : !wish.cuts_to_k(length))) continue;
    low = find(low, high,
               by_mass ? Cut::to_share(wish.top_p, rest) : Cut::to_number(wish.top_k, is_more));
    if (agreed(low == kAbsent)) return kAbsent;
    is_settled = true;
    rest = 0;  // of what top-k left, all is here
  }
  return is_settled ? max(low, floor) : kAbsent;
}

// ---- kernels

__device__ __forceinline__ Row row_of(const T* logits, int length, long long stride,
                                      const Wish& wish, int slot, int position,
                                      const unsigned* allowed, const unsigned* touched,
                                      const float* revised) {
  const size_t words = (length + 31) / 32;
  const bool is_revised = touched && wish.is_revised(position);
  const bool is_masked = allowed && wish.masked;
  return {logits + blockIdx.y * stride, length, is_masked ? allowed + slot * words : nullptr,
          is_revised ? touched + blockIdx.y * words : nullptr,
          revised + static_cast<size_t>(blockIdx.y) * length};
}

// The likeliest token of the row, its value as the score.
__device__ __forceinline__ Best likeliest(const Row& row, Shared& shared) {
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

// Finds the cut of a row. True if the first block's list holds every candidate; else all blocks
// get the cut.
__device__ __forceinline__ bool cut_row(const Row& row, const Wish& wish, float bits_per_x,
                                        Key* cut, Shared& shared) {
  const int least = wish.cuts_to_k(row.length) ? least_for(wish.top_k, row.length) : kLeastShare;
  const Key bound = sampled_bound(row, least, shared);
  const bool with_rest = !wish.cuts_to_k(row.length) && wish.top_p < 1.0f;
  collect(row, bound, with_rest, bits_per_x, kAbsent, shared);
  Shared& first = *in_block(&shared, 0);
  const float most = value_of(static_cast<Key>(first.most) << 32);
  // Without a finite maximum there is nothing to cut, and an empty list of candidates.
  const bool is_empty = first.status != kDrawn || most == -kInfinity;
  const Weight weight{most, bits_per_x};
  if (agreed(rank_in_cluster() == 0)) {
    Key found = kAbsent;
    if (agreed(!is_empty && shared.count <= kList)) {
      const Mass rest = rescaled(shared.rest, Floor(bound).value, most, bits_per_x);
      const auto find = [&](Key low, Key high, const Cut& cut) {
        return search({shared, shared.count}, low, high, cut, weight, shared);
      };
      found = find_cut(wish, row.length, bound, most, bound > kLeastFinite, rest, find);
    }
    if (threadIdx.x == 0) shared.cut = found;
  }
  sync_cluster();
  *cut = is_empty ? ~0ull : first.cut;
  if (agreed(*cut != kAbsent)) return true;
  const Key low = static_cast<Key>(order_of(most + kReach * wish.temperature)) << 32;
  const auto find = [&](Key low, Key high, const Cut& cut) {
    return search_row(row, low, high, cut, weight, shared);
  };
  *cut = find_cut(wish, row.length, max(low, kLeastFinite), most, false, 0, find);
  return false;
}

// Lists what can win the race, from the cut on. Each block for what it reads.
__device__ __forceinline__ void sift(const Row& row, Key cut, const Race& race, Shared& shared) {
  const Floor floor(cut);
  race.warm_up(row, floor, shared);
  bool is_too_much = true;
#pragma unroll 1
  while (agreed(is_too_much)) {  // where scores rise steadily, all seem to win; then the best is known
    if (threadIdx.x == 0) shared.count = 0;
    __syncthreads();
    const int worst =
        row.each([&](const Neighbours& here) { race.sift(here, floor, shared); }, shared);
    if (worst) atomicMax(&shared.status, worst);
    __syncthreads();
    is_too_much = shared.count > kList;
    __syncthreads();
  }
}

// The winner of the race of a row, in the first block.
__device__ __forceinline__ Best winner(const Row& row, const Wish& wish, int position,
                                       Shared& shared) {
  Key cut = kLeastFinite;
  const bool is_cut = wish.cuts_to_k(row.length) || wish.top_p < 1.0f || wish.min_p > 0.0f;
  const float bits_per_x = kBitsPerNat / wish.temperature;
  const bool is_listed = agreed(is_cut) && cut_row(row, wish, bits_per_x, &cut, shared);
  const Race race(wish, position);
  if (agreed(!is_listed)) sift(row, cut, race, shared);
  const int size = !is_listed || rank_in_cluster() == 0 ? min(shared.count, kList) : 0;
  Best best = {-static_cast<double>(kInfinity), row.length};
  List{shared, size}.each([&](Key key) {
    if (key >= cut) race.enter(key, best);
  });
  return best_of_cluster(best, shared);
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_draw(int* out, int* status, int* tokens, const T* logits, const Wish* wishes,
                const int* slots, const int* positions, const unsigned* allowed,
                const unsigned* touched, const float* revised, int length, long long stride,
                int token_stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;  // the whole cluster
  const Wish& wish = wishes[slot];  // read where it is needed: registers are scarce
  const int position = positions[blockIdx.y];
  const Row row =
      row_of(logits, length, stride, wish, slot, position, allowed, touched, revised);
  if (threadIdx.x == 0) shared.status = kDrawn;
  __syncthreads();

  const Best best =
      agreed(wish.is_greedy()) ? likeliest(row, shared) : winner(row, wish, position, shared);
  if (rank_in_cluster() == 0 && threadIdx.x == 0) {
    int worst = shared.status;
#pragma unroll 1
    for (int rank = 1; rank < blocks_of_cluster(); ++rank) {
      worst = max(worst, in_block(&shared, rank)->status);
    }
    if (worst == kDrawn && best.id >= length) worst = kAllMasked;
    const int token = worst == kDrawn ? best.id : 0;
    out[blockIdx.y] = token;
    status[blockIdx.y] = worst;
    if (tokens) tokens[static_cast<size_t>(slot) * token_stride + position] = token;
  }
  sync_cluster();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_report(float* chosen, int* ranks, int* top_ids, float* top, int top_stride,
                  const int* drawn, const int* status, const T* logits, const Wish* wishes,
                  const int* slots, const int* positions, const unsigned* allowed,
                  const unsigned* touched, const float* revised, int length, long long stride) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;
  const Wish wish = wishes[slot];
  if (wish.logprobs < 0 || status[blockIdx.y] != kDrawn) return;
  Row row = row_of(logits, length, stride, wish, slot, positions[blockIdx.y], allowed, touched,
                   revised);
  if (!wish.processed) row.allowed = row.touched = nullptr;
  const float temperature = wish.processed && !wish.is_greedy() ? wish.temperature : 1.0f;
  const float bits_per_x = kBitsPerNat / temperature;
  if (threadIdx.x == 0) shared.status = kDrawn;
  __syncthreads();

  const int count = min(min(wish.logprobs, top_stride), length), wanted = max(count, 1);
  const int token = drawn[blockIdx.y];
  const float x = row.read(token);
  const Key own = x == x ? key_of(x, token) : 1;
  const Key highest = ~0ull;
  Key bound = sampled_bound(row, least_for(wanted, length), shared);
  const Shared& first = *in_block(&shared, 0);
#pragma unroll 1
  while (true) {
    collect(row, bound, true, bits_per_x, own, shared);
    const bool is_enough = first.count >= wanted || bound == kLeastFinite;
    if (is_enough && first.count <= kList) break;
    sync_cluster();  // before a block counts anew
    bound = search_row(row, kLeastFinite, highest, Cut::to_number(wanted, false), Weight{}, shared);
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
      chosen[blockIdx.y] = logprob_of(x);
      ranks[blockIdx.y] = 1 + shared.ahead;
    }
    // Of the few that are wanted, each one's place is how many are larger.
    const Key least =
        search(list, bound, highest, Cut::to_number(wanted, false), weight, shared);
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
      int place = i;  // where fewer are finite, the rest is nobody's
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

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    sample_revise(unsigned* touched, float* revised, const T* logits, const Wish* wishes,
                  const int* slots, const int* positions, const int* tokens,
                  const int* bias_ids, const float* biases, const int* word_bounds,
                  const int* word_tokens, const int* end_ids, int length, long long stride,
                  int token_stride) {
  wait_for_kernel_before();
  let_next_kernel_start();
  const int slot = slots[blockIdx.y];
  if (slot < 0) return;
  const Wish wish = wishes[slot];
  const int position = positions[blockIdx.y];
  if (!wish.is_revised(position)) return;
  const T* row = logits + blockIdx.y * stride;
  const int words = (length + 31) / 32;
  touched += static_cast<size_t>(blockIdx.y) * words;
  revised += static_cast<size_t>(blockIdx.y) * length;
  const int* known = tokens + static_cast<size_t>(slot) * token_stride;

  // Until a token's value is written, its place holds how often the output has it, and whether
  // the prompt or the output does.
  constexpr unsigned kKnown = 1u << 31;
  unsigned* counts = reinterpret_cast<unsigned*>(revised);
  const int counted = wish.penalizes() ? position : 0;
  const auto count_of = [&](int id) { return __ldcg(&counts[id]); };  // where atomics add
  const auto touch = [&](int id) {
    const unsigned bit = 1u << (id % 32);
    return (atomicOr(&touched[id / 32], bit) & bit) == 0;
  };
  const auto ban = [&](int id) {
    touch(id);
    revised[id] = -kInfinity;
  };
  const auto penalized = [&](float x, unsigned count) {
    if (count & kKnown && wish.repetition != 1.0f) {
      x = x < 0.0f ? x * wish.repetition : x / wish.repetition;
    }
    const int times = static_cast<int>(count & ~kKnown);
    if (times == 0) return x;
    return x - static_cast<float>(wish.presence + static_cast<double>(wish.frequency) * times);
  };

  for_each(words, [&](int i) { touched[i] = 0; });
  for_each(wish.bias_count, [&](int i) { counts[bias_ids[wish.bias_first + i]] = 0; });
  for_each(counted, [&](int i) { counts[known[i]] = 0; });
  for_each(counted, [&](int i) {
    atomicOr(&counts[known[i]], kKnown);
    if (i >= wish.prompt_len) atomicAdd(&counts[known[i]], 1);
  });
  for_each(wish.bias_count, [&](int i) {
    const int id = bias_ids[wish.bias_first + i];
    touch(id);
    revised[id] = penalized(to_float(row[id]) + biases[wish.bias_first + i], count_of(id));
  });
  for_each(counted, [&](int i) {
    const int id = known[i];
    if (touch(id)) revised[id] = penalized(to_float(row[id]), count_of(id));
  });
  for_each(position < wish.end_until ? wish.end_count : 0,
           [&](int i) { ban(end_ids[wish.end_first + i]); });
  for_each(wish.word_count, [&](int i) {
    const int* word = word_tokens + word_bounds[wish.word_first + i];
    const int before = word_bounds[wish.word_first + i + 1] - word_bounds[wish.word_first + i] - 1;
    if (before > position) return;
#pragma unroll 1
    for (int j = 0; j < before; ++j) {
      if (word[j] != known[position - before + j]) return;
    }
    ban(word[before]);
  });
  const int before = wish.ngram - 1;
  for_each(wish.ngram > 0 ? max(position - before, 0) : 0, [&](int i) {
#pragma unroll 1
    for (int j = 0; j < before; ++j) {
      if (known[i + j] != known[position - before + j]) return;
    }
    ban(known[i + before]);
  });
}
