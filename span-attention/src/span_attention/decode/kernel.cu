// Attention of one query per request over its keys and values in spans.
//
// A warp computes the tiles of tokens that the plan gives it (decode_plan.cuh) one after another,
// across the ends of items: an item is the query heads of one request that share a key head. The
// next tile's loads are always in flight, the next item's too, so that memory never waits for an
// item to be finished. An item that one warp has seen whole is written by it alone. Of the others,
// the last warp of a block that has a part adds up those of its block at the end. Warps go from
// their last tile to the first: so the part of an item that goes on in the next block is the first
// thing that a block computes, and has long been in the workspace when the block that has the
// item's end, which is the last thing that it computes, wants it (merge.cuh). Where very many
// blocks have an item, the blocks after it share that work (long_items.cuh).
//
// Keys and values go from memory to registers and to the tensor cores, past shared memory: the
// assignment of tokens and elements to lanes is free, because softmax does not depend on the order
// of tokens, nor a dot product on the order of elements.
//
//   scores   [tokens x heads] = keys [tokens x elements] * query^T: lane (g, t) loads the pieces
//            t, t + 4, … of the keys of the tokens g and g + 8
//   result   [elements x heads] += values^T [elements x tokens] * weights [tokens x heads]:
//            lane (g, t) loads the pieces g, g + 8, … of the values of the tokens 2t, 2t + 1,
//            2t + 8, 2t + 9
//
// Scores are in units of log2. Scales and zero points are never applied to elements: a key's scale
// multiplies its score, a value's is added to it as a logarithm (weights are then those of scaled
// values, and at most 1, whatever the scale) and divided out of the sum of weights; zero points are
// subtracted from whole products (pairs.cuh).
//
// Macros: T (query and out), CODES (pairs.cuh), KEY_SIZE, VALUE_SIZE, HEAD_TILES (8 query heads
// each), VALUE_TILE (elements of a result that an item has), TILES (of 16 tokens, per warp), WARPS,
// KEY_PARTS and VALUE_PARTS (in which a tile is loaded, one part ahead), BLOCKS_PER_SM; KEY_STRIDE,
// VALUE_STRIDE, KEY_SCALES_STRIDE and VALUE_SCALES_STRIDE (bytes from token to token); LSE (0 or 1:
// whether the log-sum-exps of scores are written to lse[requests heads]).

// The open part of a warp: of an item that earlier warps have more of; and whether it has the
// item's end.
struct Partial {
  bool is_partial, has_end;
};

// Attends to the tiles of a warp, the last one first. The open part is in `sums`, and `own` is its
// last tile that was read.
__device__ __forceinline__ Partial attend(Accumulators& acc, Tile& own, const Arguments& of,
                                          const TileRange& range, Shared& shared) {
  const int warp = threadIdx.x / kWarp;
  int left = range.end - range.begin;
  Partial partial{};
  Keys keys;
  Values values;
  Scales key_scales, value_scales;
  TileIterator tiles;
  Tile next;
  Spans own_spans, next_spans, later_spans;  // loaded ahead
  const auto load_key_scales = [&](const Tile& tile, const Spans& spans) {
    key_scales.load_all<KEY_SCALES_STRIDE>(of.key_scales, of.key_scale_head, of, tile, spans);
  };
  const auto follow = [&](const Tile& tile, const Spans& spans) {
    load_values(values, 0, of, tile, spans);
    value_scales.load_all<VALUE_SCALES_STRIDE>(of.value_scales, of.value_scale_head, of, tile,
                                               spans);
  };
  if (left > 0) {
    tiles.start(of, range);
    tiles.look_up(next_spans, of);
    own = tiles.tile;
    partial.has_end = own.ends_item();
    tiles.advance(of);
    if (left > 1) tiles.look_up(later_spans, of);
    next = tiles.tile;
    tiles.advance(of);
    // All tokens but the last of each request are older than the plan.
    if (own.ends_item()) wait_for_kernel_before();
    load_keys(keys, 0, of, own, next_spans);
    load_key_scales(own, next_spans);
    follow(own, next_spans);
    if (left > 1) {
      prefetch<KEY_STRIDE, kKeyBytes>(head_of(of.keys, of.key_head, next), of, next, later_spans);
      prefetch<VALUE_STRIDE, kValueBytes>(head_of(of.values, of.value_head, next), of, next,
                                          later_spans);
    }
  }
  wait_for_kernel_before();
  let_next_kernel_start();

  Query query;
  bool is_first = true;  // of its item
  for (; left > 0; --left) {
    if (is_first) {
      query.load(shared, of, own);
      acc.clear();
    }
    Products products = {};
#pragma unroll
    for (int part = 0; part < KEY_PARTS; ++part) {
      multiply_keys(products, keys, part, shared);
      if (part == 0) {
#pragma unroll
        for (int i = 0; i < TILES; ++i) {
          own_spans[i] = next_spans[i];
          next_spans[i] = later_spans[i];
        }
      }
      if (part + 1 < KEY_PARTS) {
        load_keys(keys, part + 1, of, own, own_spans);
      } else if (left > 1) {
        load_keys(keys, 0, of, next, next_spans);
      }
    }
    Weights weights;
    const bool is_edge = !sees_all(of, own);
    if (is_edge) value_scales.hide(of, own);
    weigh(weights, products, acc, query, key_scales, value_scales, of, own);
    if (left > 1) load_key_scales(next, next_spans);
#pragma unroll
    for (int part = 0; part < VALUE_PARTS; ++part) {
      if (is_edge) hide(values, of, own);
      multiply_values(acc, values, part, weights);
      if (part + 1 < VALUE_PARTS) {
        load_values(values, part + 1, of, own, own_spans);
      } else if (left > 1) {
        follow(next, next_spans);
        if (left > 2) tiles.look_up(later_spans, of);
      }
    }
    if (own.begins_item() || left == 1) {
      settle(acc);
      if (own.begins_item() && partial.has_end) {
        write_result(acc, of, own);
      } else if (warp < WARPS - 1 && !partial.has_end) {
        store_part(shared.parts[warp], acc);
      } else if (own.begins_item()) {
        publish(acc, of, blockIdx.x);
      } else {
        partial.is_partial = true;
        return partial;
      }
      if (left == 1) return partial;
      partial.has_end = true;
    }
    is_first = own.begins_item();
    own = next;
    next = tiles.tile;
    tiles.advance(of);
  }
  return partial;
}

// Adds earlier warps' parts of an item to that of its last warp in the block.
__device__ __forceinline__ void add_warps(Accumulators& acc, const Tile& tile, const Arguments& of,
                                          const Totals& totals, const TileRange& range,
                                          bool has_end, Shared& shared) {
  const int begin = range.begin - (tile.token - tile.origin) / kTile;
  for (int warp = threadIdx.x / kWarp; warp > 0 && shared.begins[warp] > begin; --warp) {
    join_part(acc, shared.parts[warp - 1]);
  }
  if (has_end && begin >= shared.begins[0]) {
    write_result(acc, of, tile);
    return;
  }
  const int block = blockIdx.x, first = totals.division.holder(begin) / WARPS;
  if (!has_end) {
    publish(acc, of, block);
  } else if (block - first > kMany) {
    publish(acc, of, part_at_end(gridDim.x, block));
  } else {
    store_part(shared.parts[WARPS], acc);
    if (threadIdx.x % kWarp == 0) {
      shared.merge = {tile.request, tile.kv_head, tile.section, first};
    }
  }
}

// The results of padding requests: zeros, and a log-sum-exp of minus infinity.
__device__ __forceinline__ void clear_padding(const Arguments& of) {
  const int size = of.kv_heads * of.group * VALUE_SIZE;
  for (int request = blockIdx.x; request < of.requests; request += gridDim.x) {
    if (__ldcg(&of.seq_lens[request]) > 0) continue;
    unsigned* const out =
        reinterpret_cast<unsigned*>(of.out + static_cast<long long>(request) * size);
    for (int i = threadIdx.x; i < size / 2; i += kThreads) out[i] = 0;
    if constexpr (LSE) {
      const int heads = of.kv_heads * of.group;
      float* const lse = of.lse + static_cast<long long>(request) * heads;
      for (int i = threadIdx.x; i < heads; i += kThreads) lse[i] = hidden();
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS_PER_SM)
    decode_attend(T* out, const T* query, const int* span_tables, const int* table_rows,
                  const int* seq_lens, Totals* plan, float4* parts, const char* keys,
                  const char* values, const char* key_scales, const char* value_scales,
                  const float* alibi_slopes, const float* sinks, float softmax_scale, float softcap,
                  int window, int requests, int group, int kv_heads, int span_shift,
                  long long table_stride, long long query_stride, unsigned span_stride,
                  unsigned key_head, unsigned value_head, unsigned key_scale_head,
                  unsigned value_scale_head, float* lse) {
  __shared__ Shared shared;
  const int blocks = gridDim.x;
  // clang-format off
  const Arguments of{
      out, query, span_tables, table_rows, seq_lens,
      {plan, blocks * WARPS, blocks, requests}, parts, keys, values, key_scales, value_scales,
      alibi_slopes, sinks, softmax_scale, softcap, window, requests, group, kv_heads, span_shift,
      table_stride, query_stride, span_stride, key_head, value_head, key_scale_head,
      value_scale_head, lse};
  // clang-format on
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) shared.merge.first = -1;
  // The plan, the lengths and the tables are older than the previous kernel, and so are all tokens
  // but the last of each request: work on them does not wait for it.
  const Totals totals = of.plan.load_totals();
  const TileRange range = of.plan.load_range(blockIdx.x * WARPS + warp);
  if (threadIdx.x % kWarp == 0) shared.begins[warp] = range.begin;
  Accumulators acc;
  Tile last;
  const Partial partial = attend(acc, last, of, range, shared);
  if (totals.paddings > 0) clear_padding(of);  // while others of the block still compute
  __syncthreads();
  if (partial.is_partial) add_warps(acc, last, of, totals, range, partial.has_end, shared);
  __syncthreads();
  if (shared.merge.first >= 0) merge_parts(of, shared);
  if (totals.has_long_items) share_rows(of, shared);
}
