// Keys of elements, and the shared memory of a block that selects among them.
//
// A key has 64 bits, the element's value above, its complemented index below: no two of a row are
// equal, and "larger key" is the required order.

using Key = unsigned long long;

constexpr int kThreads = 1024, kWarps = kThreads / kWarp;
constexpr int kHeld = 8;                       // keys that a thread holds: 16 registers of its 64
constexpr int kHeldByBlock = kThreads * kHeld;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr int kAtOnce = 8;                     // keys that a block loads together when alone
constexpr int kMostChosen = 4096;              // of one row
constexpr int kFullest = 64;                   // keys of a bin that are compared with each other
constexpr int kRoom = kMostChosen + kFullest;  // what the shared list holds
constexpr int kVector = 16 / sizeof(T);
constexpr int kBatch = sizeof(T) == 4 ? 4 : 3;  // packs that a thread loads together
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr Key kAbsent = 0;                     // no element has it: indices are below 2^31

struct Row {      // in the workspace, one per row; topk_bound clears it
  int count;      // keys collected so far
  int finished;   // blocks that have finished
};

struct Shared {
  Key list[kRoom];
  int bins[kBins];
  Key all_of_warp[kWarps], any_of_warp[kWarps];
  int sum_of_warp[kWarps];
  int bin, larger, in_bin;
  int count;
  int base;
};

__device__ __forceinline__ Key key_of(T value, unsigned index) {
  const float x = to_float(value) + 0.0f;  // -0 becomes +0
  const unsigned bits = __float_as_uint(x);
  const unsigned sign = static_cast<unsigned>(static_cast<int>(bits) >> 31);  // in every bit
  const unsigned ordered = bits ^ (sign | 0x80000000u);
  return static_cast<Key>(x == x ? ordered : 0u) << 32 | ~index;
}

// The value part of `bound` as a float: elements above it reach the bound, those below it do not.
__device__ __forceinline__ float floor_of(Key bound) {
  const unsigned ordered = static_cast<unsigned>(bound >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

// The next number of a counter for each active lane: one atomic for all of them.
__device__ __forceinline__ int take(int* counter) {
  const unsigned lanes = __activemask();
  const int leader = __ffs(lanes) - 1, lane = threadIdx.x % kWarp;
  int first = 0;
  if (lane == leader) first = atomicAdd(counter, __popc(lanes));
  return __shfl_sync(lanes, first, leader) + __popc(lanes & ((1u << lane) - 1));
}
