// Latent attention of tiles of 16 or 32 lines on Hopper, absorbed: few heads, bound by memory.
//
// Macros: T (half or bfloat16), KEY_SIZE, VALUE_SIZE, TILE (16 or 32), LSE (0 or 1), KEEPS, LEAVES
//         (registers of a thread of a consumer, of a producer), CODES (0).

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    mla_narrow(T* out, float* lse, float* parts, int4* plan,
               const __grid_constant__ TensorMap query_map,
               const __grid_constant__ TensorMap key_map, const int* span_tables,
               long long table_stride, int span_shift, int box_tokens, float softmax_scale,
               int num_parts, int lines_of_position, int lanes) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Arguments of{out,
                     lse,
                     parts,
                     {plan, num_parts},
                     span_tables,
                     table_stride,
                     span_shift,
                     box_tokens,
                     lines_of_position,
                     lanes,
                     softmax_scale * kLog2e};
  shared.barriers.init(1);
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEAVES));
    const int warp = threadIdx.x / kWarp;
    if (warp == 0) bring_keys(shared.buffers.keys, shared.barriers, of, key_map);
    if (warp == 1) bring_queries(shared.buffers.query, shared.barriers, of, query_map);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    consume(shared, of, group - 1);
  }
  let_next_kernel_start();
}
