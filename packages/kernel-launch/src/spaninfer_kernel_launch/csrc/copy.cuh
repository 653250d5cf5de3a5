// Asynchronous copies from device to shared memory (cp.async, TMA), and the mbarriers in shared
// memory on which their end is awaited.
//
// Needs mma.cuh (shared_address).

// 16 bytes; zeros instead where `is_there` is false, and then `from` is not read. Before Ampere a
// plain copy.
__device__ __forceinline__ void copy_16(void* to, const void* from, bool is_there) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from),
               "r"(is_there ? 16 : 0)
               : "memory");
#else
  *static_cast<uint4*>(to) =
      is_there ? *static_cast<const uint4*>(from) : make_uint4(0u, 0u, 0u, 0u);
#endif
}

// 4 bytes, of which the L1 cache keeps a line.
__device__ __forceinline__ void copy_4(void* to, const void* from) {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(to)), "l"(from)
               : "memory");
#else
  *static_cast<unsigned*>(to) = *static_cast<const unsigned*>(from);
#endif
}

// Ends a group of this thread's copies: everything since the last group.
__device__ __forceinline__ void commit_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until at most the latest kUnderWay groups of this thread are unfinished.
template <int kUnderWay>
__device__ __forceinline__ void wait_for_copies() {
#if __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_group %0;" ::"n"(kUnderWay) : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
// A barrier in shared memory: its phase ends when all arrivals and all announced bytes are there.
using Barrier = unsigned long long;

// One lane of a warp, all of whose lanes call this: the compiler knows that it is one, and keeps
// what it copies in uniform registers, without a loop over lanes.
__device__ __forceinline__ bool is_elected() {
  unsigned elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}

__device__ __forceinline__ void init_barrier(Barrier* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)),
               "r"(arrivals)
               : "memory");
}

// Makes initialised barriers visible to TMA.
__device__ __forceinline__ void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void arrive(Barrier* barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier))
               : "memory");
}

// The same without a branch, which would make the compiler treat code around it as divergent.
__device__ __forceinline__ void arrive_if(bool arrives, Barrier* barrier) {
  asm volatile(
      "{\n"
      ".reg .pred arrives;\n"
      "setp.ne.b32 arrives, %1, 0;\n"
      "@arrives mbarrier.arrive.shared::cta.b64 _, [%0];\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(static_cast<int>(arrives))
      : "memory");
}

// Arrives and announces bytes that copies of the current phase will bring.
__device__ __forceinline__ void arrive_expecting(Barrier* barrier, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
                   shared_address(barrier)),
               "r"(bytes)
               : "memory");
}

// Arrives as soon as all copies of this thread (copy_16) before it are there, without waiting.
__device__ __forceinline__ void arrive_after_copies(Barrier* barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(
                   shared_address(barrier))
               : "memory");
}

// Waits for the end of the phase with this parity: 0 for the first, 1 for the second, and so on.
__device__ __forceinline__ void wait(Barrier* barrier, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Orders this thread's own writes to shared memory before later reads of it by TMA or wgmma.
__device__ __forceinline__ void publish_to_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// An array as the driver encodes it (cuTensorMapEncodeTiled); a kernel's parameter is declared
// `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
  unsigned long long opaque[16];
};

__device__ __forceinline__ void prefetch_map(const TensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

// The box of a 3-dimensional array that begins at (x, y, z), fastest first.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int x, int y, int z,
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4}], [%5];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(shared_address(barrier))
      : "memory");
}

// The box of a 4-dimensional array that begins at (x, y, z, w), fastest first.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int x, int y, int z, int w,
                                         Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], "
      "[%1, {%2, %3, %4, %5}], [%6];" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
}

// The L2 eviction policy of a copy.
using CachePolicy = unsigned long long;

// For data that is read once: evict first.
__device__ __forceinline__ CachePolicy read_once() {
  CachePolicy policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// `bytes` bytes, a multiple of 16, from an address aligned to 16, with a policy.
__device__ __forceinline__ void copy_bytes(void* to, const void* from, int bytes, Barrier* barrier,
                                           CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;" ::"r"(shared_address(to)),
      "l"(from), "r"(bytes), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}

// The same box with a policy.
__device__ __forceinline__ void copy_box(void* to, const TensorMap& map, int x, int y, int z, int w,
                                         Barrier* barrier, CachePolicy policy) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1, {%2, %3, %4, %5}], [%6], %7;" ::"r"(shared_address(to)),
      "l"(&map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier)), "l"(policy)
      : "memory");
}
#endif
