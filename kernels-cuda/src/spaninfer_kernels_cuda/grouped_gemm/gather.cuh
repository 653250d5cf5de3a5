// Rows of x as warps copy them into shared memory, by 16 bytes each (a copy by TMA brings one row):
// lines of 128 bytes in the swizzled order that wgmma reads.
//
// Macros: T, GATHERS (rows come through an order; else x is sorted).
//
// Needs reduce.cuh, copy.cuh, tasks.cuh.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(T);
constexpr int kVector = 8;                    // elements of 16 bytes
constexpr int kVectors = kChunk / kVector;    // in a line
constexpr int kAtOnce = kWarp / kVectors;     // lines that a warp copies at once

// The numbers in x of kRows rows of a task, from `begin` on: each lane knows those of the rows that
// are its own number apart from a multiple of 32.
template <int kRows>
struct Sources {
  int row[(kRows + kWarp - 1) / kWarp];
  int count;

  static __device__ __forceinline__ Sources of(const Task& task, int begin, const int* order,
                                               int chosen) {
    Sources sources;
    sources.count = task.count - begin;
#pragma unroll
    for (int n = 0; n < (kRows + kWarp - 1) / kWarp; ++n) {
      const int row = n * kWarp + threadIdx.x % kWarp;
      sources.row[n] = 0;
      if (row < min(kRows, sources.count)) {
        const int place = task.first + begin + row;
        sources.row[n] = GATHERS ? order[place] / chosen : place;
      }
    }
    return sources;
  }

  // Copies a chunk of each row that there is, zeros beyond the end of a row.
  __device__ __forceinline__ void copy(unsigned char* to, const T* x, int chunk, int inner) const {
    const int line = threadIdx.x % kWarp / kVectors, vector = threadIdx.x % kVectors;
    const int k = chunk * kChunk + vector * kVector;
    const bool is_there = k < inner;
#pragma unroll
    for (int n = 0; n < kRows; n += kAtOnce) {
      if (n >= count) break;
      const int source = __shfl_sync(0xffffffffu, row[n / kWarp], (n + line) % kWarp);
      const bool copies = is_there && n + line < count;  // no branch: others get zeros
      copy_16(to + (n + line) * kLineBytes + ((vector ^ ((n + line) & 7)) << 4),
              x + (copies ? static_cast<size_t>(source) * inner + k : 0), copies);
    }
  }
};
