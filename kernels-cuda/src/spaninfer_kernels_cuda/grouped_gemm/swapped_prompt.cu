// Grouped GEMM on Hopper for many rows per expert: out[P C] from rows of x and weight[E N K].
//
// Rows of a weight are operand A of a wgmma, and the rows of x of its expert operand B, in
// sixteens: so a tile multiplies at most 15 rows too many, where blocks of 64 (prompt.cu) multiply
// up to 63. Each warpgroup has half of the weight's rows, two blocks of 64, and all rows of x. What
// copies and draws tasks is in prompt.cuh.
//
// GATED, a warpgroup's weight rows lie in eights of the gate and of up in turn. Its first block
// takes every other eight, all gates, its second the others, all ups: what belongs together lies in
// one thread, and a warp has 16 neighbouring columns of the result, as it has without a gate.
//
// Macros: GATED (the weight has 8 rows of the gate, 8 of up, and so on), ACT (a function of
//         glu.cuh), and those of prompt.cuh; ROWS is 256, SHARE 16, BOX_ROWS 16.
// Demands: columns of out in eights; out and its rows at multiples of 16 bytes.

constexpr int kGrain = 16;  // rows of x: the sizes of operand B are multiples
constexpr int kOwnRows = ROWS / kGroups, kOwnBlocks = kOwnRows / kBlockRows;
constexpr int kFragments = kTokens / 8;
constexpr int kTogetherFragments = 4;              // that are written at once
constexpr int kResultBlocks = GATED ? 1 : kOwnBlocks;  // of 64 columns
constexpr int kEightBytes = 8 * kLineBytes;
static_assert(kOwnBlocks == 2 && SHARE % kGrain == 0 && BOX_ROWS % kGrain == 0, "sizes");

using Accumulators = float[kOwnBlocks][kFragments][4];

// The descriptor of a block of a warpgroup's weight rows, `step` 16 elements into a chunk.
__device__ __forceinline__ unsigned long long block_at(unsigned weight, int block, int step) {
  if constexpr (!GATED) return tile_at<kLineBytes>(weight + block * kBlockBytes + 32 * step, 0);
  // Eights lie twice as far apart: the field of their distance, in units of 16 bytes.
  constexpr unsigned long long kEveryOther = (kEightBytes >> 4) * (1ull << 32);
  return tile_at<kLineBytes>(weight + block * kEightBytes + 32 * step, 0) + kEveryOther;
}

// Accumulates the chunks of a tile with kSixteens times 16 rows of x.
template <int kSixteens>
__device__ __forceinline__ void multiply_tile(Accumulators& acc, Shared& shared, Turn& turn,
                                              int chunks, int group) {
  using Columns = float[2 * kSixteens][4];
  int before = turn.stage;
  for (int chunk = 0; chunk < chunks; ++chunk, turn.next()) {
    wait(&shared.full[turn.stage], turn.parity);
    const unsigned stage = shared_address(shared.stages[turn.stage]);
    const unsigned weight = stage + group * kOwnRows * kLineBytes, x = stage + kWeightBytes;
    wgmma_fence();
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int block = 0; block < kOwnBlocks; ++block) {
        Wgmma<T, 2 * kSixteens>::of_tiles(reinterpret_cast<Columns&>(acc[block]),
                                          block_at(weight, block, k),
                                          tile_at<kLineBytes>(x + 32 * k, 0), chunk > 0 || k > 0);
      }
    }
    wgmma_commit();
    wgmma_wait<1>();
    release(&shared.empty[before], chunk > 0);
    before = turn.stage;
  }
  wgmma_wait<0>();
  release(&shared.empty[before], true);
#pragma unroll
  for (int block = 0; block < kOwnBlocks; ++block) pin(reinterpret_cast<Columns&>(acc[block]));
}

// The same for as many rows as a task has, at most kMost times 16.
template <int kMost>
__device__ __forceinline__ void multiply_rows(Accumulators& acc, Shared& shared, Turn& turn,
                                              int chunks, int group, int count) {
  if constexpr (kMost > 1) {
    if (count <= (kMost - 1) * kGrain) {
      multiply_rows<kMost - 1>(acc, shared, turn, chunks, group, count);
      return;
    }
  }
  multiply_tile<kMost>(acc, shared, turn, chunks, group);
}

// Lane 4 r + t gives piece s to lane 4 s + t, and gets its piece r.
__device__ __forceinline__ void transpose_rows(unsigned (&pieces)[8]) {
  const int row = threadIdx.x % kWarp / 4;
#pragma unroll
  for (int bit = 4; bit > 0; bit /= 2) {
    const bool upper = row & bit;
#pragma unroll
    for (int low = 0; low < 8; ++low) {
      if (low & bit) continue;
      const int high = low | bit;
      const unsigned sent = upper ? pieces[low] : pieces[high];
      const unsigned got = __shfl_xor_sync(0xffffffffu, sent, 4 * bit);
      (upper ? pieces[low] : pieces[high]) = got;
    }
  }
}

// Biases of a thread's columns of a block of results, `column` and 8 on: [1] those of up.
struct Biases {
  float of[2][2];

  static __device__ __forceinline__ Biases at(const T* bias, int column, int columns) {
    Biases biases = {};
#pragma unroll
    for (int eight = 0; eight < 2; ++eight, column += 8) {
      if (!bias || column >= columns) continue;
      const T* own = GATED ? bias + column / 8 * 16 + column % 8 : bias + column;
      biases.of[eight][0] = to_float(own[0]);
      if (GATED) biases.of[eight][1] = to_float(own[8]);
    }
    return biases;
  }
};

// Writes a warpgroup's results: a lane has rows (fragments of x) and, of each, columns g and g + 8
// of the warp's 16. Eight lanes exchange them, so that each has 8 neighbouring columns of a row.
__device__ __forceinline__ void write_tile(T* out, const T* bias, const Task& task,
                                           Accumulators& acc, int weight_row, int rows) {
  const int lane = threadIdx.x % kWarp, g = lane / 4, warp = threadIdx.x % kGroup / kWarp;
  const int columns = GATED ? rows / 2 : rows;
  if (bias) bias += static_cast<size_t>(task.expert) * rows;
#pragma unroll
  for (int block = 0; block < kResultBlocks; ++block) {
    const int first = (GATED ? weight_row / 2 : weight_row + block * kBlockRows) + 16 * warp;
    const Biases add = Biases::at(bias, first + g, columns);
    const int column = first + g / 4 * 8;  // of those that are written
    int row = g % 4 * 8 + lane % 4 * 2;
#pragma unroll
    for (int n = 0; n < kFragments; n += kTogetherFragments, row += 8 * kTogetherFragments) {
      if (8 * n >= task.count) break;
      unsigned pieces[8];
#pragma unroll
      for (int piece = 0; piece < 8; ++piece) {
        const int eight = piece / 4, fragment = n + piece % 4;
        float pair[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          const int i = 2 * eight + side;
          pair[side] = acc[block][fragment][i] + add.of[eight][0];
          if constexpr (GATED) {
            pair[side] = ACT(pair[side], acc[1][fragment][i] + add.of[eight][1]);
          }
        }
        pieces[piece] = pack_pair<T>(pair[0], pair[1]);
      }
      transpose_rows(pieces);
#pragma unroll
      for (int side = 0; side < 2; ++side) {
        const int halves = side ? 0x7632 : 0x5410;  // of each piece: the row that is written
        const uint4 vector = make_uint4(__byte_perm(pieces[0], pieces[1], halves),
                                        __byte_perm(pieces[2], pieces[3], halves),
                                        __byte_perm(pieces[4], pieces[5], halves),
                                        __byte_perm(pieces[6], pieces[7], halves));
        if (row + side < task.count && column < columns) {
          T* to = out + static_cast<size_t>(task.first + row + side) * columns + column;
          *reinterpret_cast<uint4*>(to) = vector;
        }
      }
    }
  }
}

// A consumer warpgroup.
__device__ __forceinline__ void multiply(Shared& shared, T* out, const T* bias,
                                         const Sizes& sizes) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  multiply_tasks(shared, sizes, [&](Turn& turn, const Task& task) {
    Accumulators acc;
    multiply_rows<kTokens / kGrain>(acc, shared, turn, sizes.chunks, group, task.count);
    write_tile(out, bias, task, acc, task.tile * ROWS + group * kOwnRows, sizes.rows);
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    grouped_swapped_prompt(T* out, const __grid_constant__ TensorMap weight,
                           const __grid_constant__ TensorMap x, const T* bias, const int* ends,
                           unsigned* ticket, const int* order, int chosen, int experts, int rows,
                           int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Sizes sizes = begin_tasks(shared, weight, x, ends, experts, rows, inner);
  if (threadIdx.x >= kMultiply) {
    give_registers();
    if (threadIdx.x < kMultiply + kCopyWarps * kWarp) {
      copy_tasks(shared, weight, x, order, chosen, sizes, ticket);
    }
  } else {
    take_registers();
    multiply(shared, out, bias, sizes);
  }
}
