// Softmax over parts of the keys: what a part leaves besides its result, and how parts become one.
//
// Needs softmax.cuh.

// The largest score of a part, in units of log2, and its sum of 2^(score - most).
struct Rest {
  float most, sum;

  __device__ __forceinline__ void join(const Rest& other) {
    const float larger = fmaxf(most, other.most);
    // Two parts without keys: hidden() - hidden() is no number.
    const float own = most == larger ? 1.0f : power_of_2(most - larger);
    const float others = other.most == larger ? 1.0f : power_of_2(other.most - larger);
    sum = sum * own + other.sum * others;
    most = larger;
  }
};

// Four neighbouring elements of a part's result, not yet divided by its sum.
struct alignas(8) Part {
  Rest rest;
  float at[4];

  __device__ __forceinline__ void join(const Part& other) {
    const float larger = fmaxf(rest.most, other.rest.most);
    const float own = rest.most == larger ? 1.0f : power_of_2(rest.most - larger);
    const float others = other.rest.most == larger ? 1.0f : power_of_2(other.rest.most - larger);
#pragma unroll
    for (int e = 0; e < 4; ++e) at[e] = at[e] * own + other.at[e] * others;
    rest.sum = rest.sum * own + other.rest.sum * others;
    rest.most = larger;
  }
};

// What joins any part without changing it.
__device__ __forceinline__ Part no_part() { return {{hidden(), 0.0f}, {}}; }
