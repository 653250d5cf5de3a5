// The gated delta rule for slices of any length, in chunks of CHUNK tokens (Yang et al. 2024,
// section 3.3). With G the sums of log decays g up to each token of a chunk, S the state in front,
// and L the entries below the diagonal of beta_t exp(G_t - G_i) k_t . k_i:
//
//   (1 + L) U = beta (V - exp(G) K S)
//   O = exp(G) Q S + P U                        P = exp(G_t - G_i) q_t . k_i for i <= t
//   S <- exp(G_last) S + (exp(G_last - G) K)^T U
//
// A warp keeps 16 columns of S in registers, transposed, from the first chunk to the last: columns
// do not depend on each other, so that warps share L, P and the chunk's rows alone, and a block
// takes any number of them. (1 + L) U = R is solved by blocks of 16 tokens, with the inverses of
// the blocks on the diagonal.
//
// Products are those of 16-bit tensor cores with sums in float32. Queries, keys and values are
// exact in 16 bits; everything else is split into two numbers, which keeps 16 bits of a mantissa
// (bfloat16) or 22. Their lengths are divided by afterwards.
//
// Chunks end early where a snapshot is to be left.
//
// Macros: T (half or bfloat16), KEY, VALUE (sizes of a head), VECTOR (elements per load), CHUNK,
//         WARPS, SHARED_BYTES.
// Demands: VECTOR divides KEY, VALUE and where rows begin.

constexpr int kThreads = WARPS * kWarp;
constexpr int kTile = 16;                                  // tokens, and columns of a warp
constexpr int kKey = (KEY + kTile - 1) / kTile * kTile;    // with zeros behind
constexpr int kColumns = WARPS * kTile;                    // of a block
constexpr int kBlocks = CHUNK / kTile;
constexpr int kRow = kKey + 8, kSquare = CHUNK + 8, kInverse = kTile + 8, kOut = kColumns + 8;

// A number as two of T: the nearest, and the nearest to what is missing.
__device__ __forceinline__ void split_pair(unsigned& high, unsigned& low, float first,
                                           float second) {
  high = pack_pair<T>(first, second);
  const Pack<T, 2> rounded = *reinterpret_cast<const Pack<T, 2>*>(&high);
  low = pack_pair<T>(first - to_float(rounded.at[0]), second - to_float(rounded.at[1]));
}

struct Fragment {
  unsigned high[4], low[4];
};

// Two adjacent tiles of sums [16 x 8] as one fragment [16 x 16].
__device__ __forceinline__ Fragment split(const float (&left)[4], const float (&right)[4]) {
  Fragment to;
  split_pair(to.high[0], to.low[0], left[0], left[1]);
  split_pair(to.high[1], to.low[1], left[2], left[3]);
  split_pair(to.high[2], to.low[2], right[0], right[1]);
  split_pair(to.high[3], to.low[3], right[2], right[3]);
  return to;
}

// sum += a * b, b exact.
__device__ __forceinline__ void add(float (&sum)[4], const Fragment& a, unsigned b0, unsigned b1) {
  multiply_add<T>(sum, a.high, b0, b1);
  multiply_add<T>(sum, a.low, b0, b1);
}

// Rows of a matrix in shared memory, split; a fragment [16 tokens x 16] of it serves as B of two
// products, transposed.
struct Matrix {
  T* high;
  T* low;
  int stride;

  __device__ void set(int row, int column, float first, float second) const {
    unsigned a, b;
    split_pair(a, b, first, second);
    *reinterpret_cast<unsigned*>(high + row * stride + column) = a;
    *reinterpret_cast<unsigned*>(low + row * stride + column) = b;
  }
};

// The address of what load_matrices takes for rows [row, row + 16) and columns [column, + 16), as B
// with its rows along N.
__device__ __forceinline__ unsigned along_n(const T* base, int stride, int row, int column) {
  const int lane = threadIdx.x % kWarp;
  return shared_address(base + (row + lane / 16 * 8 + lane % 8) * stride + column +
                        lane / 8 % 2 * 8);
}

// The same as A; transposed, as B with its rows along K.
__device__ __forceinline__ unsigned along_m(const T* base, int stride, int row, int column) {
  const int lane = threadIdx.x % kWarp;
  return shared_address(base + (row + lane % 16) * stride + column + lane / 16 * 8);
}

// sums[0..1] += a * b^T, both split, for 16 rows of b from (row, column) on.
__device__ __forceinline__ void add(float (&left)[4], float (&right)[4], const Fragment& a,
                                    const Matrix& b, int row, int column) {
  unsigned part[4];
  load_matrices(part, along_n(b.high, b.stride, row, column));
  add(left, a, part[0], part[1]);
  add(right, a, part[2], part[3]);
  load_matrices(part, along_n(b.low, b.stride, row, column));
  multiply_add<T>(left, a.high, part[0], part[1]);
  multiply_add<T>(right, a.high, part[2], part[3]);
}

struct Shared {
  alignas(16) T query[CHUNK][kRow];
  alignas(16) T key[CHUNK][kRow];
  alignas(16) T value[CHUNK][kOut];     // and what is read, once a warp has its values
  alignas(16) T system[2][CHUNK][kSquare];   // L
  alignas(16) T scores[2][CHUNK][kSquare];   // P
  alignas(16) T inverse[2][CHUNK][kInverse];  // of the blocks of 1 + L on the diagonal
  float diagonal[CHUNK][kTile + 1];          // those blocks of L
  float query_scale[CHUNK], key_scale[CHUNK], beta[CHUNK], decay[CHUNK];  // decay: G
};

static_assert(sizeof(Shared) <= SHARED_BYTES, "tuning.shared_bytes counts too few");

// Copies `count` rows of `width` elements, zeros behind them and beside them; returns through
// `scales` one over the length of each where that is wanted.
template <int kWidth, int kPadded, int kStride>
__device__ __forceinline__ void copy_rows(T* to, const T* from, long long stride, int count,
                                          float* scales, float factor) {
  constexpr int kPacks = kPadded / VECTOR;  // of a row
  constexpr int kLanes = kPacks < kWarp ? (kPacks & (kPacks - 1) ? 1 : kPacks) : kWarp;
  constexpr int kOf = (kPacks + kLanes - 1) / kLanes;  // of a lane
#pragma unroll 4
  for (int row = threadIdx.x / kLanes; row < CHUNK; row += kThreads / kLanes) {
    float squares = 0.0f;
#pragma unroll
    for (int p = 0; p < kOf; ++p) {
      const int column = (p * kLanes + threadIdx.x % kLanes) * VECTOR;
      if (column >= kPadded) continue;
      Pack<T, VECTOR> pack;
      if (row < count && column < kWidth) {
        pack = pack_at<VECTOR>(from + row * stride + column);
      } else {
#pragma unroll
        for (int v = 0; v < VECTOR; ++v) pack.at[v] = from_float<T>(0.0f);
      }
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) squares += square(to_float(pack.at[v]));
      *reinterpret_cast<Pack<T, VECTOR>*>(to + row * kStride + column) = pack;
    }
    if (scales != nullptr) {
      squares = lanes_sum<kLanes>(squares);
      if (threadIdx.x % kLanes == 0) scales[row] = unit_scale(squares) * factor;
    }
  }
}

// Writes the 16 rows `tile` of L (of keys) or P (of queries).
__device__ __forceinline__ void compare(Shared& shared, bool is_query, int tile) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const T* rows = is_query ? shared.query[0] : shared.key[0];
  const float* scales = is_query ? shared.query_scale : shared.key_scale;
  auto& out = is_query ? shared.scores : shared.system;
  const Matrix to{out[0][0], out[1][0], kSquare};
  for (int block = 0; block <= tile; ++block) {
    float sums[2][4] = {};
#pragma unroll
    for (int d = 0; d < kKey; d += kTile) {
      unsigned a[4], b[4];
      load_matrices(a, along_m(rows, kRow, tile * kTile, d));
      load_matrices(b, along_n(shared.key[0], kRow, block * kTile, d));
      multiply_add<T>(sums[0], a, b[0], b[1]);
      multiply_add<T>(sums[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int row = tile * kTile + g + 8 * side;
        const int column = block * kTile + 8 * eight + 2 * t;
        const float factor = scales[row] * (is_query ? 1.0f : shared.beta[row]);
        float pair[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
          const int i = column + n;
          const bool counts = is_query ? i <= row : i < row;
          pair[n] = counts ? sums[eight][2 * side + n] * factor * shared.key_scale[i] *
                                 __expf(shared.decay[row] - shared.decay[i])
                           : 0.0f;
          if (!is_query && block == tile) shared.diagonal[row][i - block * kTile] = pair[n];
        }
        to.set(row, column, pair[0], pair[1]);
      }
    }
  }
}

// Writes column `c` of the inverse of 1 + L within a block of 16 tokens on the diagonal.
__device__ __forceinline__ void invert(Shared& shared, int block, int c) {
  float column[kTile];
#pragma unroll
  for (int i = 0; i < kTile; ++i) {
    float sum = i == c ? 1.0f : 0.0f;
#pragma unroll
    for (int j = 0; j < i; ++j) sum -= shared.diagonal[block * kTile + i][j] * column[j];
    column[i] = sum;
    const T high = from_float<T>(sum);
    shared.inverse[0][block * kTile + i][c] = high;
    shared.inverse[1][block * kTile + i][c] = from_float<T>(sum - to_float(high));
  }
}

// 16 columns of a state, transposed: rows of tiles [16 x 8] along KEY.
using State = float[kKey / 8][4];

__device__ __forceinline__ void move_state(State& state, float* span, int column, bool loads) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
#pragma unroll
  for (int tile = 0; tile < kKey / 8; ++tile) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int d = tile * 8 + 2 * t + n % 2, e = column + g + n / 2 * 8;
      const bool is_there = d < KEY && e < VALUE;
      if (loads) {
        state[tile][n] = is_there && span != nullptr ? span[d * VALUE + e] : 0.0f;
      } else if (is_there) {
        span[d * VALUE + e] = state[tile][n];
      }
    }
  }
}

// sums[16 columns x CHUNK tokens] += state^T rows^T
__device__ __forceinline__ void multiply_state(float (&sums)[2 * kBlocks][4], const State& state,
                                               const T* rows) {
#pragma unroll
  for (int d = 0; d < kKey; d += kTile) {
    const Fragment part = split(state[d / 8], state[d / 8 + 1]);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      unsigned b[4];
      load_matrices(b, along_n(rows, kRow, block * kTile, d));
      add(sums[2 * block], part, b[0], b[1]);
      add(sums[2 * block + 1], part, b[2], b[3]);
    }
  }
}

// Computes a chunk whose rows, gates, L, P and inverses are in shared memory, for the 16 columns of
// a warp, from `first` on in shared.value: the state becomes that behind it, and the values what is
// read.
__device__ __forceinline__ void compute_chunk(Shared& shared, State& state, int first) {
  const int lane = threadIdx.x % kWarp, t = lane % 4;
  const Matrix system{shared.system[0][0], shared.system[1][0], kSquare};
  const Matrix scores{shared.scores[0][0], shared.scores[1][0], kSquare};
  const Matrix inverse{shared.inverse[0][0], shared.inverse[1][0], kInverse};

  // First what the state knows of the keys and U, then what it says to the queries: the sums of
  // both at once would take more registers than there are.
  float known[2 * kBlocks][4] = {};  // S^T K^T
  multiply_state(known, state, shared.key[0]);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    unsigned values[4];  // (columns 0.., tokens 0..) (columns 8..) (tokens 8..) (both)
    const int row = block * kTile + lane / 16 * 8 + lane % 8;
    load_matrices_transposed(values,
                             shared_address(&shared.value[row][first + lane / 8 % 2 * 8]));
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int token = block * kTile + eight * 8 + 2 * t + n % 2;
        const Pack<T, 2> pair =
            *reinterpret_cast<const Pack<T, 2>*>(&values[eight * 2 + n / 2]);
        const float scale = __expf(shared.decay[token]) * shared.key_scale[token];
        float& to = known[2 * block + eight][n];
        to = shared.beta[token] * (to_float(pair.at[n % 2]) - scale * to);
      }
    }
  }

  // U takes the place of `known`, block by block; what it adds to later ones is taken off.
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int row = block * kTile;
    float (&left)[4] = known[2 * block], (&right)[4] = known[2 * block + 1];
    const Fragment rest = split(left, right);
    float solved[2][4] = {};
    add(solved[0], solved[1], rest, inverse, row, 0);
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      left[n] = solved[0][n];
      right[n] = solved[1][n];
    }
    const Fragment written = split(left, right);
#pragma unroll
    for (int later = block + 1; later < kBlocks; ++later) {
      const int to = later * kTile;
      float taken[2][4] = {};
      add(taken[0], taken[1], written, system, to, row);
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        known[2 * later][n] -= taken[0][n];
        known[2 * later + 1][n] -= taken[1][n];
      }
    }
  }

  float read[2 * kBlocks][4] = {};  // S^T Q^T
  multiply_state(read, state, shared.query[0]);
#pragma unroll
  for (int tile = 0; tile < 2 * kBlocks; ++tile) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      const int token = tile * 8 + 2 * t + n % 2;
      read[tile][n] *= __expf(shared.decay[token]) * shared.query_scale[token];
    }
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const Fragment written = split(known[2 * block], known[2 * block + 1]);
#pragma unroll
    for (int later = block; later < kBlocks; ++later) {
      add(read[2 * later], read[2 * later + 1], written, scores, later * kTile, block * kTile);
    }
  }
  __syncwarp();
  const int g = lane / 4;
#pragma unroll
  for (int tile = 0; tile < 2 * kBlocks; ++tile) {
#pragma unroll
    for (int n = 0; n < 4; ++n) {
      shared.value[tile * 8 + 2 * t + n % 2][first + g + n / 2 * 8] =
          from_float<T>(read[tile][n]);
    }
  }
  __syncwarp();

  const float last = shared.decay[CHUNK - 1], decay = __expf(last);
#pragma unroll
  for (int tile = 0; tile < kKey / 8; ++tile) {
#pragma unroll
    for (int n = 0; n < 4; ++n) state[tile][n] *= decay;
  }
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
    for (int eight = 0; eight < 2; ++eight) {
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        const int token = block * kTile + eight * 8 + 2 * t + n % 2;
        known[2 * block + eight][n] *=
            __expf(last - shared.decay[token]) * shared.key_scale[token];
      }
    }
    const Fragment part = split(known[2 * block], known[2 * block + 1]);
#pragma unroll
    for (int d = 0; d < kKey; d += kTile) {
      unsigned b[4];
      load_matrices_transposed(b, along_m(shared.key[0], kRow, block * kTile, d));
      add(state[d / 8], part, b[0], b[1]);
      add(state[d / 8 + 1], part, b[2], b[3]);
    }
  }
}

// Writes log decays, summed, and rates of `count` tokens, by the first warp; behind them nothing
// decays and nothing is written.
__device__ __forceinline__ void write_gates(Shared& shared, const T* a, const T* b,
                                            long long a_stride, long long b_stride, float a_log,
                                            float dt_bias, int count) {
  float before = 0.0f;
#pragma unroll
  for (int first = 0; first < CHUNK; first += kWarp) {
    const int token = first + threadIdx.x;
    float sum = 0.0f, beta = 0.0f;
    if (token < count) {
      sum = log_decay(to_float(a[token * a_stride]), a_log, dt_bias);
      beta = sigmoid(to_float(b[token * b_stride]));
    }
#pragma unroll
    for (int step = 1; step < kWarp; step *= 2) {
      const float other = __shfl_up_sync(0xffffffffu, sum, step);
      if (threadIdx.x >= step) sum += other;
    }
    shared.decay[token] = before + sum;
    shared.beta[token] = beta;
    before += __shfl_sync(0xffffffffu, sum, kWarp - 1);
  }
}

extern "C" __global__ void __launch_bounds__(kThreads)
    learn_chunks(T* out, const T* x, const T* a, const T* b, const float* a_log,
                 const float* dt_bias, float* states, const int* table_rows, const int* seq_lens,
                 const int* query_start_loc, const int* tables, long long x_stride,
                 long long a_stride, long long b_stride, long long table_stride,
                 long long span_stride, int span_len, int key_heads, int value_heads,
                 int num_decodes) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  let_next_kernel_start();
  wait_for_kernel_before();
  constexpr int kParts = (VALUE + kColumns - 1) / kColumns;
  const int head = blockIdx.x / kParts, key_head = head / (value_heads / key_heads);
  const int column = blockIdx.x % kParts * kColumns;  // of the block
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, own = warp * kTile;
  const SliceTable slices{table_rows, seq_lens, query_start_loc, tables, table_stride, span_len};
  const Slice slice = slices.at(num_decodes + blockIdx.y);
  if (slice.table == nullptr || slice.count <= 0) return;

  const long long token = slice.first;
  const T* q = x + token * x_stride + key_head * KEY;
  const T* k = q + key_heads * KEY;
  const T* v = x + token * x_stride + 2 * key_heads * KEY + head * VALUE + column;
  const long long place = static_cast<long long>(head) * KEY * VALUE;
  out += (token * value_heads + head) * VALUE + column;
  a += token * a_stride + head;
  b += token * b_stride + head;
  const float of_a_log = a_log[head], of_dt_bias = dt_bias[head];
  const int width = min(kColumns, VALUE - column);
  const auto span_at = [&](int span) { return states + span * span_stride + place; };

  State state;
  const int source = slice.source();
  move_state(state, source < 0 ? nullptr : span_at(source), column + own, true);
  for (int begin = 0; begin < slice.count;) {
    int count = min(CHUNK, slice.count - begin), left = -1;
    for (int index = (slice.start + begin) / span_len;; ++index) {
      const int border = (index + 1) * span_len - slice.start - begin;
      if (border > count) break;
      left = slice.snapshot(index);
      if (left < 0) continue;
      count = border;
      break;
    }

    if (warp == 0) {
      write_gates(shared, a + begin * a_stride, b + begin * b_stride, a_stride, b_stride, of_a_log,
                  of_dt_bias, count);
    }
    copy_rows<KEY, kKey, kRow>(shared.query[0], q + begin * x_stride, x_stride, count,
                               shared.query_scale, rsqrtf(KEY));
    copy_rows<KEY, kKey, kRow>(shared.key[0], k + begin * x_stride, x_stride, count,
                               shared.key_scale, 1.0f);
    for (int n = threadIdx.x; n < CHUNK * (kColumns / VECTOR); n += kThreads) {
      const int row = n / (kColumns / VECTOR), at = n % (kColumns / VECTOR) * VECTOR;
      Pack<T, VECTOR> pack;
      if (row < count && at < width) {
        pack = pack_at<VECTOR>(v + (begin + row) * x_stride + at);
      } else {
#pragma unroll
        for (int i = 0; i < VECTOR; ++i) pack.at[i] = from_float<T>(0.0f);
      }
      *reinterpret_cast<Pack<T, VECTOR>*>(&shared.value[row][at]) = pack;
    }
    __syncthreads();
    for (int unit = warp; unit < 2 * kBlocks; unit += WARPS) {
      const int pair = unit / 2;  // tiles 0 1 3 2: warps get equally much
      compare(shared, unit % 2, pair < kBlocks / 2 ? pair : kBlocks + kBlocks / 2 - 1 - pair);
    }
    __syncthreads();
    if (threadIdx.x < CHUNK) invert(shared, threadIdx.x / kTile, threadIdx.x % kTile);
    __syncthreads();
    compute_chunk(shared, state, own);
    for (int n = lane; n < CHUNK * (kTile / VECTOR); n += kWarp) {
      const int row = n / (kTile / VECTOR), at = own + n % (kTile / VECTOR) * VECTOR;
      if (row >= count || at >= width) continue;
      const long long to = static_cast<long long>(begin + row) * value_heads * VALUE + at;
      *reinterpret_cast<Pack<T, VECTOR>*>(out + to) = pack_at<VECTOR>(&shared.value[row][at]);
    }
    begin += count;
    if (left >= 0) move_state(state, span_at(left), column + own, false);
    __syncthreads();
  }
  move_state(state, span_at(slice.target()), column + own, false);
}
