// Attention of one query per request over its keys and values in spans.
//
// A block computes one item at a time: the query heads of one request that share a key head, over
// the range of tokens that the plan gives it (decode_plan.cuh). Its warps take tiles of tokens in
// turn, each with a softmax of its own, and add up at the end. What a block has not read alone goes
// to the workspace, and the block that comes last merges it.
//
// Keys and values go from memory to registers and to the tensor cores, past shared memory: which
// lane holds which token and element is ours to choose, because softmax does not care about the
// order of tokens and a product does not care about the order of elements. A warp always has a tile
// of keys or of values in flight while it computes.
//
//   scores   [tokens x heads] = keys [tokens x elements] * query^T: lane (g, t) loads the pieces
//            t, t + 4, … of the keys of the tokens g and g + 8
//   result   [elements x heads] += values^T [elements x tokens] * weights [tokens x heads]: lane (g, t)
//            loads the pieces g, g + 8, … of the values of the tokens 2t, 2t + 1, 2t + 8, 2t + 9
//
// Scores are in units of log2. Scales of codes never meet the elements: a key's multiplies its
// score, a value's is added to it as a logarithm (weights are then those of scaled values, and at
// most 1, whatever the scale) and divided out of the sum of weights.
//
// Macros: T (query and out), CODES (pairs.cuh), KEY_SIZE, VALUE_SIZE, HEAD_TILES (8 query heads
// each), VALUE_TILE (elements of a result that an item has), TILES (of 16 tokens, per warp), WARPS,
// KEY_PARTS and VALUE_PARTS (in which a tile is loaded, one part ahead), BLOCKS_PER_SM, UNIT (tokens).

// Computes an item over the units [from, to) of its own.
__device__ __forceinline__ void attend_and_add(const Arguments& of, const Item& item,
                                               const Work& work, int from, int to,
                                               int* counters, Shared& shared) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int origin = first_token(item.length, of.window);
  const int first = origin + (from - item.begin) * UNIT;
  const Range range{of.keys + item.kv_head * of.key.head + 1ULL * g * of.key.token + t * 4 * kKeyWords,
                    of.values + item.kv_head * of.value.head + item.element * Codes::kBits / 8 +
                        g * 4 * kValueWords,
                    of.key_numbers + item.kv_head * of.key_number.head,
                    of.value_numbers + item.kv_head * of.value_number.head,
                    item.table,
                    item.first,
                    min(item.length, origin + (to - item.begin) * UNIT)};
  Result result = {};
  Softmax softmax;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int head = 8 * n + 2 * t + c;
      const bool is_biased = of.alibi != nullptr && head < item.count;
      softmax.most[n][c] = hidden();
      softmax.sum[n][c] = 0.0f;
      softmax.slope[n][c] = is_biased ? kLog2e * of.alibi[item.head + head] : 0.0f;
    }
  }
  attend(result, softmax, of, item, range, first, shared);

  const int first_block = block_of(item.begin, work.units, work.blocks);
  const int blocks = block_of(item.end - 1, work.units, work.blocks) - first_block + 1;
  float* slot = nullptr;
  if (blocks > 1) slot = slot_of(of.parts, blockIdx.x, from == item.begin);
  add_warps(result, softmax, of, item, slot, shared);
  if (blocks == 1) return;

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    shared.is_last = atomicAdd(&counters[item.number], 1) == blocks - 1;
    if (shared.is_last) counters[item.number] = 0;  // as the next layer wants to find it
  }
  __syncthreads();
  if (!shared.is_last) return;
  __threadfence();
  merge_parts(of, item, first_block, blocks, shared);
}

// Computes what the plan gives this block, item by item.
__device__ __forceinline__ void decode(const Arguments& of, Shared& shared) {
  const Work work = load_work(&of.works[blockIdx.x]);
  int* const firsts = firsts_of(of.works, gridDim.x);
  int* const counters = counters_of(firsts, of.requests);
  constexpr int kTiles = VALUE_SIZE / VALUE_TILE;
  const int group = of.heads / of.kv_heads, groups = ceil_div(group, kHeads);
  const int items = of.kv_heads * groups * kTiles;
  int request = work.request, first = work.first;
  for (int unit = work.begin; unit < work.end;) {
    int next = __ldcg(&firsts[request + 1]);
    for (; next <= unit; next = __ldcg(&firsts[request + 1])) {
      first = next;
      ++request;
    }
    const int units = (next - first) / items, index = (unit - first) / units;
    Item item;
    item.request = request;
    const int skipped = index / kTiles % groups * kHeads;  // heads of the group
    item.kv_head = index / kTiles / groups;
    item.head = item.kv_head * group + skipped;
    item.count = min(group - skipped, kHeads);
    item.element = index % kTiles * VALUE_TILE;
    item.length = __ldcg(&of.lengths[request]);
    item.first = of.window > 0 ? max(item.length - of.window, 0) : 0;
    item.begin = first + index * units;
    item.end = item.begin + units;
    item.number = request * items + index;
    const long long row = of.rows == nullptr ? request : __ldcg(&of.rows[request]);
    item.table = of.tables + row * of.table_stride;
    const int to = min(work.end, item.end);
    attend_and_add(of, item, work, unit, to, counters, shared);
    unit = to;
  }
}

// Zeros as the results of requests that have no tokens.
__device__ __forceinline__ void clear_padding(const Arguments& of) {
  const int size = of.heads * VALUE_SIZE;
  for (int request = blockIdx.x; request < of.requests; request += gridDim.x) {
    if (of.lengths[request] > 0) continue;
    unsigned* const out =
        reinterpret_cast<unsigned*>(of.out + static_cast<long long>(request) * size);
    for (int i = threadIdx.x; i < size / 2; i += kThreads) out[i] = 0;
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, BLOCKS_PER_SM)
    decode_attend(T* out, const T* query, const int* tables, const int* rows, const int* lengths,
                  const Work* works, float* parts, const char* keys, const char* values,
                  const char* key_numbers, const char* value_numbers, const float* alibi,
                  const float* sinks, float scale, float softcap, int window, int requests,
                  int heads, int kv_heads, int span_shift, long long table_stride,
                  long long query_stride, long long span_stride, long long key_head,
                  unsigned key_token, long long value_head, unsigned value_token,
                  long long key_number_head, unsigned key_number_token,
                  long long value_number_head, unsigned value_number_token) {
  __shared__ Shared shared;
  const Arguments of{
      out, query, tables, rows, lengths, works, parts, keys, values, key_numbers, value_numbers,
      alibi, sinks, scale, softcap, window, requests, heads, kv_heads, span_shift, table_stride,
      query_stride, span_stride, {key_head, key_token}, {value_head, value_token},
      {key_number_head, key_number_token}, {value_number_head, value_number_token}};
  // The plan, the lengths and the tables are older than the kernel before: what is made of them
  // alone does not wait for it.
  decode(of, shared);
  wait_for_kernel_before();
  clear_padding(of);
}
