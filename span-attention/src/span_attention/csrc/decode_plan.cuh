// What the plan of a decode step holds, and how its numbers are read; plan.cu fills it.
//
// In memory: Work of each block of the grid | first unit of each request, and their number at the end
// | for each request and item, how many blocks have finished their part of it.

constexpr int kTogether = 16;  // tokens that an mma takes: units begin at multiples of it

struct alignas(16) Work {  // units [begin, end); units of `request` begin at `first`
  int begin, end, request, first;
  int units, blocks;  // of the whole step
  int unused[2];
};

// As the L2 cache has it: the plan may be written while blocks of the kernel that reads it begin.
__device__ __forceinline__ Work load_work(const Work* from) {
  Work work;
  reinterpret_cast<int4*>(&work)[0] = __ldcg(reinterpret_cast<const int4*>(from));
  reinterpret_cast<int4*>(&work)[1] = __ldcg(reinterpret_cast<const int4*>(from) + 1);
  return work;
}

__device__ constexpr int ceil_div(int x, int by) { return (x + by - 1) / by; }

// The first token of a request that has to be read, rounded down to where units begin.
__device__ __forceinline__ int first_token(int length, int window) {
  return window > 0 ? max(length - window, 0) / kTogether * kTogether : 0;
}

// The first unit of a block, and the block that has a unit: the inverse of it.
__device__ __forceinline__ int first_unit(int block, int units, int blocks) {
  return static_cast<int>(static_cast<long long>(block) * units / blocks);
}
__device__ __forceinline__ int block_of(int unit, int units, int blocks) {
  return static_cast<int>((static_cast<long long>(unit + 1) * blocks - 1) / units);
}

template <typename Works>
__device__ __forceinline__ int* firsts_of(Works* works, int most_blocks) {
  return reinterpret_cast<int*>(const_cast<Work*>(works) + most_blocks);
}
__device__ __forceinline__ int* counters_of(int* firsts, int requests) {
  return firsts + requests + 1;
}
