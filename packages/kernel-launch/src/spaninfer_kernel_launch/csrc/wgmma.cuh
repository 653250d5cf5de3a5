// wgmma: products of a warpgroup (four warps, the first one's number a multiple of 4) on Hopper's
// tensor cores: 64 rows of A by N columns of B, which lies in shared memory; asynchronous.
//
// Accumulators are C fragments as in mma.cuh: each warp has 16 of the rows, fragment n the columns
// 8 n .. 8 n + 7. A fragment of A from registers is one of mma.cuh too.
//
// Tiles in shared memory are rows of kRowBytes (64 or 128) in the swizzled order in which TMA
// writes them: the 16-byte parts of a row are permuted by the row's number, so that eight rows use
// all banks. Wider tiles are several of these side by side.
//
// Needs types.cuh, mma.cuh; sm_90a.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The matrix descriptor of a tile. `across` is the distance in bytes of tiles side by side; it
// counts for B whose columns are contiguous, and wider than one tile.
template <int kRowBytes>
__device__ __forceinline__ unsigned long long tile_at(unsigned address, int across) {
  static_assert(kRowBytes == 128 || kRowBytes == 64, "swizzled rows");
  constexpr unsigned long long kSwizzle = kRowBytes == 128 ? 1 : 2;
  return (address >> 4) | static_cast<unsigned long long>(across >> 4) << 16 |
         static_cast<unsigned long long>(8 * kRowBytes >> 4) << 32 | kSwizzle << 62;
}

// wgmma.fence: before the first wgmma after writes to registers that it reads or accumulates in.
__device__ __forceinline__ void wgmma_fence() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

// Ends a group: all wgmmas since the last group.
__device__ __forceinline__ void wgmma_commit() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the latest kUnderWay groups are unfinished.
template <int kUnderWay>
__device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kUnderWay) : "memory");
}

// Keeps the compiler from moving uses of the registers across this point: it does not know that
// wgmmas write them after they are named.
template <int kFragments>
__device__ __forceinline__ void pin(float (&sums)[kFragments][4]) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+f"(sums[n][i])::"memory");
  }
}
template <int kFragments>
__device__ __forceinline__ void pin(int (&sums)[kFragments][4]) {
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) asm volatile("" : "+r"(sums[n][i])::"memory");
  }
}

// acc (+)= A * B, 32 bytes deep.
template <typename Element, int kFragments>
struct Wgmma;
// A thread's accumulators as assembler operands.
#define NAMES_8 "%0, %1, %2, %3"
#define NAMES_16 NAMES_8 ", %4, %5, %6, %7"
#define NAMES_32 NAMES_16 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define NAMES_48 NAMES_32 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define NAMES_64 NAMES_48 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define NAMES_80 NAMES_64 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define NAMES_96 NAMES_80 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define NAMES_112 NAMES_96 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define NAMES_128 NAMES_112 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define NAMES_144 NAMES_128 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define NAMES_160 NAMES_144 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define NAMES_176 NAMES_160 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define NAMES_192 NAMES_176 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define NAMES_208 NAMES_192 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define NAMES_224 NAMES_208 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define NAMES_256 \
  NAMES_224 ", %112, %113, %114, %115, %116, %117, %118, %119" \
  ", %120, %121, %122, %123, %124, %125, %126, %127"

#define FRAGMENT(n) SUM(sums[n][0]), SUM(sums[n][1]), SUM(sums[n][2]), SUM(sums[n][3])
#define SUM(x) "+f"(x)
#define FRAGMENTS_4(n) FRAGMENT(n), FRAGMENT(n + 1), FRAGMENT(n + 2), FRAGMENT(n + 3)
#define FRAGMENTS_8 FRAGMENT(0)
#define FRAGMENTS_16 FRAGMENT(0), FRAGMENT(1)
#define FRAGMENTS_32 FRAGMENTS_4(0)
#define FRAGMENTS_48 FRAGMENTS_32, FRAGMENT(4), FRAGMENT(5)
#define FRAGMENTS_64 FRAGMENTS_32, FRAGMENTS_4(4)
#define FRAGMENTS_80 FRAGMENTS_64, FRAGMENT(8), FRAGMENT(9)
#define FRAGMENTS_96 FRAGMENTS_64, FRAGMENTS_4(8)
#define FRAGMENTS_112 FRAGMENTS_96, FRAGMENT(12), FRAGMENT(13)
#define FRAGMENTS_128 FRAGMENTS_96, FRAGMENTS_4(12)
#define FRAGMENTS_144 FRAGMENTS_128, FRAGMENT(16), FRAGMENT(17)
#define FRAGMENTS_160 FRAGMENTS_128, FRAGMENTS_4(16)
#define FRAGMENTS_176 FRAGMENTS_160, FRAGMENT(20), FRAGMENT(21)
#define FRAGMENTS_192 FRAGMENTS_160, FRAGMENTS_4(20)
#define FRAGMENTS_208 FRAGMENTS_192, FRAGMENT(24), FRAGMENT(25)
#define FRAGMENTS_224 FRAGMENTS_192, FRAGMENTS_4(24)
#define FRAGMENTS_256 FRAGMENTS_224, FRAGMENTS_4(28)

// The numbers of the operands after the accumulators are spelled out: macros cannot add.
#define PRODUCT(Element, NAME, N, A0, A1, A2, A3, A4, A5)                                          \
  template <>                                                                                      \
  struct Wgmma<Element, N / 8> {                                                                 \
    /* A from shared memory, B's depth contiguous. `adds` is false for the first one of a sum. */  \
    static __device__ __forceinline__ void of_tiles(float (&sums)[N / 8][4], unsigned long long a, \
                                                    unsigned long long b, int adds) {              \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, " A2 ", 0;\n"                                    \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES_##N "}, " A0  \
          ", " A1 ", adds, 1, 1, 0, 0;\n}"                                                         \
          : FRAGMENTS_##N                                                                          \
          : "l"(a), "l"(b), "r"(adds));                                                            \
    }                                                                                              \
    /* A from shared memory, its columns contiguous (a tile holds A transposed); else the same. */ \
    static __device__ __forceinline__ void of_columns(                                             \
        float (&sums)[N / 8][4], unsigned long long a, unsigned long long b) {                     \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nmov.pred adds, 1;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES_##N "}, " A0  \
          ", " A1 ", adds, 1, 1, 1, 0;\n}"                                                         \
          : FRAGMENTS_##N                                                                          \
          : "l"(a), "l"(b));                                                                       \
    }                                                                                              \
    /* A from shared memory, its depth contiguous, B's columns contiguous. */                      \
    static __device__ __forceinline__ void of_tile_and_columns(                                    \
        float (&sums)[N / 8][4], unsigned long long a, unsigned long long b) {                     \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nmov.pred adds, 1;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES_##N "}, " A0  \
          ", " A1 ", adds, 1, 1, 0, 1;\n}"                                                         \
          : FRAGMENTS_##N                                                                          \
          : "l"(a), "l"(b));                                                                       \
    }                                                                                              \
    /* A from registers, B's columns contiguous. */                                                \
    static __device__ __forceinline__ void of_registers(float (&sums)[N / 8][4],                   \
                                                        const unsigned (&a)[4],                    \
                                                        unsigned long long b) {                    \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nmov.pred adds, 1;\n"                                               \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES_##N "}, {" A0 \
          ", " A1 ", " A2 ", " A3 "}, " A4 ", adds, 1, 1, 1;\n}"                                   \
          : FRAGMENTS_##N                                                                          \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                   \
    }                                                                                              \
    /* A from registers, B's depth contiguous. `adds` is false for the first one of a sum. */      \
    static __device__ __forceinline__ void of_rows(float (&sums)[N / 8][4],                        \
                                                   const unsigned (&a)[4], unsigned long long b,   \
                                                   int adds) {                                     \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, " A5 ", 0;\n"                                    \
          "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME " {" NAMES_##N "}, {" A0 \
          ", " A1 ", " A2 ", " A3 "}, " A4 ", adds, 1, 1, 0;\n}"                                   \
          : FRAGMENTS_##N                                                                          \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                        \
    }                                                                                              \
  };
PRODUCT(half, "f16", 8, "%4", "%5", "%6", "%7", "%8", "%9")
PRODUCT(bfloat16, "bf16", 8, "%4", "%5", "%6", "%7", "%8", "%9")
PRODUCT(half, "f16", 16, "%8", "%9", "%10", "%11", "%12", "%13")
PRODUCT(bfloat16, "bf16", 16, "%8", "%9", "%10", "%11", "%12", "%13")
PRODUCT(half, "f16", 32, "%16", "%17", "%18", "%19", "%20", "%21")
PRODUCT(bfloat16, "bf16", 32, "%16", "%17", "%18", "%19", "%20", "%21")
PRODUCT(half, "f16", 48, "%24", "%25", "%26", "%27", "%28", "%29")
PRODUCT(bfloat16, "bf16", 48, "%24", "%25", "%26", "%27", "%28", "%29")
PRODUCT(half, "f16", 64, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCT(bfloat16, "bf16", 64, "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCT(half, "f16", 80, "%40", "%41", "%42", "%43", "%44", "%45")
PRODUCT(bfloat16, "bf16", 80, "%40", "%41", "%42", "%43", "%44", "%45")
PRODUCT(half, "f16", 96, "%48", "%49", "%50", "%51", "%52", "%53")
PRODUCT(bfloat16, "bf16", 96, "%48", "%49", "%50", "%51", "%52", "%53")
PRODUCT(half, "f16", 112, "%56", "%57", "%58", "%59", "%60", "%61")
PRODUCT(bfloat16, "bf16", 112, "%56", "%57", "%58", "%59", "%60", "%61")
PRODUCT(half, "f16", 128, "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCT(bfloat16, "bf16", 128, "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCT(half, "f16", 144, "%72", "%73", "%74", "%75", "%76", "%77")
PRODUCT(bfloat16, "bf16", 144, "%72", "%73", "%74", "%75", "%76", "%77")
PRODUCT(half, "f16", 160, "%80", "%81", "%82", "%83", "%84", "%85")
PRODUCT(bfloat16, "bf16", 160, "%80", "%81", "%82", "%83", "%84", "%85")
PRODUCT(half, "f16", 176, "%88", "%89", "%90", "%91", "%92", "%93")
PRODUCT(bfloat16, "bf16", 176, "%88", "%89", "%90", "%91", "%92", "%93")
PRODUCT(half, "f16", 192, "%96", "%97", "%98", "%99", "%100", "%101")
PRODUCT(bfloat16, "bf16", 192, "%96", "%97", "%98", "%99", "%100", "%101")
PRODUCT(half, "f16", 208, "%104", "%105", "%106", "%107", "%108", "%109")
PRODUCT(bfloat16, "bf16", 208, "%104", "%105", "%106", "%107", "%108", "%109")
PRODUCT(half, "f16", 224, "%112", "%113", "%114", "%115", "%116", "%117")
PRODUCT(bfloat16, "bf16", 224, "%112", "%113", "%114", "%115", "%116", "%117")
PRODUCT(half, "f16", 256, "%128", "%129", "%130", "%131", "%132", "%133")
PRODUCT(bfloat16, "bf16", 256, "%128", "%129", "%130", "%131", "%132", "%133")

#undef PRODUCT

// Products of codes: A from shared memory or registers, B from shared memory, the depth of both
// contiguous.
#define CODE_PRODUCT(Element, Sum, TYPES, SIGNS, N, A0, A1, A2, A3, A4, A5)                        \
  template <>                                                                                      \
  struct Wgmma<Element, N / 8> {                                                                   \
    static __device__ __forceinline__ void of_tiles(Sum (&sums)[N / 8][4], unsigned long long a,   \
                                                    unsigned long long b, int adds) {              \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, " A2 ", 0;\n"                                    \
          "wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {" NAMES_##N "}, " A0 ", " A1      \
          ", adds" SIGNS ";\n}"                                                                    \
          : FRAGMENTS_##N                                                                          \
          : "l"(a), "l"(b), "r"(adds));                                                            \
    }                                                                                              \
    static __device__ __forceinline__ void of_rows(Sum (&sums)[N / 8][4], const unsigned (&a)[4],  \
                                                   unsigned long long b, int adds) {               \
      asm volatile(                                                                                \
          "{\n.reg .pred adds;\nsetp.ne.b32 adds, " A5 ", 0;\n"                                    \
          "wgmma.mma_async.sync.aligned.m64n" #N "k32." TYPES " {" NAMES_##N "}, {" A0 ", " A1     \
          ", " A2 ", " A3 "}, " A4 ", adds" SIGNS ";\n}"                                           \
          : FRAGMENTS_##N                                                                          \
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(adds));                        \
    }                                                                                              \
  };
#define E4M3_PRODUCT(...) CODE_PRODUCT(e4m3, float, "f32.e4m3.e4m3", ", 1, 1", __VA_ARGS__)
#define INT8_PRODUCT(...) CODE_PRODUCT(int8, int, "s32.s8.s8", "", __VA_ARGS__)
E4M3_PRODUCT(8, "%4", "%5", "%6", "%7", "%8", "%9")
E4M3_PRODUCT(16, "%8", "%9", "%10", "%11", "%12", "%13")
E4M3_PRODUCT(32, "%16", "%17", "%18", "%19", "%20", "%21")
E4M3_PRODUCT(48, "%24", "%25", "%26", "%27", "%28", "%29")
E4M3_PRODUCT(64, "%32", "%33", "%34", "%35", "%36", "%37")
E4M3_PRODUCT(96, "%48", "%49", "%50", "%51", "%52", "%53")
E4M3_PRODUCT(112, "%56", "%57", "%58", "%59", "%60", "%61")
E4M3_PRODUCT(128, "%64", "%65", "%66", "%67", "%68", "%69")
E4M3_PRODUCT(144, "%72", "%73", "%74", "%75", "%76", "%77")
E4M3_PRODUCT(160, "%80", "%81", "%82", "%83", "%84", "%85")
E4M3_PRODUCT(192, "%96", "%97", "%98", "%99", "%100", "%101")
E4M3_PRODUCT(208, "%104", "%105", "%106", "%107", "%108", "%109")
E4M3_PRODUCT(224, "%112", "%113", "%114", "%115", "%116", "%117")
E4M3_PRODUCT(256, "%128", "%129", "%130", "%131", "%132", "%133")
#undef SUM
#define SUM(x) "+r"(x)
INT8_PRODUCT(8, "%4", "%5", "%6", "%7", "%8", "%9")
INT8_PRODUCT(16, "%8", "%9", "%10", "%11", "%12", "%13")
INT8_PRODUCT(32, "%16", "%17", "%18", "%19", "%20", "%21")
INT8_PRODUCT(48, "%24", "%25", "%26", "%27", "%28", "%29")
INT8_PRODUCT(64, "%32", "%33", "%34", "%35", "%36", "%37")
INT8_PRODUCT(96, "%48", "%49", "%50", "%51", "%52", "%53")
INT8_PRODUCT(112, "%56", "%57", "%58", "%59", "%60", "%61")
INT8_PRODUCT(128, "%64", "%65", "%66", "%67", "%68", "%69")
INT8_PRODUCT(144, "%72", "%73", "%74", "%75", "%76", "%77")
INT8_PRODUCT(160, "%80", "%81", "%82", "%83", "%84", "%85")
INT8_PRODUCT(192, "%96", "%97", "%98", "%99", "%100", "%101")
INT8_PRODUCT(208, "%104", "%105", "%106", "%107", "%108", "%109")
INT8_PRODUCT(224, "%112", "%113", "%114", "%115", "%116", "%117")
INT8_PRODUCT(256, "%128", "%129", "%130", "%131", "%132", "%133")

#undef INT8_PRODUCT
#undef E4M3_PRODUCT
#undef CODE_PRODUCT
#undef SUM
#endif
