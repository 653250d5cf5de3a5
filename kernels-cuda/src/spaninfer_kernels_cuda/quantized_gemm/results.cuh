// Results of a tile that wgmma has summed, written in vectors of 16 bytes.
//
// A thread's sums are of two weight rows and two tokens, but neighbours in memory are weight rows:
// written from there, a warp's 32 numbers would lie in eight places. So 8 x 8 matrices go through
// 512 bytes of shared memory, those of four at a time, and come back transposed: a lane then has
// eight weight rows of one token. Residuals take the same way in the other direction.
//
// Needs mma.cuh, epilogue.cuh, split_k.cuh, multiply.cuh.

using Vectors = uint4[kWarp];  // of a warp: four matrices, a line each of 8 lanes

__device__ __forceinline__ void store_matrices_transposed(unsigned row, const unsigned (&from)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row),
               "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
               : "memory");
}

// The places of results that a lane reads and writes: a vector in each turn of kFragments fragments
// of 8 tokens. Fragments have a matrix each, of gated results; else one of rows g, one of g + 8.
struct ResultVectors {
  static constexpr int kFragments = GATED ? 4 : 2;
  static constexpr int kTurns = (kColumns + kFragments - 1) / kFragments;

  int token, column;  // the first turn's

  static __device__ __forceinline__ ResultVectors of_lane(int first_column) {
    int lane = threadIdx.x % kWarp;
    asm volatile("" : "+r"(lane));  // as `warp` below
    const int matrix = lane / 8;
    const int fragment = GATED ? matrix : matrix / 2;
    return {8 * fragment + lane % 8, first_column + (GATED ? 0 : matrix % 2 * 8)};
  }

  __device__ __forceinline__ int token_of(int turn) const { return token + 8 * kFragments * turn; }

  __device__ __forceinline__ bool has(const Target<Kernel>& target, int turn) const {
    return token_of(turn) < min(target.tokens, TOKENS) && column < target.columns();
  }

  __device__ __forceinline__ size_t at(const Target<Kernel>& target, int turn) const {
    return static_cast<size_t>(token_of(turn)) * target.columns() + column;
  }
};

// True if all vectors are 16 bytes of their own.
__device__ __forceinline__ bool has_whole_vectors(const Target<Kernel>& target) {
  const auto to = reinterpret_cast<size_t>(target.out);
  const auto added = reinterpret_cast<size_t>(target.residual);
  return target.columns() % 8 == 0 && (to | added) % sizeof(uint4) == 0;
}

__device__ __forceinline__ float4 residual_of_fragment(const unsigned (&pairs)[4], int fragment) {
  const float2 first = floats_of(pairs[GATED ? fragment : 2 * fragment]);
  const float2 second = GATED ? make_float2(0.0f, 0.0f) : floats_of(pairs[2 * fragment + 1]);
  return make_float4(first.x, first.y, second.x, second.y);
}

// Completes and writes a block's sums. `first_column` is its warp's first result.
__device__ __forceinline__ void write_block(Sums& acc, const Target<Kernel>& target, float2 bias,
                                            int first_column, Vectors& vectors) {
  using Places = ResultVectors;
  // Turns whose residuals are under way.
  constexpr int kAtOnce = GROUPS / BLOCKS >= 3 ? 1 : kInCodes ? 8 : 4;
  const Places places = Places::of_lane(first_column);
  uint4& own = vectors[threadIdx.x % kWarp];
  const unsigned line = shared_address(&own);
#pragma unroll
  for (int first = 0; first < Places::kTurns; first += kAtOnce) {
    uint4 residuals[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const bool has = target.residual && places.has(target, first + n);
      residuals[n] = make_uint4(0u, 0u, 0u, 0u);
      if (has) {
        residuals[n] =
            *reinterpret_cast<const uint4*>(target.residual + places.at(target, first + n));
      }
    }
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) {
      const int turn = first + n;
      if (turn >= Places::kTurns) break;
      unsigned pairs[4] = {};
      if (target.residual) {
        own = residuals[n];
        __syncwarp();
        load_matrices_transposed(pairs, line);
        __syncwarp();
      }
      unsigned results[4] = {};
#pragma unroll
      for (int i = 0; i < Places::kFragments; ++i) {
        const int j = turn * Places::kFragments + i;
        if (j >= kColumns) break;
        complete<Kernel>(acc[j], bias, residual_of_fragment(pairs, i));
        results[GATED ? i : 2 * i] = pack_pair<T>(acc[j][0], acc[j][1]);
        if constexpr (!GATED) results[2 * i + 1] = pack_pair<T>(acc[j][2], acc[j][3]);
      }
      store_matrices_transposed(line, results);
      __syncwarp();
      const uint4 vector = own;
      __syncwarp();
      if (places.has(target, turn)) {
        *reinterpret_cast<uint4*>(target.out + places.at(target, turn)) = vector;
      }
    }
  }
}

// The sums of block `number` of a warpgroup.
__device__ __forceinline__ Sums& sums_of(Accumulators<Kernel>& acc, int number) {
  return *reinterpret_cast<Sums*>(&acc[number * kColumns]);
}

template <>
constexpr int kRowBlocks<Kernel> = BLOCKS;

// collect (epilogue.cuh) with more loads in flight: fragments and parts leave room for them.
__device__ __forceinline__ void collect_all(Accumulators<Kernel>& acc,
                                            const Target<Kernel>& target, int first) {
  constexpr int kAtOnce = GROUPS / BLOCKS < 3 ? 16 : 4;
  const int last = blockIdx.x;
  if (first == last) return;
  wait_for_left(target, first);
  for (int block = first; block < last; ++block) {
    const float4* left = target.left_by(block);
#pragma unroll
    for (int from = 0; from < Kernel::kColumns; from += kAtOnce) {
      float4 before[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce && from + n < Kernel::kColumns; ++n) {
        before[n] = __ldcg(left + (from + n) * Kernel::kThreads);
      }
#pragma unroll
      for (int n = 0; n < kAtOnce && from + n < Kernel::kColumns; ++n) {
        float (&sum)[4] = acc[from + n];
        sum[0] += before[n].x;
        sum[1] += before[n].y;
        sum[2] += before[n].z;
        sum[3] += before[n].w;
      }
      asm volatile("" ::: "memory");  // the next ones would not fit into registers beside these
    }
  }
}

// finish_tile (epilogue.cuh) for tiles whose warpgroups have BLOCKS blocks of rows.
__device__ __forceinline__ void finish_blocks(Accumulators<Kernel>& acc, const ChunkCursor& place,
                                              const WorkRange& range, const Target<Kernel>& target,
                                              bool has_all, const Lane& own, Vectors& vectors) {
  if (!range.owns(place)) {
    leave<Kernel>(acc, target);
    return;
  }
  if (!has_all) collect_all(acc, target, range.first_block(place.tile));
  const bool whole = has_whole_vectors(target);
#pragma unroll
  for (int number = 0; number < BLOCKS; ++number) {
    int warp = (own.group * BLOCKS + number) * 4 + own.warp;
    Target<Kernel> anew = target;
    // What depends on these is not to be computed, and kept, before the multiplication.
    asm volatile("" : "+r"(warp), "+r"(anew.rows));
    const int column = column_of<Kernel>(place.tile, warp);
    const float2 bias = bias_of<Kernel>(anew, column);
    Sums& sums = sums_of(acc, number);
    if (whole) {
      write_block(sums, anew, bias, column - own.lane / 4, vectors);
      continue;
    }
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const int token = 8 * j + 2 * (own.lane % 4);
      complete<Kernel>(sums[j], bias, residual_of<Kernel>(anew, column, token));
      store<Kernel>(sums[j], anew, column, token);
    }
  }
}
