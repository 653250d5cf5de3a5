// Reduction of a long item, of which many blocks have parts, by the blocks after it: they share the
// rows of its result, and so read all of its parts in one round.

// A row of an item and its softmax, over the parts that were added.
struct RowAccumulators {
  float most[2] = {hidden(), hidden()}, sum[2] = {};
  float4 at = {};

  __device__ __forceinline__ void add(const float4& rest, const float4& row) {
    const Shares low(most[0], rest.x), high(most[1], rest.y);
    low.add(sum[0], rest.z);
    high.add(sum[1], rest.w);
    low.add(at.x, row.x);
    high.add(at.y, row.y);
    low.add(at.z, row.z);
    high.add(at.w, row.w);
  }
};

// The share of a long item that a block reduces: rows `reader`, `reader` + readers, … of all of its
// parts, of which each warp adds every WARPS-th.
struct Reading {
  int reader;       // -1: no long item ends shortly before the block
  int first, last;  // blocks of the item
  int request, item;

  __device__ __forceinline__ explicit Reading(const Arguments& of) {
    const int lane = threadIdx.x % kWarp, block = blockIdx.x;
    Order order{-1};
    if (lane < min(readers_of(gridDim.x), block)) order = of.plan.load_order(block - 1 - lane);
    reader = __ffs(__ballot_sync(kAll, order.first >= 0)) - 1;
    const int from = max(reader, 0);
    last = block - 1 - from;
    first = __shfl_sync(kAll, order.first, from);
    request = __shfl_sync(kAll, order.request, from);
    item = __shfl_sync(kAll, order.item, from);
  }

  __device__ __forceinline__ int count() const {  // of the warp's parts
    return ceil_div(last + 1 - first - static_cast<int>(threadIdx.x) / kWarp, WARPS);
  }
  __device__ __forceinline__ int part(int index) const {  // past the last one, that one again
    const int own = min(index, count() - 1) * WARPS + static_cast<int>(threadIdx.x) / kWarp;
    const int block = first + own;
    return block < last ? block : part_at_end(gridDim.x, last);
  }

  // Waits for blocks that began before this one and wait for no later one: so waiting ends.
  __device__ __forceinline__ void wait(const int* flags) const {
    for (int p = threadIdx.x % kWarp; __any_sync(kAll, p < count()); p += kWarp) {
      while (!__all_sync(kAll, load_flag(&flags[part(p)]) != 0)) {
      }
    }
  }

  // Row k, reduced over the warp's parts.
  __device__ __forceinline__ RowAccumulators add_parts(const Arguments& of, int k) const {
    constexpr int kAhead = 16;  // parts in flight together
    const int lane = threadIdx.x % kWarp, top = k / kRows * (1 + kRows);
    RowAccumulators acc;
#pragma unroll 1
    for (int p = 0; p < count(); p += kAhead) {
      float4 rests[kAhead], rows[kAhead];
#pragma unroll
      for (int a = 0; a < kAhead; ++a) {
        const Part& own = part_of(of, part(p + a));
        rests[a] = __ldcg(&own[top][lane]);
        rows[a] = __ldcg(&own[top + 1 + k % kRows][lane]);
        if (p + a >= count()) rests[a] = {hidden(), hidden(), 0.0f, 0.0f};
      }
#pragma unroll
      for (int a = 0; a < kAhead; ++a) acc.add(rests[a], rows[a]);
    }
    return acc;
  }

  // Marks the warp's parts as read: flags are 0 again when all readers have read them.
  __device__ __forceinline__ void leave(int* flags) const {
    for (int p = threadIdx.x % kWarp; p < count(); p += kWarp) atomicSub(&flags[part(p)], 1);
  }
};

// Writes row k of the result of an item.
__device__ __forceinline__ void write_row(const RowAccumulators& acc, const Arguments& of,
                                          const Reading& reading, int k) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const int element = element_of(k % kRows, g);
  const int sections = ceil_div(of.group, kHeads) * (VALUE_SIZE / VALUE_TILE);
  const Heads heads(of, reading.item / sections, reading.item % sections);
#pragma unroll
  for (int c = 0; c < 2; ++c) {
    const int head = 8 * (k / kRows) + 2 * t + c;
    const Total total(of, heads, head, acc.most[c], acc.sum[c]);
    if (head >= heads.count) continue;
    if (LSE && k % kRows == 0) write_lse(of, heads, reading.request, head, total);
    if (element >= VALUE_TILE) continue;
    T* const out = result_of(of, heads, reading.request, head) + element;
    *reinterpret_cast<unsigned*>(out) = c == 0 ? pack_result(acc.at.x, acc.at.z, total.share)
                                               : pack_result(acc.at.y, acc.at.w, total.share);
  }
}

// Reduces this block's rows of the long item that ends shortly before it, if one does.
__device__ __forceinline__ void share_rows(const Arguments& of, Shared& shared) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const Reading reading(of);
  if (reading.reader < 0) return;
  reading.wait(of.plan.flags());
#pragma unroll 1
  for (int k = reading.reader; k < HEAD_TILES * kRows; k += readers_of(gridDim.x)) {
    RowAccumulators acc = reading.add_parts(of, k);
    __syncthreads();  // others may still read the block's parts in shared memory
    Part& own = shared.parts[warp];
    own[0][lane] = {acc.most[0], acc.most[1], acc.sum[0], acc.sum[1]};
    own[1][lane] = acc.at;
    __syncthreads();
    if (warp > 0) continue;
#pragma unroll
    for (int w = 1; w < WARPS; ++w) acc.add(shared.parts[w][0][lane], shared.parts[w][1][lane]);
    write_row(acc, of, reading, k);
  }
  reading.leave(of.plan.flags());
}
