// A row in 8-bit codes, from the threads of a block that hold it in packs: thread t has packs t,
// t + kThreads, and so on, of kVector elements.
//
// Needs types.cuh, reduce.cuh, codes.cuh.

template <int kVector>
__device__ __forceinline__ float largest_size(const float (&pack)[kVector]) {
  float most = 0.0f;
#pragma unroll
  for (int v = 0; v < kVector; ++v) most = fmaxf(most, fabsf(pack[v]));
  return most;
}

// Writes the codes, and their scales at `scales`, `stride` apart: one for every kGroup elements, or
// where that is 0 one for the row. Packs beyond `channels` are not read.
template <typename Code, int kThreads, int kGroup, int kPacks, int kVector>
__device__ __forceinline__ void store_coded_row(unsigned char* codes, float* scales, size_t stride,
                                                const float (&held)[kPacks][kVector],
                                                int channels) {
  const auto begin = [](int k) { return static_cast<int>(threadIdx.x + k * kThreads) * kVector; };
  float most[kPacks], of_row = 0.0f;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    most[k] = begin(k) < channels ? largest_size(held[k]) : 0.0f;
    of_row = fmaxf(of_row, most[k]);
  }
  if constexpr (kGroup == 0) of_row = block_max<kThreads>(of_row);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    float size = of_row;
    if constexpr (kGroup > 0) size = lanes_max<kGroup / kVector>(most[k]);
    if (begin(k) >= channels) continue;
    const Code code(-size, size);
    store_codes<kVector>(codes + begin(k), code, held[k]);
    if (kGroup > 0 && begin(k) % kGroup == 0) code.keep(scales + begin(k) / kGroup * stride);
    if (kGroup == 0 && begin(k) == 0) code.keep(scales);
  }
}
