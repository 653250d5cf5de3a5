// Packs codes of a weight, one per byte, into records (codes.cuh). A block per record.
//
// Macros: those of codes.cuh.
// Demands: inner even, and a multiple of 4 for x in e4m3; records, codes and numbers dense; scales
//          (and shifts) [rows][groups] of 16 bits each.

// The weight's row at `row` of its records, or -1: with `gated`, 16 rows are 8 of the gate, in the
// upper half of the weight, and their 8 of up.
__device__ __forceinline__ int row_at(int row, int rows, int gated) {
  if (!gated) return row < rows ? row : -1;
  const int gate = row / 16 * 8 + row % 8, half_rows = rows / 2;
  return gate < half_rows ? gate + (row & 8 ? half_rows : 0) : -1;
}

// Four codes from `column` on, each with a sign in bit 7 and three bits of its size.
__device__ __forceinline__ unsigned stored_bytes(const unsigned char* row, int column, int inner) {
  const bool is_there = row && column < inner;
  const unsigned codes = is_there ? *reinterpret_cast<const unsigned*>(row + column) : 0;
  const unsigned negative = ~codes >> 3 & 0x01010101u;
  return ((codes ^ negative * 7) & 0x07070707u) | negative << 7;
}

extern "C" __global__ void __launch_bounds__(128)
    quantized_pack(unsigned char* records, const unsigned char* codes, const unsigned short* scales,
                   const unsigned short* shifts, int rows, int inner, int groups, int gated) {
  const int chunk = blockIdx.x, block = blockIdx.y;
  unsigned char* record =
      records + (static_cast<size_t>(block) * gridDim.x + chunk) * kRecordBytes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const unsigned char* row_codes[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = row_at(block * kBlockRows + warp * 16 + lane / 4 + 8 * i, rows, gated);
    row_codes[i] = row < 0 ? nullptr : codes + static_cast<size_t>(row) * inner;
  }
#pragma unroll
  for (int load = 0; load < kLoads; ++load) {
    unsigned words[4] = {};
#pragma unroll
    for (int n = 0; n < kLoadSteps; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (kInCodes) {
          const int column = chunk * kChunk + (load * kLoadSteps + n) * kStepColumns + i / 2 * 16;
          const unsigned bytes = stored_bytes(row_codes[i % 2], column + lane % 4 * 4, inner);
          words[n * 2 + i / 2] |= i % 2 ? __funnelshift_l(bytes, bytes, 4) : bytes;
          continue;
        }
        const int column =
            chunk * kChunk + (load * kLoadSteps + n) * 16 + lane % 4 * 2 + (i < 2 ? 0 : 8);
        const unsigned char* from = row_codes[i % 2];
        unsigned pair = 0;
        if (from && column < inner) {
          pair = *reinterpret_cast<const unsigned short*>(from + column);
        }
        if constexpr (BITS == 4) {
          words[n] |= (pair & 15u) << 4 * i | (pair >> 8 & 15u) << (16 + 4 * i);
        } else {
          words[n * 2 + i / 2] |= pair << i % 2 * 16;
        }
      }
    }
    reinterpret_cast<uint4*>(record)[(warp * kLoads + load) * kWarp + lane] =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
  auto* numbers = reinterpret_cast<unsigned short*>(record + kCodeBytes);
  for (int n = threadIdx.x; n < kScaleGroups * kBlockRows; n += 128) {
    const int row = row_at(block * kBlockRows + n % kBlockRows, rows, gated);
    const int group = chunk * kScaleGroups + n / kBlockRows;
    const bool is_there = row >= 0 && group < groups;
    const size_t from = static_cast<size_t>(row) * groups + group;
    numbers[n] = is_there ? scales[from] : 0;
    if (SHIFT) numbers[kScaleGroups * kBlockRows + n] = is_there ? shifts[from] : 0;
  }
}
