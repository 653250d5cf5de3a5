// Latent attention of tiles of 16 or 32 lines over fp8 latents on Hopper, absorbed.
//
// A warpgroup of producers turns codes into floats on their way to shared memory, which hold them
// exactly; the scales, one per token, go there beside them: scores and weights are multiplied by
// them. A thread has a block's codes in flight while it waits for a buffer.
//
// Macros: those of mla/narrow.cu, CODES (1).

// Codes 0 and 2 of four as a pair of floats, exactly; 1 and 3 of `codes >> 8`.
__device__ __forceinline__ unsigned floats_of(unsigned codes, half) { return halves_of(codes); }
__device__ __forceinline__ unsigned floats_of(unsigned codes, bfloat16) {
  // As bits of a bfloat16, an e4m3 has an exponent that is 120 too small.
  const unsigned bits = (codes & 0x00800080u) << 8 | (codes & 0x007f007fu) << 4;
  const __nv_bfloat162 factor = __floats2bfloat162_rn(0x1p120f, 0x1p120f);
  const __nv_bfloat162 scaled = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits), factor);
  return *reinterpret_cast<const unsigned*>(&scaled);
}

// Four codes as floats in order.
__device__ __forceinline__ uint2 floats_in_order(unsigned codes) {
  const unsigned even = floats_of(codes, T{}), odd = floats_of(codes >> 8, T{});
  return make_uint2(__byte_perm(even, odd, 0x5410), __byte_perm(even, odd, 0x7632));
}

// The latents of a layer: addresses of the first span's codes and scales, bytes to the next span.
struct Codes {
  const unsigned char *codes, *scales;
  long long span_stride;
};

// Takes or leaves registers of a thread, which is launched with 168.
template <int kCount>
__device__ __forceinline__ void keep_registers() {
  if constexpr (kCount > 168) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
  } else {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
  }
}

// A warp has 16 tokens of a block: a lane 16 codes of token l / 4 of eight, in each tile.
__device__ __forceinline__ void bring_codes(Shared& shared, const Arguments& of,
                                            const Codes& from_spans, const TensorMap& query_map) {
  constexpr int kEights = kBlock / 4 / 8, kAhead = TILE == 16 ? kEights : 1;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
  const int row = warp * kBlock / 4 + lane / 4;
  Barriers& barriers = shared.barriers;
  int parities = 3, query_parity = 1;  // a bit for each buffer
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    if (task.first_block >= task.end) return;
    const int* const table = of.span_tables + task.group.table_row * of.table_stride;
    // Tokens past the last one are that one again: it is there, and finite.
    const auto token_of = [&](int block, int eight) {
      return min(block * kBlock + row + 8 * eight, task.last_token);
    };
    const auto span_of = [&](int block, int eight) {
      return __ldcg(table + (token_of(block, eight) >> of.span_shift));
    };
    uint4 codes[kAhead][kKeyTiles];
    float numbers[kAhead];
    int spans[kEights];
#pragma unroll
    for (int e = 0; e < kEights; ++e) spans[e] = span_of(task.first_block, e);
    const auto load = [&](int block, int e) {
      const int token = token_of(block, e) & ((1 << of.span_shift) - 1);
      const long long span = spans[e] * from_spans.span_stride;
      const unsigned char* const from = from_spans.codes + span + token * KEY_SIZE + lane % 4 * 16;
#pragma unroll
      for (int tile = 0; tile < kKeyTiles; ++tile) {
        codes[e % kAhead][tile] = __ldcg(reinterpret_cast<const uint4*>(from + tile * kColumns));
      }
      numbers[e % kAhead] =
          __ldcg(reinterpret_cast<const float*>(from_spans.scales + span) + token);
      spans[e] = span_of(block + 1, e);
    };
#pragma unroll
    for (int e = 0; e < kAhead; ++e) load(task.first_block, e);
    if (warp == 0) {
      wait(&barriers.query_empty, query_parity);
      if (lane == 0) bring_query(shared.buffers.query, barriers, query_map, task);
      __syncwarp();
    }
    query_parity ^= 1;
    for (int block = task.first_block; block < task.end; ++block) {
      const int which = (block - task.first_block) % 2;
      wait(&barriers.empty[which][0], parities >> which & 1);
      wait(&barriers.empty[which][1], parities >> which & 1);
      parities ^= 1 << which;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const int at = row + 8 * e;
        unsigned char* const to = shared.buffers.keys[which] + at * kRowBytes;
#pragma unroll
        for (int tile = 0; tile < kKeyTiles; ++tile) {
          const uint4 code = codes[e % kAhead][tile];
          const uint2 a = floats_in_order(code.x), b = floats_in_order(code.y);
          const uint2 c = floats_in_order(code.z), d = floats_in_order(code.w);
          const int place = 2 * (lane % 4) ^ at % 8;
          *reinterpret_cast<uint4*>(to + tile * kTile + place * 16) =
              make_uint4(a.x, a.y, b.x, b.y);
          *reinterpret_cast<uint4*>(to + tile * kTile + (place ^ 1) * 16) =
              make_uint4(c.x, c.y, d.x, d.y);
        }
        if (lane % 4 == 0) shared.scales[which][at] = numbers[e % kAhead];
        const int next = e + kAhead;
        if (next < kEights || block + 1 < task.end) load(block + next / kEights, next % kEights);
      }
      publish_to_async();
      __syncwarp();
      arrive_if(lane % 4 == 0, &barriers.full[which][0]);
      arrive_if(lane % 4 == 0, &barriers.full[which][1]);
    }
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    mla_codes(T* out, float* lse, float* parts, int4* plan,
              const __grid_constant__ TensorMap query_map, const unsigned char* codes,
              const unsigned char* scales, long long span_stride, const int* span_tables,
              long long table_stride, int span_shift, float softmax_scale, int num_parts,
              int lines_of_position, int lanes) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Arguments of{out,
                     lse,
                     parts,
                     {plan, num_parts},
                     span_tables,
                     table_stride,
                     span_shift,
                     0,
                     lines_of_position,
                     lanes,
                     softmax_scale * kLog2e};
  shared.barriers.init(kGroup / 4);
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  if (group == 0) {
    keep_registers<LEAVES>();
    bring_codes(shared, of, {codes, scales, span_stride}, query_map);
  } else {
    keep_registers<KEEPS>();
    consume(shared, of, group - 1);
  }
  let_next_kernel_start();
}
