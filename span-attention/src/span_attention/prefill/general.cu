// Causal attention of new rows over keys and values in spans, on any architecture: mma.sync.
//
//   out[t h] = sum_j softmax_j(score(t, h, j)) values[j k]      over the positions j that t sees
//
// score = softcap(scale * query[t h] . keys[j k]) + bias, k = h / (heads / kv_heads). A warp holds
// 16 * M_TILES lines of a tile (csrc/tiles.cuh) and all BLOCK keys of a block, so that softmax
// needs no exchange between warps. Keys and values each have one buffer: the keys of the next block
// travel while this one's values are multiplied, and its values while the scores are made.
//
// Values wider than VALUE_TILE are cut into chunks, each of them a task that makes the scores
// again: the sums of a wider one do not fit the registers. Where values are the first elements of
// the keys (MLA, IN_KEYS), they are read from the keys' buffer.
//
// Blocks of keys begin at multiples of BLOCK, so that a row's result does not depend on the slice
// that it came in.
//
// Macros: T (half or bfloat16), STORED (T, or a type of codes.cuh), KEY_SIZE, VALUE_SIZE,
//         VALUE_TILE, IN_KEYS (0 or 1), BLOCK, M_TILES, WARPS, LSE (0 or 1: the log-sum-exps
//         of scores are written to lse[rows heads]), RAGGED (csrc/tiles.cuh), WIDTH (RAGGED: the
//         elements of a head in memory; sizes are those in shared memory, multiples of 16), BIASED
//         (RAGGED, 0 or 1: scores get biases[heads 2 * reach + 1] by how far a key is ahead).
// Demands: sizes multiples of 16, as is BLOCK; VALUE_TILE divides VALUE_SIZE; a head's elements
//          contiguous and 16-byte aligned; 1 << span_shift tokens to a span.

constexpr int kThreads = kWarp * WARPS;
constexpr int kLines = 16 * M_TILES * WARPS;  // of a tile
constexpr int kKeyPitch = KEY_SIZE + 8;  // 16 bytes more than a row: ldmatrix meets no bank twice
constexpr int kValuePitch = IN_KEYS ? kKeyPitch : VALUE_TILE + 8;
constexpr int kChunks = VALUE_SIZE / VALUE_TILE;
constexpr int kFragments = BLOCK / 8;
constexpr int kKeyWidth = RAGGED ? WIDTH : KEY_SIZE;      // elements of a head in memory
constexpr int kValueWidth = RAGGED ? WIDTH : VALUE_SIZE;  // the same of values and results

using Tile = TileOf<RAGGED>;

// One of keys and values: its memory, strides in bytes, and the numbers of its codes.
struct Array {
  const char* codes;
  long long span, head, token;
  const char* numbers;
  long long scales_span, scales_head, scales_token;
};

// The addresses of a request's tokens.
struct Table {
  const int* spans;
  int span_shift;
  int first;  // RAGGED: the row of the first key

  __device__ __forceinline__ int span(int token) const {
    return RAGGED ? 0 : spans[token >> span_shift];
  }
  __device__ __forceinline__ int place(int token) const {
    return RAGGED ? first + token : token & ((1 << span_shift) - 1);
  }
};

// Brings the elements first .. first + kSize - 1 of BLOCK tokens into rows of kPitch: those that
// the tile sees, and in place of earlier ones, which may be of no span, its first; zeros for later
// ones and for elements from kWidth on. Floats arrive with this thread's next group of copies,
// codes at once.
template <int kSize, int kPitch, int kWidth>
__device__ __forceinline__ void fetch(T* to, const Array& from, int head, int first, int token,
                                      const Tile& tile, const Table& table) {
  constexpr int kBits = Storage<STORED>::kBits, kPerCopy = 128 / kBits;
  constexpr int kCopies = kSize / kPerCopy;
  static_assert(kSize % kPerCopy == 0, "whole copies of 16 bytes");
  const char* codes = from.codes + head * from.head + first * kBits / 8;
#pragma unroll 2  // the addresses of more do not fit the registers beside the sums
  for (int i = threadIdx.x; i < BLOCK * kCopies; i += kThreads) {
    const int row = i / kCopies, copy = i % kCopies;
    const bool is_row = token + row <= tile.last_key;
    const bool is_there = is_row && first + copy * kPerCopy < kWidth;
    const int at = min(max(token + row, tile.first_key), tile.last_key);
    const long long span = table.span(at), place = table.place(at);
    const char* source =
        codes + span * from.span + place * from.token + (RAGGED && !is_there ? 0 : copy * 16);
    T* target = to + row * kPitch + copy * kPerCopy;
    if constexpr (kBits == 16) {
      copy_16(target, source, is_there);
    } else {
      const char* numbers = from.numbers + head * from.scales_head + span * from.scales_span +
                            place * from.scales_token;
      dequantize_16<T, STORED>(target, *reinterpret_cast<const uint4*>(source),
                          reinterpret_cast<const float*>(numbers));
    }
  }
  commit_copies();
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    prefill_general(T* out, const T* query, long long query_stride, int query_head,
                    const int* span_tables, const int* table_rows, int* plan, int num_slices,
                    int table_stride, int span_shift, int heads, int pack, int kv_heads,
                    float softmax_scale, float softcap, int window, const float* alibi_slopes,
                    const float* sinks, const char* keys, long long key_span, long long key_head,
                    long long key_token, const char* key_scales, long long key_scales_span,
                    long long key_scales_head, long long key_scales_token, const char* values,
                    long long value_span, long long value_head, long long value_token,
                    const char* value_scales, long long value_scales_span,
                    long long value_scales_head, long long value_scales_token, float* lse,
                    int ahead, const float* biases, int reach) {
  extern __shared__ __align__(16) unsigned char memory[];
  T* query_tile = reinterpret_cast<T*>(memory);
  T* key_tile = query_tile + kLines * kKeyPitch;
  T* value_tile = key_tile + (IN_KEYS ? 0 : BLOCK * kKeyPitch);
  const Array key_array{keys,       key_span,        key_head,        key_token,
                        key_scales, key_scales_span, key_scales_head, key_scales_token};
  const Array value_array{values,       value_span,        value_head,        value_token,
                          value_scales, value_scales_span, value_scales_head, value_scales_token};
  const Slices slices{plan, num_slices};
  const Scores scores{softmax_scale, softcap, window, BIASED || alibi_slopes};
  const int lane = threadIdx.x % kWarp, first_line = threadIdx.x / kWarp * 16 * M_TILES;
  const int packs = heads / pack, packs_per_kv_head = packs / kv_heads;
  const int tile_rows = kLines / pack;
  const int tasks = slices.num_tiles() * packs * kChunks;

  for (int round = 0; round * gridDim.x < tasks; ++round) {
    const int task = task_of(round);
    if (task >= tasks) continue;
    const int chunk = task % kChunks, which_pack = task / kChunks % packs;
    const Tile tile(slices, task / kChunks / packs, window, ahead);
    const int kv_head = which_pack / packs_per_kv_head, first_head = which_pack * pack;
    const Table table{
        RAGGED ? nullptr
               : span_tables + static_cast<long long>(table_rows[tile.slice]) * table_stride,
        span_shift, tile.slice};
    const int last_block = tile.last_key / BLOCK, first_block = tile.first_key / BLOCK;

    __syncthreads();  // of the task before, all lines have been read
    constexpr int kCopies = KEY_SIZE / 8;
    for (int i = threadIdx.x; i < kLines * kCopies; i += kThreads) {
      const int line = i / kCopies, copy = i % kCopies;
      const bool is_there = line < tile.num_rows * pack && copy * 8 < kKeyWidth;
      const int row = is_there ? line / pack : 0, head = first_head + (is_there ? line % pack : 0);
      const int element = is_there ? copy * 8 : 0;
      copy_16(query_tile + line * kKeyPitch + copy * 8,
              query + (tile.row + row) * query_stride + head * query_head + element, is_there);
    }
    fetch<KEY_SIZE, kKeyPitch, kKeyWidth>(key_tile, key_array, kv_head, 0, last_block * BLOCK,
                                          tile, table);

    float acc[M_TILES][VALUE_TILE / 8][4] = {};
    Rows states[M_TILES];
    int position[M_TILES][2];
    float slope[M_TILES][2];
    const float* bias[M_TILES][2];
#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int line = first_line + 16 * m + 8 * part + lane / 4;
        position[m][part] = tile.position_of(line / pack);
        const int head = first_head + line % pack;
        slope[m][part] = alibi_slopes ? alibi_slopes[head] : 0.0f;
        bias[m][part] = BIASED ? biases + head * (2 * reach + 1) + reach : nullptr;
        if (sinks) {
          states[m].most[part] = sinks[head] * kLog2e / scores.log2_scale();
          states[m].sum[part] = lane % 4 ? 0.0f : 1.0f;
        }
      }
    }

    for (int block = last_block; block >= first_block; --block) {
      const int first_key = block * BLOCK;
      wait_for_copies<0>();
      __syncthreads();  // keys are there, and the values of the block before have been read
      if constexpr (!IN_KEYS) {
        fetch<VALUE_TILE, kValuePitch, kValueWidth>(value_tile, value_array, kv_head,
                                                    chunk * VALUE_TILE, first_key, tile, table);
      }

      float s[M_TILES][kFragments][4] = {};
#pragma unroll
      for (int k = 0; k < KEY_SIZE; k += 16) {
        unsigned q[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
          load_matrices(q[m], shared_address(query_tile +
                                             (first_line + 16 * m + lane % 16) * kKeyPitch + k +
                                             lane / 16 * 8));
        }
#pragma unroll
        for (int n = 0; n < kFragments; n += 2) {
          unsigned b[4];
          const int key = 8 * n + lane / 16 * 8 + lane % 8;
          load_matrices(b, shared_address(key_tile + key * kKeyPitch + k + lane / 8 % 2 * 8));
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            multiply_add<T>(s[m][n], q[m], b[0], b[1]);
            multiply_add<T>(s[m][n + 1], q[m], b[2], b[3]);
          }
        }
      }

      const int column = first_key + lane % 4 * 2;
      const bool all = tile.sees_all(first_key, BLOCK, window);
#pragma unroll
      for (int m = 0; m < M_TILES; ++m) {
        if constexpr (BIASED) {
          scores.shape(s[m], column, position[m], bias[m], reach, ahead);
        } else {
          scores.shape(s[m], column, position[m], slope[m]);
        }
        if (!all) scores.hide(s[m], column, position[m], RAGGED ? tile.last_key : kEverywhere);
        float keep[2];
        absorb(s[m], states[m], scores.log2_scale(), keep);
#pragma unroll
        for (int n = 0; n < VALUE_TILE / 8; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) acc[m][n][i] *= keep[i / 2];
        }
      }

      if constexpr (!IN_KEYS) {
        wait_for_copies<0>();
        __syncthreads();  // values are there, and the keys have been read
        if (block > first_block) {
          fetch<KEY_SIZE, kKeyPitch, kKeyWidth>(key_tile, key_array, kv_head, 0, first_key - BLOCK,
                                                tile, table);
        }
      }
#pragma unroll
      for (int k = 0; k < BLOCK; k += 16) {
        unsigned p[M_TILES][4];
#pragma unroll
        for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const float* pair = &s[m][k / 8 + i / 2][i % 2 * 2];
            p[m][i] = pack_pair<T>(pair[0], pair[1]);
          }
        }
#pragma unroll
        for (int n = 0; n < VALUE_TILE / 8; n += 2) {
          unsigned b[4];
          load_matrices_transposed(
              b, shared_address(value_tile + (k + lane % 16) * kValuePitch +
                                (IN_KEYS ? chunk * VALUE_TILE : 0) + 8 * n + lane / 16 * 8));
#pragma unroll
          for (int m = 0; m < M_TILES; ++m) {
            multiply_add<T>(acc[m][n], p[m], b[0], b[1]);
            multiply_add<T>(acc[m][n + 1], p[m], b[2], b[3]);
          }
        }
      }
      if constexpr (IN_KEYS) {
        if (block > first_block) {
          __syncthreads();  // the only buffer has been read
          fetch<KEY_SIZE, kKeyPitch, kKeyWidth>(key_tile, key_array, kv_head, 0, first_key - BLOCK,
                                                tile, table);
        }
      }
    }

#pragma unroll
    for (int m = 0; m < M_TILES; ++m) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        const int line = first_line + 16 * m + 8 * part + lane / 4;
        const float total = states[m].total(part), share = 1.0f / total;
        if (line >= tile.num_rows * pack) continue;
        const long long head =
            static_cast<long long>(tile.row + line / pack) * heads + first_head + line % pack;
        if (LSE && chunk == 0 && lane % 4 == 0) {
          lse[head] = log_sum(states[m].most[part] * scores.log2_scale(), total);
        }
        T* to = out + head * kValueWidth + chunk * VALUE_TILE + lane % 4 * 2;
#pragma unroll
        for (int n = 0; n < VALUE_TILE / 8; ++n) {
          if (chunk * VALUE_TILE + 8 * n >= kValueWidth) continue;
          const float* pair = &acc[m][n][2 * part];
          *reinterpret_cast<unsigned*>(to + 8 * n) =
              pack_pair<T>(pair[0] * share, pair[1] * share);
        }
      }
    }
  }
}
