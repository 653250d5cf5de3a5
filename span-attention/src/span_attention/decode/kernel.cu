// Attention of one query per request over its keys and values in spans.
//
// A warp computes the tiles of tokens that the plan gives it (decode_plan.cuh) one after another,
// across the ends of items: an item is the query heads of one request that share a key head. The
// next tile is always under way, the next item's too, so that memory never waits for an item to be
// finished. An item that one warp has seen whole is written by it alone. Of the others, the last warp
// of a block that has a part adds up those of its block at the end. Warps go from their last tile to
// the first: so the part of an item that goes on in the next block is the first thing that a block
// computes, and has long been in the workspace when the block that has the item's end, which is the
// last thing that it computes, wants it (merge.cuh). Where very many blocks have an item, those behind
// it share that work (share.cuh).
//
// Keys and values go from memory to registers and to the tensor cores, past shared memory: which
// lane holds which token and element is ours to choose, because softmax does not care about the
// order of tokens and a product does not care about the order of elements.
//
//   scores   [tokens x heads] = keys [tokens x elements] * query^T: lane (g, t) loads the pieces
//            t, t + 4, … of the keys of the tokens g and g + 8
//   result   [elements x heads] += values^T [elements x tokens] * weights [tokens x heads]: lane (g, t)
//            loads the pieces g, g + 8, … of the values of the tokens 2t, 2t + 1, 2t + 8, 2t + 9
//
// Scores are in units of log2. Scales and zeros of codes never meet the elements: a key's scale
// multiplies its score, a value's is added to it as a logarithm (weights are then those of scaled
// values, and at most 1, whatever the scale) and divided out of the sum of weights; zeros are taken
// off products as a whole (pairs.cuh).
//
// Macros: T (query and out), CODES (pairs.cuh), KEY_SIZE, VALUE_SIZE, HEAD_TILES (8 query heads
// each), VALUE_TILE (elements of a result that an item has), TILES (of 16 tokens, per warp), WARPS,
// KEY_PARTS and VALUE_PARTS (in which a tile is loaded, one part ahead), BLOCKS_PER_SM; KEY_STRIDE,
// VALUE_STRIDE, KEY_NUMBERS_STRIDE and VALUE_NUMBERS_STRIDE (bytes from token to token); LSE (0 or 1:
// whether the log-sum-exps of scores are written to lse[requests heads]).

// What a warp is left with: a part of an item that warps before have more of; and whether it has
// the item's end.
struct Open {
  bool is_open, has_end;
};

// Attends to the tiles of a warp, the last one first. What is left open is in `sums`, and `own` is
// the last tile of it that was read.
__device__ __forceinline__ Open attend(Sums& sums, Tile& own, const Arguments& of,
                                       const Work& work, Shared& shared) {
  const int warp = threadIdx.x / kWarp;
  int left = work.end - work.begin;
  Open open{};
  Keys keys;
  Values values;
  Numbers key_numbers, value_numbers;
  Walk walk;
  Tile next;
  Spans own_spans, next_spans, later_spans;  // what is loaded ahead is not touched until it is needed
  const auto load_key_numbers = [&](const Tile& tile, const Spans& spans) {
    key_numbers.load_all<KEY_NUMBERS_STRIDE>(of.key_numbers, of.key_number_head, of, tile, spans);
  };
  const auto follow = [&](const Tile& tile, const Spans& spans) {
    load_values(values, 0, of, tile, spans);
    value_numbers.load_all<VALUE_NUMBERS_STRIDE>(of.value_numbers, of.value_number_head, of, tile,
                                                 spans);
  };
  if (left > 0) {
    walk.start(of, work);
    walk.look_up(next_spans, of);
    own = walk.tile;
    open.has_end = own.ends_item();
    walk.advance(of);
    if (left > 1) walk.look_up(later_spans, of);
    next = walk.tile;
    walk.advance(of);
    // All tokens but the last of each request are older than the plan.
    if (own.ends_item()) wait_for_kernel_before();
    load_keys(keys, 0, of, own, next_spans);
    load_key_numbers(own, next_spans);
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
      sums.clear();
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
    if (is_edge) value_numbers.hide(of, own);
    weigh(weights, products, sums, query, key_numbers, value_numbers, of, own);
    if (left > 1) load_key_numbers(next, next_spans);
#pragma unroll
    for (int part = 0; part < VALUE_PARTS; ++part) {
      if (is_edge) hide(values, of, own);
      multiply_values(sums, values, part, weights);
      if (part + 1 < VALUE_PARTS) {
        load_values(values, part + 1, of, own, own_spans);
      } else if (left > 1) {
        follow(next, next_spans);
        if (left > 2) walk.look_up(later_spans, of);
      }
    }
    if (own.begins_item() || left == 1) {
      settle(sums);
      if (own.begins_item() && open.has_end) {
        write_result(sums, of, own);
      } else if (warp < WARPS - 1 && !open.has_end) {
        store_part(shared.parts[warp], sums);
      } else if (own.begins_item()) {
        publish(sums, of, blockIdx.x);
      } else {
        open.is_open = true;
        return open;
      }
      if (left == 1) return open;
      open.has_end = true;
    }
    is_first = own.begins_item();
    own = next;
    next = walk.tile;
    walk.advance(of);
  }
  return open;
}

// Adds what warps before have of an item to what the last of its warps in the block has.
__device__ __forceinline__ void add_warps(Sums& sums, const Tile& tile, const Arguments& of,
                                          const Totals& totals, const Work& work, bool has_end,
                                          Shared& shared) {
  const int begin = work.begin - (tile.token - tile.origin) / kTile;
  for (int warp = threadIdx.x / kWarp; warp > 0 && shared.begins[warp] > begin; --warp) {
    join_part(sums, shared.parts[warp - 1]);
  }
  if (has_end && begin >= shared.begins[0]) {
    write_result(sums, of, tile);
    return;
  }
  const int block = blockIdx.x, first = totals.division.holder(begin) / WARPS;
  if (!has_end) {
    publish(sums, of, block);
  } else if (block - first > kMany) {
    publish(sums, of, part_at_end(gridDim.x, block));
  } else {
    store_part(shared.parts[WARPS], sums);
    if (threadIdx.x % kWarp == 0) {
      shared.merge = {tile.request, tile.kv_head, tile.section, first};
    }
  }
}

// The results of requests that have no tokens: zeros, and the logarithms of none.
__device__ __forceinline__ void clear_padding(const Arguments& of) {
  const int size = of.kv_heads * of.group * VALUE_SIZE;
  for (int request = blockIdx.x; request < of.requests; request += gridDim.x) {
    if (__ldcg(&of.lengths[request]) > 0) continue;
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
    decode_attend(T* out, const T* query, const int* tables, const int* rows, const int* lengths,
                  Totals* plan, float4* parts, const char* keys, const char* values,
                  const char* key_numbers, const char* value_numbers, const float* alibi,
                  const float* sinks, float scale, float softcap, int window, int requests,
                  int group, int kv_heads, int span_shift, long long table_stride,
                  long long query_stride, unsigned span_stride, unsigned key_head,
                  unsigned value_head, unsigned key_number_head, unsigned value_number_head,
                  float* lse) {
  __shared__ Shared shared;
  const int blocks = gridDim.x;
  const Arguments of{
      out, query, tables, rows, lengths,
      {plan, blocks * WARPS, blocks, requests}, parts, keys, values, key_numbers, value_numbers,
      alibi, sinks, scale, softcap, window, requests, group, kv_heads, span_shift, table_stride,
      query_stride, span_stride, key_head, value_head, key_number_head, value_number_head, lse};
  const int warp = threadIdx.x / kWarp;
  if (threadIdx.x == 0) shared.merge.first = -1;
  // The plan, the lengths and the tables are older than the kernel before, and so are all tokens but
  // the last of each request: what is made of them alone does not wait for it.
  const Totals totals = of.plan.load_totals();
  const Work work = of.plan.load_work(blockIdx.x * WARPS + warp);
  if (threadIdx.x % kWarp == 0) shared.begins[warp] = work.begin;
  Sums sums;
  Tile last;
  const Open open = attend(sums, last, of, work, shared);
  if (totals.paddings > 0) clear_padding(of);  // while others of the block still compute
  __syncthreads();
  if (open.is_open) add_warps(sums, last, of, totals, work, open.has_end, shared);
  __syncthreads();
  if (shared.merge.first >= 0) merge_parts(of, shared);
  if (totals.has_long_items) share_rows(of, shared);
}
