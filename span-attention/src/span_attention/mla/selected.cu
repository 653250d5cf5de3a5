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

__device__ __forceinline__ void bring_selected(Shared& shared, const Arguments& of,
                                               const Selection& from,
                                               const TensorMap& query_map) {
  constexpr int kRows = kBlock / 4, kParts = kRowBytes / 16, kAtOnce = kWarp / kParts;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = lane % kParts;
  Turn<kHalves> halves;
  Turn<kLasts> last;
  int query_parity = 1;
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
    unsigned long long found = find_key(task.first_block), next = found;
    bring_query(shared, halves, query_parity, query_map, task);
    for (int block = task.first_block; block < task.end; ++block) {
      const int which = (block - task.first_block) % 2;
      if (which == 0) found = next, next = find_key(block + 2);
      // The warp's keys: `tiles` of each from one on.
      const auto bring = [&](unsigned char* to, int first_tile, int tiles, Barrier* full) {
#pragma unroll 2
        for (int first = 0; first < kRows; first += kAtOnce) {
          const int row = first + lane / kParts, at = warp * kRows + row;
          const unsigned long long key = __shfl_sync(0xffffffffu, found, which * kRows + row);
          const auto* const source =
              reinterpret_cast<const unsigned char*>(key) + first_tile * kRowBytes + part * 16;
          unsigned char* const place = to + at * kRowBytes + (part ^ at % kParts) * 16;
#pragma unroll
          for (int tile = 0; tile < tiles; ++tile) {
            copy_16(place + tile * kTile, source + tile * kRowBytes, true);
          }
        }
        arrive_after_copies(full);
      };
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        wait(&shared.half_empty[halves.slot], halves.parity ^ 1);
        bring(shared.halves[halves.slot], side * kHalf, kHalf, &shared.half_full[halves.slot]);
        halves.next();
      }
      wait(&shared.last_empty[last.slot], last.parity ^ 1);
      bring(shared.lasts[last.slot], kValueTiles, 1, &shared.last_full[last.slot]);
      last.next();
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
  shared.init(kGroup);
  run(shared, of, [&] { bring_selected(shared, of, from, query_map); });
}
