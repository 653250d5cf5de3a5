// Latent attention of tiles of 64 lines to all tokens that they see; see mla/wide.cuh.
//
// Macros: those of mla/wide.cuh, SELECTED (0).

// The warp that copies queries and keys.
__device__ __forceinline__ void bring(Shared& shared, const Arguments& of,
                                      const TensorMap& query_map, const TensorMap& key_map) {
  const int lane = threadIdx.x % kWarp;
  const int boxes = kBlock / of.box_tokens;
  Turn<kHalves> halves;
  Turn<kLasts> last;
  int query_parity = 1;
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    if (task.first_block >= task.end) return;
    const int* const table = of.span_tables + task.group.table_row * of.table_stride;
    // Boxes past the last position copy that one's again: it is there, and finite.
    const int last_box = task.last_token / of.box_tokens;
    const auto token_of = [&](int block, int box) {
      return min(block * boxes + box, last_box) * of.box_tokens;
    };
    const auto spans_of = [&](int block) {
      return __ldcg(table + (token_of(block, lane % boxes) >> of.span_shift));
    };
    int spans = spans_of(task.first_block);
    bring_query(shared, halves, query_parity, query_map, task);
    const auto bring = [&](unsigned char* to, int first_tile, int tiles, int block, Barrier* full) {
      if (lane == 0) arrive_expecting(full, tiles * kTile);
      __syncwarp();
      for (int i = lane; i - lane < tiles * boxes; i += kWarp) {
        const int box = i / tiles % boxes, tile = i % tiles;
        const int span = __shfl_sync(0xffffffffu, spans, box);
        if (i >= tiles * boxes) continue;
        const int token = token_of(block, box) & ((1 << of.span_shift) - 1);
        copy_box(to + tile * kTile + box * of.box_tokens * kRowBytes, key_map,
                 (first_tile + tile) * kColumns, token, span, full);
      }
      __syncwarp();
    };
    for (int block = task.first_block; block < task.end; ++block) {
      const int next = spans_of(block + 1);
      for (int side = 0; side < 2; ++side) {
        wait(&shared.half_empty[halves.slot], halves.parity ^ 1);
        Barrier* const full = &shared.half_full[halves.slot];
        bring(shared.halves[halves.slot], side * kHalf, kHalf, block, full);
        halves.next();
      }
      wait(&shared.last_empty[last.slot], last.parity ^ 1);
      bring(shared.lasts[last.slot], kValueTiles, 1, block, &shared.last_full[last.slot]);
      last.next();
      spans = next;
    }
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    mla_wide(T* out, float* lse, float* parts, int4* plan,
             const __grid_constant__ TensorMap query_map, const __grid_constant__ TensorMap key_map,
             const int* span_tables, long long table_stride, int span_shift, int box_tokens,
             float softmax_scale, int num_parts, int lines_of_position, int lanes) {
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
  shared.init(1);
  run(shared, of, [&] {
    if (threadIdx.x < kWarp) bring(shared, of, query_map, key_map);
  });
}
