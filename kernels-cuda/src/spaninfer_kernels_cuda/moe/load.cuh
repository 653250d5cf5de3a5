// Loads of 16 bytes, or zeros where there is nothing to load, and their products. Loads have a
// predicate and no branch, so that those which wait together lie in one piece of code.
//
// Macros: T (element).
// Needs types.cuh.

constexpr int kVector = 8;

using Load = Pack<T, kVector>;

#define LOAD_IF(kind)                                                        \
  uint4 bits;                                                                \
  asm volatile(                                                              \
      "{\n"                                                                  \
      ".reg .pred exists;\n"                                                 \
      "setp.ne.s32 exists, %5, 0;\n"                                         \
      "mov.u32 %0, 0;\nmov.u32 %1, 0;\nmov.u32 %2, 0;\nmov.u32 %3, 0;\n"     \
      "@exists " kind ".v4.u32 {%0, %1, %2, %3}, [%4];\n"                    \
      "}"                                                                    \
      : "=&r"(bits.x), "=&r"(bits.y), "=&r"(bits.z), "=&r"(bits.w)           \
      : "l"(from), "r"(static_cast<int>(exists))                             \
      : "memory");                                                           \
  return *reinterpret_cast<const Load*>(&bits)

__device__ __forceinline__ Load load_if(const T* from, bool exists) { LOAD_IF("ld.global"); }

// Weights: never written, and each is read once by an SM.
__device__ __forceinline__ Load stream_if(const T* from, bool exists) {
  LOAD_IF("ld.global.nc.L1::no_allocate");
}

__device__ __forceinline__ float dot(const Load& weight, const Load& x, float sum) {
#pragma unroll
  for (int v = 0; v < kVector; ++v) sum = fmaf(to_float(weight.at[v]), to_float(x.at[v]), sum);
  return sum;
}
