// Dequantises a packed weight: out[N K], rounded to T. A block per record.
//
// Macros: those of codes.cuh.
// Demands: inner % 8 == 0; out at a multiple of 16 bytes.

constexpr int kVector = 8;  // of T, in 16 bytes
constexpr int kStride = kChunk + kVector;

extern "C" __global__ void __launch_bounds__(128)
    quantized_dequantize(T* out, const unsigned char* weight, const float* factors, int rows,
                         int inner, int gated) {
  __shared__ __align__(16) T tile[kBlockRows][kStride];
  const int chunk = blockIdx.x, block = blockIdx.y;
  const unsigned char* record =
      weight + (static_cast<size_t>(block) * gridDim.x + chunk) * kRecordBytes;
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const int row = warp * 16 + lane / 4;
  const float* factor = factors + block * kBlockRows + row;
  const float2 own = make_float2(factor[0], factor[8]);
  GroupNumbers numbers = GroupNumbers::of(record, 0, row, own);
  if constexpr (GROUP == 0) {
    numbers.scale[0] = own.x;
    numbers.scale[1] = own.y;
  }
  unsigned words[4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % kLoadSteps == 0) load_words(words, record, warp, step / kLoadSteps);
    if (GROUP && step % kGroupSteps == 0) {
      numbers = GroupNumbers::of(record, step / kGroupSteps, row, own);
    }
    unsigned a[4];
    dequantize(a, words + step % kLoadSteps * kStepWords, numbers);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int column = step * 16 + lane % 4 * 2 + (i < 2 ? 0 : 8);
      *reinterpret_cast<unsigned*>(&tile[row + i % 2 * 8][column]) = a[i];
    }
  }
  __syncthreads();
  constexpr int kVectors = kChunk / kVector;
  const int column = threadIdx.x % kVectors * kVector, half_rows = rows / 2;
  for (int line = threadIdx.x / kVectors; line < kBlockRows; line += 128 / kVectors) {
    const int at = block * kBlockRows + line, gate = at / 16 * 8 + at % 8;
    const bool is_there = gated ? gate < half_rows : at < rows;
    if (!is_there || chunk * kChunk + column >= inner) continue;
    const int to = gated ? gate + (at & 8 ? half_rows : 0) : at;
    *reinterpret_cast<uint4*>(out + static_cast<size_t>(to) * inner + chunk * kChunk + column) =
        *reinterpret_cast<const uint4*>(&tile[line][column]);
  }
}
