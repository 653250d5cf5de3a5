// The choice of experts of one token by one warp, and its weights in float32.
//
// A lane holds PER_LANE neighbouring experts. Every choice is a maximum over keys: unsigned numbers
// in the order of the scores that choose, 0 for an expert that cannot be chosen. Of equal keys the
// lowest expert wins: the lowest lane, then its lowest expert.
//
// Macros: T (of the logits), PER_LANE, SCORE (softmax, sigmoid or sqrt_softplus), GROUP_BEST (the
//         scores whose sum is a group's: 0 without groups, 1 or 2), SHARED (experts of every token,
//         behind those that logits choose, with a weight of 1).
// Needs types.cuh, reduce.cuh.

constexpr unsigned kAll = 0xffffffffu;
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float kSmallest = 1e-20f;  // of a divisor: sigmoids may all be 0

struct Rule {
  int experts, top_k, groups, group_topk, normalise;
  float scale;
};

// Compares like the float, NaN as the smallest, -0 as 0. Never 0.
__device__ __forceinline__ unsigned key_of(float x) {
  if (isnan(x)) return 1;
  const unsigned bits = __float_as_uint(x + 0.0f);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of(unsigned key) {
  return __uint_as_float(key >> 31 ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ unsigned warp_max(unsigned x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(kAll, x);
#else
#pragma unroll
  for (int step = kWarp / 2; step > 0; step /= 2) x = max(x, __shfl_xor_sync(kAll, x, step));
  return x;
#endif
}

enum Score { softmax, sigmoid, sqrt_softplus };

// The scores of a token's logits. Where it is no softmax, a score needs no other logit.
struct Scores {
  float most, sum;

  __device__ __forceinline__ float of(float logit) const {
    if constexpr (SCORE == softmax) return expf(logit - most) / sum;
    if constexpr (SCORE == sigmoid) return 1.0f / (1.0f + expf(-logit));
    return sqrtf(fmaxf(logit, 0.0f) + log1pf(expf(-fabsf(logit))));
  }
};

// The experts of a lane: few of them sorted, the best first, and of equal keys the lowest expert.
struct Candidates {
  static constexpr bool kSorted = PER_LANE <= 8;  // more take too many exchanges, and registers
  static constexpr int kBits = 4;                 // of a place, 8 in a register

  unsigned key[PER_LANE];
  unsigned places;  // where sorted keys lay, the first in the lowest bits

  // Reads the logits of a token. Where the choice sees nothing but scores, which grow with logits,
  // logits choose: rounding makes equal scores of unequal logits.
  __device__ __forceinline__ Scores load(const T* logits, const float* correction, int experts) {
    const int first = threadIdx.x % kWarp * PER_LANE;
    float logit[PER_LANE], most = -kInfinity, sum = 0.0f;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      logit[i] = first + i < experts ? to_float(logits[first + i]) : -kInfinity;
      most = fmaxf(most, logit[i]);
    }
    if constexpr (SCORE == softmax) {
      most = value_of(warp_max(key_of(most)));
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) sum += expf(logit[i] - most);
      sum = warp_sum(sum);
    }
    const Scores scores = {most, sum};
    const bool by_logit = GROUP_BEST < 2 && !correction;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) {
      const bool exists = first + i < experts;
      const float added = exists && correction ? correction[first + i] : 0.0f;
      key[i] = exists ? key_of(by_logit ? logit[i] : scores.of(logit[i]) + added) : 0;
    }
    if constexpr (kSorted) sort();
    return scores;
  }

  // Exchanges neighbours, so that equal keys stay in order.
  __device__ __forceinline__ void sort() {
    unsigned from[PER_LANE];
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) from[i] = i;
#pragma unroll
    for (int last = PER_LANE - 1; last > 0; --last) {
#pragma unroll
      for (int i = 0; i < last; ++i) {
        const bool swaps = key[i] < key[i + 1];
        const unsigned worse = min(key[i], key[i + 1]), other = from[i];
        key[i] = max(key[i], key[i + 1]);
        key[i + 1] = worse;
        from[i] = swaps ? from[i + 1] : from[i];
        from[i + 1] = swaps ? other : from[i + 1];
      }
    }
    places = 0;
#pragma unroll
    for (int i = 0; i < PER_LANE; ++i) places |= from[i] << i * kBits;
  }

  __device__ __forceinline__ unsigned best() const {
    unsigned most = key[0];
    if constexpr (!kSorted) {
#pragma unroll
      for (int i = 1; i < PER_LANE; ++i) most = max(most, key[i]);
    }
    return most;
  }

  // Removes the first expert with the best key; returns its place in the lane.
  __device__ __forceinline__ int take(unsigned best) {
    int place = -1;
    if constexpr (kSorted) {
      place = places % (1 << kBits);
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) key[i] = i + 1 < PER_LANE ? key[i + 1] : 0;
      places >>= kBits;
    } else {
#pragma unroll
      for (int i = 0; i < PER_LANE; ++i) {
        if (place < 0 && key[i] == best) place = i, key[i] = 0;
      }
    }
    return place;
  }
};

// Leaves the experts of the best groups. A group's experts lie in whole lanes.
__device__ __forceinline__ void keep_best_groups(Candidates& of, const Rule& rule) {
  const int lanes = rule.experts / rule.groups / PER_LANE, lane = threadIdx.x % kWarp;
  const int group = lane / lanes, begin = group * lanes;
  unsigned own[2] = {};  // the largest two of this lane
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) {
    own[1] = max(own[1], min(own[0], of.key[i]));
    own[0] = max(own[0], of.key[i]);
  }
  unsigned first = own[0], second = own[1];
  for (int step = 1; step < lanes; ++step) {
    const int other = (begin + (lane - begin + step) % lanes) % kWarp;
    const unsigned one = __shfl_sync(kAll, own[0], other), two = __shfl_sync(kAll, own[1], other);
    second = max(max(second, two), min(first, one));
    first = max(first, one);
  }
  const float sum = value_of(first) + (GROUP_BEST == 2 ? value_of(second) : 0.0f);
  const unsigned worth = key_of(sum);
  int better = 0;
  for (int each = 0; each < rule.groups; ++each) {
    const unsigned other = __shfl_sync(kAll, worth, each * lanes);
    better += other > worth || (other == worth && each < group);
  }
#pragma unroll
  for (int i = 0; i < PER_LANE; ++i) of.key[i] = better < rule.group_topk ? of.key[i] : 0;
}

// Writes the experts of a token to chosen[top_k], best first; a whole warp calls it.
__device__ __forceinline__ Scores choose_experts(unsigned short* chosen, const T* logits,
                                                 const float* correction, const Rule& rule) {
  const int lane = threadIdx.x % kWarp;
  const unsigned lanes_before = (1u << lane) - 1;
  Candidates candidates;
  const Scores scores = candidates.load(logits, correction, rule.experts);
  if constexpr (GROUP_BEST > 0) keep_best_groups(candidates, rule);
#pragma unroll 1
  for (int j = 0; j < rule.top_k; ++j) {
    const unsigned own = candidates.best(), most = warp_max(own);
    const unsigned equal = __ballot_sync(kAll, own == most);
    if (own == most && (equal & lanes_before) == 0) {
      chosen[j] = static_cast<unsigned short>(lane * PER_LANE + candidates.take(most));
    }
  }
  __syncwarp();
  return scores;
}

// The weight of an expert that a lane has; a whole warp calls it.
__device__ __forceinline__ float weigh(const Scores& scores, const T* logits, int expert,
                                       const Rule& rule) {
  const int lane = threadIdx.x % kWarp;
  float share = lane < rule.top_k ? scores.of(to_float(logits[expert])) : 0.0f;
  if (rule.normalise) share /= warp_sum(share) + kSmallest;
  return share * rule.scale;
}

// Tokens with a negative slot are padding.
__device__ __forceinline__ bool is_padding(const int* slots, int token) {
  return slots && slots[token] < 0;
}

// Writes a token's experts and their weights, -1 and 0 for padding; a whole warp calls it.
__device__ __forceinline__ void write_choice(int* ids, float* shares, int token,
                                             const unsigned short* chosen, const Scores& scores,
                                             const T* logits, const int* slots, const Rule& rule) {
  const int lane = threadIdx.x % kWarp, choices = rule.top_k + SHARED;
  int id = lane < rule.top_k ? chosen[lane] : rule.experts + lane - rule.top_k;
  float share = weigh(scores, logits, id, rule);
  if (lane >= rule.top_k) share = 1.0f;
  if (is_padding(slots, token)) id = -1, share = 0.0f;
  if (lane < choices) {
    const size_t pair = static_cast<size_t>(token) * choices + lane;
    ids[pair] = id;
    shares[pair] = share;
  }
}
