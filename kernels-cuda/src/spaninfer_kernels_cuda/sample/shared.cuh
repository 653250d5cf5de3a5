// Sizes and shared memory of the sampling kernels.
//
// Macros: THREADS, STAGES (0 before Ampere), SHARED_BYTES (dynamic: Shared, and packs behind it).

using Key = unsigned long long;
using Mass = unsigned long long;

constexpr int kThreads = THREADS, kWarps = kThreads / kWarp;
constexpr int kVector = 16 / sizeof(T);
constexpr int kStages = STAGES;  // packs of a thread that are in flight; 0: no copies
// Are packs held with a mask applied? Of float32, registers of sm_80 would be spilled.
constexpr bool kHoldsMasked = kStages > 0 && sizeof(T) == 2;
constexpr int kList = 4096;     // keys that shared memory holds
constexpr int kSamples = kList;
constexpr int kDigitBits = 11, kBins = 1 << kDigitBits;
constexpr int kMostBlocks = 8;  // of a cluster: MAX_BLOCKS of tuning.py
constexpr int kMostOfTypical = 16;  // of one of sample_typical
constexpr int kSpreadBins = 2 * kBins;  // in the memory of the masses
constexpr int kRowDigitBits = 13, kRowBins = 1 << kRowDigitBits;  // in the memory of the list
constexpr int kFewInZone = kList / 4;
constexpr int kLeastShare = 40;  // of the sample, without top-k
// The most of `count` items that a thread has.
__device__ constexpr int of_thread(int count) { return (count + kThreads - 1) / kThreads; }
constexpr Key kAbsent = 0;                         // no element's key
constexpr Key kLeastFinite = 0x00800000ull << 32;  // of the least finite value
constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000);
constexpr float kBitsPerNat = 1.44269504f;
constexpr float kReach = -26.0f;      // tokens further below the largest logit are never sampled
constexpr float kUnit = 1ull << 40;   // of mass

enum Status { kSampled = 0, kAllMasked = 1, kInfinite = 2, kNaN = 3 };

struct Best {
  double score;
  int id;
};

// The keys of a row among which a threshold below the bound of the list lies.
struct Zone {
  Key low, high;  // the threshold is one of these
  Mass wanted;    // the mass from the threshold on if no key weighs more than the bound; 0: no zone
  int count;      // of its keys, approximately
};

// The range of keys in which a threshold is searched.
struct Range {
  Key low, high;
  bool is_short;  // about as many as the list can hold
};

// Sums over candidates of typical sampling, in units of mass; d is the distance from the largest
// logit over the temperature.
struct Moments {
  Mass mass, moment;  // 1, d
  float square;       // d * d
};

// What typical sampling looks for in a row: the keys that have the mass `wanted` of all candidates'
// mass `total`, nearest to the expected d first.
struct Target {
  Mass wanted, total;
  float expected, bins_per_deviation;
};

// The mass above keys that are listed, and their number; of a block also that of the blocks before.
struct Listed {
  Mass above;
  int count, count_before;
};

struct alignas(16) Shared {
  Key list[kList];
  Mass masses[kBins];
  int counts[kBins];
  Mass mass_of_warp[kWarps], other_of_warp[kWarps];
  float float_of_warp[kWarps];
  Best best_of_warp[kWarps];
  Best best;
  Key threshold;  // found by the first block in the list; kAbsent: not there
  Mass rest;      // mass of the keys not in the list, in units of its bound's
  int count;      // keys collected
  int ahead;      // elements more likely than the chosen one
  unsigned most;  // order_of the largest value
  int status;
  int reach;      // the score in bits that a winner must exceed, as an ordered integer
  int bin;  // from here: of a search
  Mass larger, reached;
  int lowest, highest;
  Mass above, inside, wanted;
  void* kept;  // from here: of typical sampling, too
  float typical_p;
  Target target;
  Listed listed;
  Zone zone;
  float zone_from;  // the value that is the unit of the zone's mass
  float most_of[kMostOfTypical];  // from here: written by the block of that number
  Moments moments_of[kMostOfTypical];
  Listed listed_of[kMostOfTypical];
  Range range;  // read where it is needed: registers are scarce
};
static_assert(sizeof(Shared) + kStages * kThreads * 16 <= SHARED_BYTES, "what the host asks for");

// The bytes from one row that typical sampling keeps to the next: whole packs.
__device__ __forceinline__ size_t kept_row_bytes(int length) {
  return (static_cast<size_t>(length) + kVector - 1) / kVector * 16;
}

// The packs of the block's threads, kThreads apart for each, behind the rest of shared memory.
__device__ __forceinline__ Pack<T, kVector>* packs_behind(Shared& shared) {
  return reinterpret_cast<Pack<T, kVector>*>(&shared + 1);
}

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A condition that is warp-uniform, in a form that tells the compiler: branches that may diverge
// take a convergence barrier each, of which there are 16 before they are spilled.
__device__ __forceinline__ bool agreed(bool is_so) { return __any_sync(0xffffffffu, is_so); }

// Calls visit(0), visit(1), … visit(count - 1), one thread each, and synchronises.
template <typename Visit>
__device__ __forceinline__ void for_each(int count, Visit visit) {
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += kThreads) visit(i);
  __syncthreads();
}
