// The k largest elements of rows, exactly; of equal ones those with the smaller index.
//
// Every element has a key of its own (keys.cuh). Which bound is found does not depend on how values
// are distributed: a row of one value is as good as any other.
//
//   topk_bound     one block per row, or several where rows are long: of `samples` elements at
//                  random places, a key that between `least` and 9/8 of `least` of them reach; of
//                  several blocks, each offers all the keys that do
//   topk_filter    many blocks per row, each element read once: the keys that reach the bound are
//                  collected; the last block to finish selects among them
//   topk_short     rows that one block can hold are selected directly
//
// Host code chooses `samples` and `least` so that a bound fails (fewer than k keys reach it, or
// more than `capacity`) once in 10^12 rows; the last block then reads the whole row alone. Radix
// selection of keys by their digits (bound.cuh; after RadiK, arXiv 2501.14336, which rescales where
// the first digit does not discriminate).
//
// NaN counts as smaller than everything else, -0 as equal to +0: as in numpy's argsort(-x).
//
// Macros: T (element), SORTED (0 or 1: in any order).
// Demands: 1 <= k <= 4096, k <= length < 2^31; topk_short: length <= 8192; the elements of a row
// contiguous, their address a multiple of their size.

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_short(T* values, int* indices, const T* x, int length, long long stride, int k) {
  __shared__ Shared shared;
  const T* row = x + blockIdx.x * stride;
  Key held[kHeld];
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    const int i = j * kThreads + threadIdx.x;
    held[j] = i < length ? key_of(row[i], i) : kAbsent;
  }
  const long long out = static_cast<long long>(blockIdx.x) * k;
  choose(held, length, k, length, row, values + out, indices + out, shared);
}

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_bound(Row* rows, Key* offers, const T* x, int length, long long stride, int samples,
               int least, int offered) {
  __shared__ Shared shared;
  let_next_kernel_start();
  offers += (static_cast<long long>(blockIdx.y) * gridDim.x + blockIdx.x) * offered;
  Key held[kHeld];
  sample(x + blockIdx.y * stride, length, samples, blockIdx.x, held);
  const Key bound = bound_of(Held{held, samples}, least, least + least / 8, shared);
  if (threadIdx.x == 0) {
    shared.count = 0;
    if (blockIdx.x == 0) rows[blockIdx.y] = Row{0, 0};
    if (offered == 1) *offers = bound;
  }
  if (offered == 1) return;
  __syncthreads();
#pragma unroll
  for (int j = 0; j < kHeld; ++j) {
    if (held[j] < bound) continue;
    const int slot = take(&shared.count);
    if (slot < offered) offers[slot] = held[j];
  }
  __syncthreads();
  for (int i = shared.count + threadIdx.x; i < offered; i += kThreads) offers[i] = kAbsent;
}

extern "C" __global__ void __launch_bounds__(kThreads)
    topk_filter(T* values, int* indices, Row* rows, const Key* offers, Key* lists, const T* x,
                int length, long long stride, int k, int offers_of_row, int least, int capacity) {
  __shared__ Shared shared;
  const T* row = x + blockIdx.y * stride;
  Row* state = rows + blockIdx.y;
  Key* collected = lists + static_cast<long long>(blockIdx.y) * capacity;
  const Body body(row, length);
  if (threadIdx.x == 0) shared.count = 0;

  const unsigned step = gridDim.x * kThreads;
  unsigned first = blockIdx.x * kThreads + threadIdx.x;
  Batch batch;
  batch.load(body, first, step);  // in flight while the bound is found
  __syncthreads();
  wait_for_kernel_before();
  offers += static_cast<long long>(blockIdx.y) * offers_of_row;
  const Key bound = bound_of_offers(offers, offers_of_row, least, shared);
  const Floor floor(bound);

  // All threads of a warp take the same number of turns: those with a hit would otherwise fall
  // behind, and the warp would diverge further and further.
#pragma unroll 1
  for (unsigned turn = blockIdx.x * kThreads; turn < body.packs; turn += kBatch * step) {
    unsigned hits = 0;
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const Pack<T, kVector>& here = batch.packs[b];
      const float exceeded = floor.at(body.head + (first + b * step) * kVector);
      float most = -kInfinity;
#pragma unroll
      for (int v = 0; v < kVector; ++v) most = fmaxf(most, to_float(here.at[v]));
      if (first + b * step >= body.packs || most <= exceeded) continue;  // as a rule
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        hits |= !(to_float(here.at[v]) <= exceeded) << (b * kVector + v);
      }
    }
    while (hits != 0) {
      const int hit = __ffs(hits) - 1;
      hits &= hits - 1;
      const unsigned pack = first + hit / kVector * step;
      const unsigned i = body.head + pack * kVector + hit % kVector;
      // Read again, since registers cannot be indexed.
      collect(key_of(row[i], i), bound, state, collected, capacity, shared);
    }
    __syncwarp();
    first += kBatch * step;
    batch.load(body, first, step);
  }
  if (blockIdx.x == 0 && threadIdx.x < body.head + (length - body.tail)) {
    const unsigned i = threadIdx.x < body.head ? threadIdx.x : body.tail + threadIdx.x - body.head;
    collect(key_of(row[i], i), bound, state, collected, capacity, shared);
  }
  __syncthreads();
  const int own = min(shared.count, kMostChosen);
  if (threadIdx.x == 0 && own > 0) shared.base = atomicAdd(&state->count, own);
  __syncthreads();
  for (int i = threadIdx.x; i < own; i += kThreads) {
    if (shared.base + i < capacity) collected[shared.base + i] = shared.list[i];
  }

  if (!is_last(state, shared)) return;
  int count = __ldcg(&state->count);
  const bool has_failed = count < k || count > capacity;
  const bool is_narrowed = has_failed || count > kHeldByBlock;
  if (is_narrowed) {
    const Lying keys{row, has_failed ? nullptr : collected, has_failed ? length : count};
    count = narrow(keys, k, shared);
  }
  Key held[kHeld];
  if (is_narrowed) {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kThreads + threadIdx.x;
      held[j] = i < count ? shared.list[i] : kAbsent;
    }
    __syncthreads();  // before the list is reused
  } else {
#pragma unroll
    for (int j = 0; j < kHeld; ++j) {
      const int i = j * kThreads + threadIdx.x;
      held[j] = i < count ? __ldcg(&collected[i]) : kAbsent;
    }
  }
  const long long out = static_cast<long long>(blockIdx.y) * k;
  choose(held, count, k, length, row, values + out, indices + out, shared);
}
