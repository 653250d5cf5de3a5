// The epilogue of a tile: its owner adds the partial accumulators of other blocks, finishes the
// results and writes them.
//
//   y = acc + bias                            bias[N], or none
//   y = activated(y)                          the identity by default
//   y = activated(y[gate rows]) * y[up rows]  kGated: gate rows of the weight above up rows
//   out = y + residual                        residual[M C], or none; may be out itself
//
// Each of kWarps warps holds, for 16 weight rows and kColumns columns of 8 tokens, fragments of C
// (mma.cuh): a thread has rows g and g + 8, tokens 2t and 2t + 1 of each. kGated puts 8 gate rows
// above their up rows into 16, so that one thread has both.
//
// `Kernel` tells these, the Element, and kRows of a tile; its sync() is a barrier of the threads.
//
// Needs types.cuh, reduce.cuh, stream_k.cuh.

template <typename Kernel>
using Accumulators = float[Kernel::kColumns][4];

// The arrays that results go to, those that are added, and the partials and flags of split tiles.
template <typename Kernel>
struct Target {
  using T = typename Kernel::Element;

  T* out;
  const T *bias, *residual;
  float4* partial;
  int* flags;
  int tokens, rows;  // M, N

  __device__ __forceinline__ int columns() const { return Kernel::kGated ? rows / 2 : rows; }

  // The part for blocks with this blockIdx.y: tokens from `first` on.
  __device__ __forceinline__ Target from_token(int first) const {
    const size_t skipped = static_cast<size_t>(first) * columns();
    const size_t blocks = static_cast<size_t>(blockIdx.y) * gridDim.x;
    return {out + skipped,
            bias,
            residual ? residual + skipped : nullptr,
            partial + blocks * (Kernel::kColumns * Kernel::kThreads),
            flags + blocks,
            tokens - first,
            rows};
  }

  // This thread's place in the partial that block `block` leaves, beside its neighbours'.
  __device__ __forceinline__ float4* left_by(int block) const {
    constexpr int kOwn = Kernel::kColumns * Kernel::kThreads;
    return partial + static_cast<size_t>(block) * kOwn + threadIdx.x;
  }
};

// Calls `each(j, token)` for every column j, `token` being the first of its tokens that this thread
// has, and lets the compiler mix the work of four columns, no more: their loads are in flight
// together, but addresses and numbers of all columns would not fit into registers.
template <typename Kernel, typename Each>
__device__ __forceinline__ void for_columns(Each each) {
  constexpr int kBatch = 4;
  int token = 2 * (threadIdx.x % 4);
#pragma unroll
  for (int j = 0; j < Kernel::kColumns; ++j) {
    // As if it were changed here: nothing that depends on it can be computed earlier.
    if (j % kBatch == 0) asm volatile("" : "+r"(token)::"memory");
    each(j, token + 8 * j);
  }
}

// Leaves the accumulators, as a partial, to the block that owns the tile.
template <typename Kernel>
__device__ __forceinline__ void leave(const Accumulators<Kernel>& acc,
                                      const Target<Kernel>& target) {
  float4* own = target.left_by(blockIdx.x);
#pragma unroll
  for (int j = 0; j < Kernel::kColumns; ++j) {
    const float (&sum)[4] = acc[j];
    own[j * Kernel::kThreads] = make_float4(sum[0], sum[1], sum[2], sum[3]);
  }
  __threadfence();
  Kernel::sync();
  if (threadIdx.x == 0) atomicExch(target.flags + blockIdx.x, 1);
}

// Waits until the blocks from `first` to the one before this have left their partials; clears their
// flags.
template <typename Kernel>
__device__ __forceinline__ void wait_for_left(const Target<Kernel>& target, int first) {
  for (int block = first + threadIdx.x; block < blockIdx.x; block += Kernel::kThreads) {
    while (atomicCAS(target.flags + block, 1, 0) != 1) {
    }
    __threadfence();
  }
  Kernel::sync();
}

// Adds the partials of the blocks from `first` to this one, in this order.
template <typename Kernel>
__device__ __forceinline__ void collect(Accumulators<Kernel>& acc, const Target<Kernel>& target,
                                        int first) {
  const int last = blockIdx.x;
  if (first == last) return;
  wait_for_left(target, first);
  for (int block = first; block < last; ++block) {
    const float4* left = target.left_by(block);
    for_columns<Kernel>([&](int j, int) {
      const float4 before = __ldcg(left + j * Kernel::kThreads);
      float (&sum)[4] = acc[j];
      sum[0] += before.x;
      sum[1] += before.y;
      sum[2] += before.z;
      sum[3] += before.w;
    });
  }
}

// The column of the result that is row g of a warp's.
template <typename Kernel>
__device__ __forceinline__ int column_of(int tile, int warp) {
  constexpr int kTile = Kernel::kGated ? Kernel::kRows / 2 : Kernel::kRows;
  constexpr int kOwn = Kernel::kGated ? 8 : 16;
  return tile * kTile + warp * kOwn + threadIdx.x % kWarp / 4;
}

// The bias of rows g and g + 8 of a warp's; zeros where there is none.
template <typename Kernel>
__device__ __forceinline__ float2 bias_of(const Target<Kernel>& target, int column) {
  const int columns = target.columns(), partner = Kernel::kGated ? column + columns : column + 8;
  const bool has = target.bias && column < columns, has_partner = has && partner < target.rows;
  return make_float2(has ? to_float(target.bias[column]) : 0.0f,
                     has_partner ? to_float(target.bias[partner]) : 0.0f);
}

// The residual at the places of a fragment's results, zeros where there is none: `column` as above,
// tokens `first` and the next.
template <typename Kernel>
__device__ __forceinline__ float4 residual_of(const Target<Kernel>& target, int column, int first) {
  const int columns = target.columns();
  float add[4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!target.residual || first + i >= target.tokens || column >= columns) continue;
    const auto* at = target.residual + ((first + i) * columns + column);
    add[i] = to_float(at[0]);
    if (!Kernel::kGated && column + 8 < columns) add[i + 2] = to_float(at[8]);
  }
  return make_float4(add[0], add[1], add[2], add[3]);
}

// Turns a fragment of accumulators into results.
template <typename Kernel>
__device__ __forceinline__ void complete(float (&sum)[4], float2 bias, float4 residual) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    sum[i] += bias.x;
    sum[i + 2] += bias.y;
    sum[i] = Kernel::activated(sum[i]);
    if constexpr (Kernel::kGated) {
      sum[i] *= sum[i + 2];
    } else {
      sum[i + 2] = Kernel::activated(sum[i + 2]);
    }
  }
  sum[0] += residual.x;
  sum[1] += residual.y;
  sum[2] += residual.z;
  sum[3] += residual.w;
}

template <typename Kernel>
__device__ __forceinline__ void store(const float (&sum)[4], const Target<Kernel>& target,
                                      int column, int first) {
  using T = typename Kernel::Element;
  const int columns = target.columns();
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int token = first + i;
    if (token >= target.tokens || column >= columns) continue;
    T* to = target.out + (token * columns + column);
    to[0] = from_float<T>(sum[i]);
    if (!Kernel::kGated && column + 8 < columns) to[8] = from_float<T>(sum[i + 2]);
  }
}

// Initialises the accumulators of a tile; returns true if they include the other blocks' partials.
// Where no tile is larger than a block's share, the previous block left its partial long ago, as
// the first thing it did, while this is the last tile of this block. So it is read here, beside
// copies of weights, and not at the end.
template <typename Kernel>
__device__ __forceinline__ bool begin_tile(Accumulators<Kernel>& acc, const ChunkCursor& place,
                                           const WorkRange& range, const Target<Kernel>& target) {
  if (range.owns(place) && place.chunk > 0 && range.chunks <= range.all / range.blocks) {
    wait_for_left(target, blockIdx.x - 1);
    const float4* left = target.left_by(blockIdx.x - 1);
#pragma unroll
    for (int j = 0; j < Kernel::kColumns; ++j) {
      const float4 before = __ldcg(left + j * Kernel::kThreads);
      acc[j][0] = before.x;
      acc[j][1] = before.y;
      acc[j][2] = before.z;
      acc[j][3] = before.w;
    }
    return true;
  }
#pragma unroll
  for (int j = 0; j < Kernel::kColumns; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[j][i] = 0.0f;
  }
  return false;
}

// Finishes a tile once all of this block's chunks are accumulated. `has_all` says that the other
// blocks' partials are included.
template <typename Kernel>
__device__ __forceinline__ void finish_tile(Accumulators<Kernel>& acc, const ChunkCursor& place,
                                            const WorkRange& range, const Target<Kernel>& target,
                                            bool has_all = false) {
  if (!range.owns(place)) {
    leave<Kernel>(acc, target);
    return;
  }
  if (!has_all) collect<Kernel>(acc, target, range.first_block(place.tile));
  const int column = column_of<Kernel>(place.tile, threadIdx.x / kWarp);
  const float2 bias = bias_of<Kernel>(target, column);
  // All loads of residuals first: they need not wait for stores, which might be to the same place.
  for_columns<Kernel>([&](int j, int token) {
    complete<Kernel>(acc[j], bias, residual_of<Kernel>(target, column, token));
  });
  for_columns<Kernel>([&](int j, int token) { store<Kernel>(acc[j], target, column, token); });
}
