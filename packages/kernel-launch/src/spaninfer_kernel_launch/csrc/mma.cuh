// The tensor cores as a warp reaches them: fragments from shared memory, products of 16-bit floats
// and of 8-bit codes.
//
// Lane l of a warp, with row g = l / 4 and t = l % 4, holds of
//   a 16 x 16 fragment of A   (g, 2t..) (g + 8, 2t..) (g, 2t + 8..) (g + 8, 2t + 8..)   4 x 2
//   a 16 x 8 fragment of B    (2t.., g) (2t + 8.., g)                                   2 x 2
//   a 16 x 8 fragment of C    (g, 2t) (g, 2t + 1) (g + 8, 2t) (g + 8, 2t + 1)           4, float32
// so that two adjacent fragments of C, rounded, are one of A. Of codes, two take the place of one
// float: a fragment of A or B is 32 deep, of the same bytes.
//
// Needs types.cuh.

__device__ __forceinline__ unsigned shared_address(const void* pointer) {
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of 16-bit elements; lanes 8i .. 8i + 7 give the rows (16 bytes) of matrix i.
__device__ __forceinline__ void load_matrices(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

// The same, each matrix transposed.
__device__ __forceinline__ void load_matrices_transposed(unsigned (&to)[4], unsigned row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(row)
               : "memory");
}

#if __CUDA_ARCH__ >= 900
// Four 8 x 8 matrices to shared memory; lanes 8i .. 8i + 7 give the places of the rows of matrix i.
__device__ __forceinline__ void store_matrices(unsigned row, const unsigned (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}
#endif

// 8-bit codes, and what their products are summed in.
struct e4m3 {
  unsigned char bits;
};
using int8 = signed char;

template <typename Element>
struct SumType {
  using Type = float;
};
template <>
struct SumType<int8> {
  using Type = int;
};
template <typename Element>
using SumOf = typename SumType<Element>::Type;

// Two floats rounded, the first one in the low half.
template <typename Element>
__device__ __forceinline__ unsigned pack_pair(float low, float high);

template <>
__device__ __forceinline__ unsigned pack_pair<half>(float low, float high) {
  const half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}
template <>
__device__ __forceinline__ unsigned pack_pair<bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const unsigned*>(&pair);
}

// sum += a[16 x 16] * b[16 x 8], of codes a[16 x 32] * b[32 x 8].
template <typename Element>
__device__ __forceinline__ void multiply_add(SumOf<Element> (&sum)[4], const unsigned (&a)[4],
                                             unsigned b0, unsigned b1);

template <>
__device__ __forceinline__ void multiply_add<half>(float (&sum)[4], const unsigned (&a)[4],
                                                   unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Turing multiplies half as deep: the left and the right half of A in turn.
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%8}, "
      "{%0, %1, %2, %3};\n"
      "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%6, %7}, {%9}, "
      "{%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ void multiply_add<bfloat16>(float (&sum)[4], const unsigned (&a)[4],
                                                       unsigned b0, unsigned b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

template <>
__device__ __forceinline__ void multiply_add<int8>(int (&sum)[4], const unsigned (&a)[4],
                                                   unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 800
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // Turing multiplies a quarter of it: the upper and the lower half of A, left and right in turn.
  asm volatile(
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%4}, {%8}, {%0, %1};\n"
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%0, %1}, {%6}, {%9}, {%0, %1};\n"
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%2, %3}, {%5}, {%8}, {%2, %3};\n"
      "mma.sync.aligned.m8n8k16.row.col.s32.s8.s8.s32 {%2, %3}, {%7}, {%9}, {%2, %3};"
      : "+r"(sum[0]), "+r"(sum[1]), "+r"(sum[2]), "+r"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#endif
}

// Codes 0 and 2 of four as halves, exactly; 1 and 3 of `codes >> 8`.
__device__ __forceinline__ unsigned halves_of(unsigned codes) {
  // As bits of a half, an e4m3 has an exponent that is 8 too small.
  const unsigned bits = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 7;
  const half2 scaled =
      __hmul2(*reinterpret_cast<const half2*>(&bits), __floats2half2_rn(256.0f, 256.0f));
  return *reinterpret_cast<const unsigned*>(&scaled);
}

template <>
__device__ __forceinline__ void multiply_add<e4m3>(float (&sum)[4], const unsigned (&a)[4],
                                                   unsigned b0, unsigned b1) {
#if __CUDA_ARCH__ >= 890
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
  // As halves, which hold them exactly: of each four codes first two, then the others.
#pragma unroll
  for (int shift = 0; shift <= 8; shift += 8) {
    const unsigned halves[4] = {halves_of(a[0] >> shift), halves_of(a[1] >> shift),
                                halves_of(a[2] >> shift), halves_of(a[3] >> shift)};
    multiply_add<half>(sum, halves, halves_of(b0 >> shift), halves_of(b1 >> shift));
  }
#endif
}
