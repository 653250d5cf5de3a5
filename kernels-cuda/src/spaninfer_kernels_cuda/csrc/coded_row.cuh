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

// Where a pack begins in its row.
template <int kThreads, int kVector>
__device__ __forceinline__ int begin_of(int pack) {
  return static_cast<int>(threadIdx.x + pack * kThreads) * kVector;
}

// Writes the codes of a row whose largest size is `most`, and its scale. Packs beyond `channels`
// are not read.
template <typename Code, int kThreads, int kPacks, int kVector>
__device__ __forceinline__ void store_row_of_size(float most, unsigned char* codes, float* scale,
                                                  const float (&held)[kPacks][kVector],
                                                  int channels) {
  const Code code(-most, most);
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    const int begin = begin_of<kThreads, kVector>(k);
    if (begin >= channels) continue;
    store_codes<kVector>(codes + begin, code, held[k]);
    if (begin == 0) code.keep(scale);
  }
}

// Writes the codes, and their scales at `scales`, `stride` apart: one for every kGroup elements, or
// where that is 0 one for the row. The rest is as above.
template <typename Code, int kThreads, int kGroup, int kPacks, int kVector>
__device__ __forceinline__ void store_coded_row(unsigned char* codes, float* scales, size_t stride,
                                                const float (&held)[kPacks][kVector],
                                                int channels) {
  float most[kPacks], of_row = 0.0f;
#pragma unroll
  for (int k = 0; k < kPacks; ++k) {
    most[k] = begin_of<kThreads, kVector>(k) < channels ? largest_size(held[k]) : 0.0f;
    of_row = fmaxf(of_row, most[k]);
  }
  if constexpr (kGroup == 0) {
    of_row = block_max<kThreads>(of_row);
    store_row_of_size<Code, kThreads>(of_row, codes, scales, held, channels);
  } else {
#pragma unroll
    for (int k = 0; k < kPacks; ++k) {
      const int begin = begin_of<kThreads, kVector>(k);
      const float of_group = lanes_max<kGroup / kVector>(most[k]);
      if (begin >= channels) continue;
      const Code code(-of_group, of_group);
      store_codes<kVector>(codes + begin, code, held[k]);
      if (begin % kGroup == 0) code.keep(scales + begin / kGroup * stride);
    }
  }
}
