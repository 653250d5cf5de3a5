// Results of wide.cu: what accumulators become, and how they are written.
//
// Scales and biases are copied to shared memory while a tile is multiplied, and residuals are read
// ahead: of loads one behind the other, each behind the stores before it, a tile's end has waited
// for up to a third of a GEMM (docs/measurements/gpu-gemm.md, "Ends of tiles").
//
// Macros: as in wide.cu.
// Demands: as in wide.cu.
//
// Needs types.cuh, copy.cuh, cluster.cuh, activate.cuh, scales.cuh, wide_tile.cuh.

// What belongs to single rows of a tile: scales of x and of the weight, and the bias. A
// warpgroup's own copy, which is made while the tile is multiplied.
struct TileRows {
  float weight[kPerResult][8 * kResults], x[kGroupTokens];
  alignas(16) T bias[kPerResult][8 * kResults];
};

// The arrays that results go to, and those that are added.
struct Target {
  T* out;
  const T *bias, *residual;
  Scales<kScaling, GATED> scales;
  int tokens, columns;

  __device__ __forceinline__ bool has(int token, int column) const {
    return token < tokens && column < columns;
  }

  // Begins to copy what belongs to a group's rows, from its first token and the tile's first
  // column on.
  __device__ __forceinline__ void fetch(TileRows& rows, int token, int column) const {
    if (kScaling != Scaling::rows && !bias) return;
    sync_group();  // the last tile's have been read
    const int thread = threadIdx.x % kGroup;
#pragma unroll
    for (int up = 0; up < kPerResult; ++up) {
      for (int i = thread; i < 8 * kResults; i += kGroup) {
        if (kScaling != Scaling::rows) break;
        copy_4(&rows.weight[up][i], scales.at_weight(column + i, up));
      }
      for (int i = 2 * thread; i < 8 * kResults && bias; i += 2 * kGroup) {
        copy_4(&rows.bias[up][i], bias + up * columns + min(column + i, columns - 2));
      }
    }
    for (int i = thread; i < kGroupTokens; i += kGroup) {
      if (kScaling != Scaling::rows) break;
      copy_4(&rows.x[i], scales.at_token(token + i));
    }
    commit_copies();
  }

  __device__ __forceinline__ void await_rows() const {
    if (kScaling != Scaling::rows && !bias) return;
    wait_for_copies<0>();
    sync_group();
  }

 private:
  static __device__ __forceinline__ void sync_group() {
    asm volatile("bar.sync %0, %1;" ::"r"(kFirstGroup + threadIdx.x / kGroup), "n"(kGroup)
                 : "memory");
  }
};

// A thread's view of them: of its tokens, and of its columns of results.
struct SumRows {
  const float *x, *weight;
  const T* bias;

  // From this row of x of a group, and this column of the tile on.
  static __device__ __forceinline__ SumRows at(const TileRows& rows, int token, int column) {
    return {&rows.x[token], &rows.weight[0][column], &rows.bias[0][column]};
  }

  // Of those that many tokens and columns on.
  __device__ __forceinline__ SumRows from(int token, int column) const {
    return {x + token, weight + column, bias + column};
  }

  // Turns a fragment of sums into floats.
  template <typename Sum>
  __device__ __forceinline__ void to_floats(float (&floats)[4], const Sum (&sums)[4], bool is_up,
                                            bool has_bias) const {
    const int up = is_up * 8 * kResults;
    float add[2] = {};
    if (has_bias) load_floats<2>(add, bias + up);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      floats[i] = static_cast<float>(sums[i]);
      if constexpr (kScaling == Scaling::rows) floats[i] *= x[i / 2 * 8] * weight[up + i % 2];
      floats[i] += add[i % 2];
    }
  }
};

// Fragments side by side: a thread has two columns of each, of a token and the eighth after it.
struct Batch {
  int token, column, count;
};

// What is added to the results of up to kMost fragments: pairs of T.
template <int kMost>
struct Residuals {
  unsigned pairs[kMost][2];

  static __device__ __forceinline__ Residuals of(const Batch& batch, const Target& target) {
    Residuals own = {};
    if (!target.residual) return own;
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        const int token = batch.token + 8 * line, column = batch.column + 8 * n;
        if (n >= batch.count || !target.has(token, column)) continue;
        own.pairs[n][line] = *reinterpret_cast<const unsigned*>(
            target.residual + token * target.columns + column);
      }
    }
    return own;
  }

  __device__ __forceinline__ void add_to(float (&results)[kMost][4]) const {
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        float add[2];
        load_floats<2>(add, reinterpret_cast<const T*>(&pairs[n][line]));
        results[n][2 * line] += add[0];
        results[n][2 * line + 1] += add[1];
      }
    }
  }
};

// Writes four fragments side by side by vectors of 16 bytes: of each, a thread has two columns of
// eight, and its neighbours the rest. They exchange, so that thread t has fragment t.
__device__ __forceinline__ void store_vectors(const float (*results)[4], const Target& target,
                                              const Batch& batch) {
  const int own = threadIdx.x % 4;
#pragma unroll
  for (int line = 0; line < 2; ++line) {
    unsigned pairs[4];
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      pairs[n] = pack_pair<T>(results[n][2 * line], results[n][2 * line + 1]);
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        if (n & step) continue;
        unsigned &low = pairs[n], &high = pairs[n + step];
        const unsigned theirs = __shfl_xor_sync(0xffffffffu, own & step ? low : high, step);
        (own & step ? low : high) = theirs;
      }
    }
    const int token = batch.token + 8 * line, first = batch.column - 2 * own + 8 * own;
    if (own >= batch.count || !target.has(token, first)) continue;
    *reinterpret_cast<uint4*>(target.out + token * target.columns + first) =
        make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  }
}

// Turns accumulators of a batch into results and writes them.
template <int kMost, typename Sum>
__device__ __forceinline__ void finish(const Sum (*acc)[4], const Target& target,
                                       const SumRows& rows, const Batch& batch,
                                       const Residuals<kMost>& residuals) {
  float results[kMost][4] = {};
#pragma unroll
  for (int n = 0; n < kMost; ++n) {
    if (n >= batch.count) break;
    const SumRows own = rows.from(0, 8 * n);
    own.to_floats(results[n], acc[n * kPerResult], false, target.bias);
#pragma unroll
    for (int i = 0; i < 4; ++i) results[n][i] = ACT(results[n][i]);
    if constexpr (GATED) {
      float up[4];
      own.to_floats(up, acc[n * kPerResult + 1], true, target.bias);
#pragma unroll
      for (int i = 0; i < 4; ++i) results[n][i] *= up[i];
    }
  }
  if (target.residual) residuals.add_to(results);
  if constexpr (kMost == 4 && VECTORS) {
    store_vectors(results, target, batch);
  } else {
#pragma unroll
    for (int n = 0; n < kMost; ++n) {
      if (n >= batch.count) break;
      const int column = batch.column + 8 * n;
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        const int token = batch.token + 8 * line;
        if (!target.has(token, column)) continue;
        store_floats<2>(target.out + token * target.columns + column, &results[n][2 * line]);
      }
    }
  }
}

// Writes a tile that this block has accumulated alone; `token` and `column` are the thread's first.
// Residuals of a batch are read before the batch in front of it is written: `out` may be
// `residual`, and the compiler must keep the order.
template <typename Sum>
__device__ __forceinline__ void finish_tile(const SumsOf<Sum>& acc, const Target& target,
                                            const SumRows& rows, int token, int column) {
  constexpr int kBatch = 4;  // fragments whose loads are under way together
  constexpr bool kAhead = !ALTERNATE;
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const int first = block * kBlockRows;
    const auto batch_at = [&](int n) {
      return Batch{token + first, column + 8 * n, min(kBatch, kResults - n)};
    };
    Residuals<kBatch> next;
    if (kAhead) next = Residuals<kBatch>::of(batch_at(0), target);
#pragma unroll
    for (int n = 0; n < kResults; n += kBatch) {
      const auto residuals = kAhead ? next : Residuals<kBatch>::of(batch_at(n), target);
      if (kAhead && n + kBatch < kResults) {
        next = Residuals<kBatch>::of(batch_at(n + kBatch), target);
      }
      finish<kBatch>(&acc[block][n * kPerResult], target, rows.from(first, 8 * n), batch_at(n),
                     residuals);
    }
  }
}

__device__ __forceinline__ void sync_multiplying() {
  asm volatile("bar.sync 1, %0;" ::"n"(kMultiply) : "memory");
}

// The same where the blocks of a cluster hold partial accumulators (split-K): each finishes some
// fragments, adding the partials in all blocks' `shared` memory, always in the same order.
template <typename Sum>
__device__ __forceinline__ void finish_split(const SumsOf<Sum>& acc, float4* shared,
                                             const Target& target, const TileRows* groups,
                                             int token, int column) {
  constexpr int kWarps = 4 * GROUPS;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  sync_multiplying();  // all have multiplied: the ring is free for other use
#pragma unroll
  for (int block = 0; block < BLOCKS; ++block) {
    const int line = (warp / 4 * BLOCKS + block) * 4 + warp % 4;  // of 16 tokens
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      const Sum (&sum)[4] = acc[block][n];
      shared[(line * kFragments + n) * kWarp + lane] = make_float4(sum[0], sum[1], sum[2], sum[3]);
    }
  }
  sync_cluster();
  for (int result = warp * SPLITS + rank_in_cluster(); result < kWarps * BLOCKS * kResults;
       result += kWarps * SPLITS) {
    float whole[kPerResult][4] = {};
#pragma unroll
    for (int rank = 0; rank < SPLITS; ++rank) {
      const float4* part = in_block(shared, rank) + result * kPerResult * kWarp + lane;
#pragma unroll
      for (int i = 0; i < kPerResult; ++i) {
        const float4 sum = part[i * kWarp];
        whole[i][0] += sum.x;
        whole[i][1] += sum.y;
        whole[i][2] += sum.z;
        whole[i][3] += sum.w;
      }
    }
    const int line = result / kResults * 16, first = result % kResults * 8;
    const Batch batch{token + line, column + first, 1};
    const TileRows& of_group = groups[line / kGroupTokens];
    const auto rows = SumRows::at(of_group, line % kGroupTokens + lane / 4, first + lane % 4 * 2);
    finish<1>(whole, target, rows, batch, Residuals<1>::of(batch, target));
  }
  sync_cluster();  // others may still read what this block has put there
}
