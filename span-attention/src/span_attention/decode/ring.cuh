// Loads through shared memory: each warp has a ring of SLOTS halves of tiles (keys or values) that
// its lanes copy ahead, and reads them as fragments of the tensor cores.
//
// A half is kTile rows of kKeyBytes or kValueBytes. The 16-byte pieces of a row lie in an order of
// their own (`place_of`), so that eight rows of one piece, which a matrix of ldmatrix takes, are in
// all banks.

#if SLOTS > 0
constexpr int kPieceBytes = 16, kPieces = kKeyBytes / kPieceBytes;
static_assert(Codes::kBits == 16 && KEY_SIZE == VALUE_TILE, "halves of one size, of floats");
static_assert(kPieces % 8 == 0 && kPieces <= kWarp && kWarp % kPieces == 0, "rows of whole lines");
static_assert(KEY_PARTS == 1 && VALUE_PARTS == 1, "halves are copied whole");

constexpr int kHalfBytes = kTile * kKeyBytes;
constexpr int kRowsPerCopy = kWarp / kPieces;  // that a warp copies at once

// Where the piece of a row lies in a half.
__device__ __forceinline__ unsigned place_of(int row, int piece) {
  return row * kKeyBytes + ((piece ^ (row & 7)) * kPieceBytes);
}

struct Ring {
  unsigned first;   // the address of the warp's first half
  int copied, read; // the slots of the next half to copy and to read

  __device__ __forceinline__ explicit Ring(const void* memory)
      : first(shared_address(memory) + threadIdx.x / kWarp * (SLOTS * kHalfBytes)),
        copied(0),
        read(0) {}

  // Copies kTile rows of a tile, `from` being the first of the head in a span, as one group.
  template <int kStride>
  __device__ __forceinline__ void copy(const char* base, const Arguments& of, const Tile& tile,
                                       const Spans& spans) {
    const int lane = threadIdx.x % kWarp, row = lane / kPieces, piece = lane % kPieces;
    const unsigned to = first + copied * kHalfBytes;
    base += row * kStride + piece * kPieceBytes;
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      const char* from = rows_of<kStride>(base, of, tile, i, spans[i]);
#pragma unroll
      for (int n = 0; n < kMmaTokens; n += kRowsPerCopy) {
        asm volatile("cp.async.cg.shared.global" HINT " [%0], [%1], 16" POLICY_AT(2) ";" ::"r"(
                         to + i * kMmaTokens * kKeyBytes + place_of(row + n, piece)),
                     "l"(from + n * static_cast<long long>(kStride)) POLICY
                     : "memory");
      }
    }
    copied = copied + 1 == SLOTS ? 0 : copied + 1;
  }

  // Waits for the next half and returns its address.
  __device__ __forceinline__ unsigned wait() {
    wait_for_copies<SLOTS - 1>();
    __syncwarp();
    const unsigned half = first + read * kHalfBytes;
    read = read + 1 == SLOTS ? 0 : read + 1;
    return half;
  }
};

// The queries of an item as fragments in registers.
using Queries = uint2[HEAD_TILES][kSteps];

__device__ __forceinline__ void load_queries(Queries& queries, const Arguments& of,
                                             const Tile& tile) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, t = lane % 4;
  const Heads heads(of, tile.kv_head, tile.section);
  const T* query = of.query + tile.request * of.query_stride + heads.head * KEY_SIZE;
#pragma unroll
  for (int n = 0; n < HEAD_TILES; ++n) {
    const unsigned* words =
        reinterpret_cast<const unsigned*>(query + (8 * n + g) * KEY_SIZE) + t;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint2 pair = make_uint2(0, 0);
      if (8 * n + g < heads.count) {
        pair = make_uint2(__ldcg(words + 8 * step), __ldcg(words + 8 * step + 4));
      }
      queries[n][step] = pair;
    }
  }
}

// Adds the products of the keys of a half with the queries.
__device__ __forceinline__ void multiply_keys(Products& scores, unsigned half,
                                              const Queries& queries) {
  const int lane = threadIdx.x % kWarp;
  const unsigned own = half + place_of(lane % 16, lane / 16);
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
#pragma unroll
    for (int i = 0; i < TILES; ++i) {
      unsigned rows[4];
      load_matrices(rows, (own ^ (step * 2 * kPieceBytes)) + i * kMmaTokens * kKeyBytes);
#pragma unroll
      for (int n = 0; n < HEAD_TILES; ++n) {
        multiply_add<Number>(scores[i][n], rows, queries[n][step].x, queries[n][step].y);
      }
    }
  }
}

// Adds the products of the values of a half with the weights: elements g and g + 8 of each 16.
// Values of masked tokens are replaced by zeros: a weight of zero does not hide a NaN.
__device__ __forceinline__ void multiply_values(Accumulators& acc, unsigned half,
                                                const Weights& weights, const Arguments& of,
                                                const Tile& tile, bool is_edge) {
  const int lane = threadIdx.x % kWarp;
  const unsigned own = half + place_of(lane % 8 + lane / 16 * 8, lane / 8 % 2);
#pragma unroll
  for (int i = 0; i < TILES; ++i) {
    unsigned masks[2] = {kAll, kAll};
    if (is_edge) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        const int token = i * kMmaTokens + r * 8 + lane % 4 * 2;
        masks[r] = (sees(of, tile, token) ? 0xffffu : 0u) |
                   (sees(of, tile, token + 1) ? 0xffff0000u : 0u);
      }
    }
#pragma unroll
    for (int row = 0; row < kRows; ++row) {
      unsigned columns[4];
      load_matrices_transposed(columns,
                               (own ^ (row * 2 * kPieceBytes)) + i * kMmaTokens * kKeyBytes);
      if (is_edge) {
#pragma unroll
        for (int r = 0; r < 4; ++r) columns[r] &= masks[r / 2];
      }
#pragma unroll
      for (int n = 0; n < HEAD_TILES; ++n) {
        multiply_add<Number>(acc.at[row][n], columns, weights[i][n][0], weights[i][n][1]);
      }
    }
  }
}

// Exchanges elements among lanes, so that each has adjacent ones: of g and g + 8 of 16, lane row g
// gets g and g + 1 where g is even, else g + 7 and g + 8.
__device__ __forceinline__ void pair_elements(Accumulators& acc) {
  const bool is_odd = threadIdx.x / 4 % 2;
#pragma unroll
  for (int row = 0; row < kRows; ++row) {
#pragma unroll
    for (int n = 0; n < HEAD_TILES; ++n) {
      float* const at = acc.at[row][n];
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const float theirs = __shfl_xor_sync(kAll, is_odd ? at[c] : at[2 + c], 4);
        at[c] = is_odd ? theirs : at[c];
        at[2 + c] = is_odd ? at[2 + c] : theirs;
      }
    }
  }
}
#endif
