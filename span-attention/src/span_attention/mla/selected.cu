// Latent attention of tiles of 64 lines to selected tokens of their sequences; see mla/wide.cuh.
//
// A slice is a token, and sees the first of its row of positions. A warpgroup copies the keys, each
// of its warps 16 of a block: lanes that copy one tile of a key have adjacent 16 bytes of it.
//
// Macros: those of mla/wide.cuh, SELECTED (1).

// The keys of a layer and which of them each token reads; strides are bytes.
struct Selection {
  const unsigned char* keys;
  long long span_stride;
  int token_stride;
  const int* positions;  // [T most]
  int most, heads;
};

__device__ __forceinline__ void bring_selected(Buffers& buffers, Barriers& barriers,
                                               const Arguments& of, const Selection& from,
                                               const TensorMap& query_map) {
  constexpr int kRows = kBlock / 4, kParts = kRowBytes / 16, kAtOnce = kWarp / kParts;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = lane % kParts;
  int parity[2] = {1, 1}, query_parity = 1;
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    if (task.first_block >= task.end) return;
    const int* const table = of.span_tables + task.group.table_row * of.table_stride;
    const int* const positions =
        from.positions + static_cast<long long>(task.line / from.heads) * from.most;
    // A lane finds a key of the warp's: 16 of one block, and 16 of the next. Behind the last one
    // that one again: it is there, and finite.
    const auto find_key = [&](int block) {
      const int number = (block + lane / kRows) * kBlock + warp * kRows + lane % kRows;
      const int position = __ldcg(positions + min(number, task.last_token));
      const long long span = __ldcg(table + (position >> of.span_shift));
      const int token = position & ((1 << of.span_shift) - 1);
      return reinterpret_cast<unsigned long long>(from.keys + span * from.span_stride +
                                                  token * from.token_stride);
    };
    const auto bring = [&](int which, int side, unsigned long long found) {
      wait(&barriers.empty[which][side], parity[which]);
#pragma unroll 2
      for (int first = 0; first < kRows; first += kAtOnce) {
        const int row = first + lane / kParts, at = warp * kRows + row;
        const unsigned long long key = __shfl_sync(0xffffffffu, found, which * kRows + row);
        const auto* const source = reinterpret_cast<const unsigned char*>(key) + part * 16;
        unsigned char* const to =
            buffers.keys[which] + at * kRowBytes + (part ^ at % kParts) * 16;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const int tile = side * kHalf + i;
          copy_16(to + tile * kTile, source + tile * kRowBytes, true);
        }
        if (which != side) {
          copy_16(to + kValueTiles * kTile, source + kValueTiles * kRowBytes, true);
        }
      }
      arrive_after_copies(&barriers.full[which][side]);
    };
    unsigned long long found = find_key(task.first_block);
    if (warp == 0) {
      wait(&barriers.query_empty, query_parity);
      if (lane == 0) bring_query(buffers.query, barriers, query_map, task);
      __syncwarp();
    }
    query_parity ^= 1;
    for (int block = task.first_block; block < task.end; block += 2) {
      const bool has_second = block + 1 < task.end;
      const unsigned long long next = find_key(block + 2);
      bring(0, 0, found);
      if (has_second) bring(1, 1, found);
      bring(0, 1, found);
      if (has_second) bring(1, 0, found);
      parity[0] ^= 1;
      if (has_second) parity[1] ^= 1;
      found = next;
    }
  });
  wait_for_copies<0>();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    mla_selected(T* out, float* lse, float* parts, int4* plan,
                 const __grid_constant__ TensorMap query_map, const unsigned char* keys,
                 long long span_stride, int token_stride, const int* span_tables,
                 long long table_stride, int span_shift, const int* selected, int most, int heads,
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
                     0,
                     lines_of_position,
                     lanes,
                     softmax_scale * kLog2e};
  const Selection from{keys, span_stride, token_stride, selected, most, heads};
  shared.barriers.init(kGroup);
  run(shared, of, [&] {
    bring_selected(shared.buffers, shared.barriers, of, from, query_map);
  });
}
