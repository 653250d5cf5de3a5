// A strip of 16 rows of codes times one row of x, by a warp that reads each code once.
//
// Codes (quantized_gemm/codes.cuh), their numbers and x pass through a ring of CHUNKS slots in
// shared memory that is the warp's own, so no warp waits for another. The row of x is every
// column of B: the tensor cores have nothing else to do, and no lane adds to another's sums. Codes
// are multiplied exactly, and sums of a group scaled; a minimum is taken from them times the sum of
// x.
//
// Macros: those of codes.cuh; CHUNKS.
// Needs reduce.cuh, copy.cuh, codes.cuh.

constexpr int kVector = 8;  // elements of 16 bytes
constexpr int kStripRows = 16;
constexpr int kStrips = kBlockRows / kStripRows;  // of a record
constexpr int kGroups = kScaleGroups > 0 ? kScaleGroups : 1;
constexpr int kNumberCopies = kScaleGroups * 2;   // of 16 bytes: those of a strip, of one kind

// A chunk of a strip.
struct alignas(16) Slot {
  unsigned char codes[kLoads * kWarp * 16];
  T x[kChunk];
  unsigned short scales[kGroups][kStripRows], shifts[SHIFT ? kGroups : 1][kStripRows];
};

// The strip of an expert's weight: its records follow one another.
struct Strip {
  const unsigned char* records;
  int number;  // of the four of a record
  int lane;
  float2 factor;

  // Copies a chunk's codes and numbers.
  __device__ __forceinline__ void copy(Slot& slot, int chunk) const {
    const unsigned char* record = records + static_cast<size_t>(chunk) * kRecordBytes;
#pragma unroll
    for (int load = 0; load < kLoads; ++load) {
      const int at = (load * kWarp + lane) * 16;
      copy_16(slot.codes + at, record + number * kLoads * kWarp * 16 + at, true);
    }
    if (lane < kNumberCopies * (SHIFT ? 2 : 1)) {
      const int kind = lane / (kNumberCopies > 0 ? kNumberCopies : 1);
      const int part = lane - kind * kNumberCopies, group = part / 2;
      auto* to = kind ? slot.shifts[group] : slot.scales[group];
      const unsigned char* from =
          record + kCodeBytes + kind * kScaleBytes + (group * kBlockRows + number * kStripRows) * 2;
      copy_16(to + part % 2 * 8, from + part % 2 * 16, true);
    }
  }

  // Copies a chunk of x, zeros beyond its end.
  __device__ __forceinline__ void copy_x(Slot& slot, const T* x, int chunk, int inner) const {
    if (lane >= kChunk / kVector) return;
    const int at = chunk * kChunk + lane * kVector;
    copy_16(slot.x + lane * kVector, x + (at < inner ? at : 0), at < inner);
  }

  __device__ __forceinline__ GroupNumbers numbers_of(const Slot& slot, int group) const {
    constexpr unsigned kCentre = SHIFT == 0 ? 1u << (BITS - 1) : 0u;
    GroupNumbers numbers = {{origin_of(kCentre), origin_of(kCentre)}, {1.0f, 1.0f}, {}};
    if constexpr (GROUP == 0) return numbers;
    const unsigned short* scales = slot.scales[group] + lane / 4;
    numbers.scale[0] = __half2float(__ushort_as_half(scales[0])) * factor.x;
    numbers.scale[1] = __half2float(__ushort_as_half(scales[8])) * factor.y;
    if constexpr (SHIFT != 0) {
      const unsigned short* shifts = slot.shifts[group] + lane / 4;
      if constexpr (SHIFT == 1) {
        numbers.origin[0] = origin_of(shifts[0]);
        numbers.origin[1] = origin_of(shifts[8]);
      } else {
        numbers.minimum[0] = __half2float(__ushort_as_half(shifts[0])) * factor.x;
        numbers.minimum[1] = __half2float(__ushort_as_half(shifts[8])) * factor.y;
      }
    }
    return numbers;
  }
};

// The sum of a group of x, in the lanes whose vectors it has.
__device__ __forceinline__ float sum_of_x(const Slot& slot, int lane) {
  float x[kVector], sum = 0.0f;
  load_floats<kVector>(x, slot.x + lane % (kChunk / kVector) * kVector);
#pragma unroll
  for (int v = 0; v < kVector; ++v) sum += x[v];
  return lanes_sum<(GROUP ? GROUP : kChunk) / kVector>(sum);
}

// sum += a chunk of codes times x.
__device__ __forceinline__ void multiply_slot(float2& sum, const Slot& slot, const Strip& own) {
  const unsigned matrix = shared_address(slot.x) + own.lane / 8 * 16;  // its rows are all the same
  const float of_x = SHIFT == 2 ? sum_of_x(slot, own.lane) : 0.0f;
  float part[2][4];
  unsigned tokens[4], words[4];
  GroupNumbers numbers;
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const int group = step / kGroupSteps;
    if (step % kGroupSteps == 0) {
      numbers = own.numbers_of(slot, group);
#pragma unroll
      for (int i = 0; i < 4; ++i) part[0][i] = part[1][i] = 0.0f;
    }
    if (step % kLoadSteps == 0) load_words(words, slot.codes, 0, step / kLoadSteps);
    if (step % 2 == 0) load_matrices(tokens, matrix + step * 32);
    unsigned a[4];
    centre(a, words + step % kLoadSteps * kStepWords, numbers);
    multiply_add<T>(part[step % 2], a, tokens[step % 2 * 2], tokens[step % 2 * 2 + 1]);
    if ((step + 1) % kGroupSteps != 0) continue;
    sum.x = fmaf(numbers.scale[0], part[0][0] + part[1][0], sum.x);
    sum.y = fmaf(numbers.scale[1], part[0][2] + part[1][2], sum.y);
    if constexpr (SHIFT == 2) {
      const float here = __shfl_sync(0xffffffffu, of_x, group * (GROUP / kVector));
      sum.x = fmaf(-numbers.minimum[0], here, sum.x);
      sum.y = fmaf(-numbers.minimum[1], here, sum.y);
    }
  }
}

// The strip's rows g and g + 8 times x[inner], of chunks first to last - 1; `ready` is called once,
// when codes are under way and before x is read. `ring` is the warp's own.
template <typename Ready>
__device__ __forceinline__ float2 multiply_strip(const Strip& own, const T* x, int inner, int first,
                                                 int last, Slot (&ring)[CHUNKS], Ready ready) {
  float2 sum = {};
  __syncwarp();  // all lanes are through with what was in the ring
#pragma unroll
  for (int n = 0; n < CHUNKS; ++n) {
    if (first + n < last) own.copy(ring[n], first + n);
  }
  ready();
#pragma unroll
  for (int n = 0; n < CHUNKS; ++n) {
    if (first + n < last) own.copy_x(ring[n], x, first + n, inner);
  }
  commit_copies();
  wait_for_copies<0>();
  int slot = 0;
#pragma unroll 1
  for (int chunk = first; chunk < last; ++chunk) {
    __syncwarp();
    multiply_slot(sum, ring[slot], own);
    __syncwarp();
    if (chunk + CHUNKS < last) {
      own.copy(ring[slot], chunk + CHUNKS);
      own.copy_x(ring[slot], x, chunk + CHUNKS, inner);
    }
    commit_copies();
    wait_for_copies<CHUNKS - 1>();
    slot = slot + 1 == CHUNKS ? 0 : slot + 1;
  }
  return sum;
}

// The factors of a lane's two rows of a strip.
__device__ __forceinline__ float2 factors_of(const float* factors, size_t row, int lane) {
  return make_float2(__ldg(factors + row + lane / 4), __ldg(factors + row + lane / 4 + 8));
}
