// Grouped GEMM on Hopper for many rows per expert: out[P C] from rows of x and weight[E N K].
//
// Rows of x are operand A of a wgmma, 64 each; rows of a weight are operand B. A tile with fewer
// rows of x than BLOCKS times 64, an expert's last one, multiplies only the blocks of 64 that it
// has. What copies and draws tasks is in prompt.cuh.
//
// Macros: BY_ROWS (a warpgroup has every other block of x; else all of them, and half of ROWS),
//         GATED (the weight has 8 rows of the gate, 8 of up, and so on), ACT (a function of
//         glu.cuh), and those of prompt.cuh.
// Demands: columns of out in eights; out and its rows at multiples of 16 bytes; a warpgroup's rows
//          of the weight a size of Wgmma, a multiple of 32, GATED of 64.

constexpr int kRowParts = BY_ROWS ? kGroups : 1, kColumnParts = kGroups / kRowParts;
constexpr int kOwnBlocks = (BLOCKS + kRowParts - 1) / kRowParts;  // that a warpgroup has at most

constexpr int kOwnRows = ROWS / kColumnParts;  // of the weight, that a warpgroup has
constexpr int kFragments = kOwnRows / 8;   // of accumulators, side by side
constexpr int kPerResult = GATED ? 2 : 1;  // of those, what makes 8 columns of results
constexpr int kResults = kFragments / kPerResult;
static_assert(kResults % 4 == 0, "four lanes share the results of a row");

using Accumulators = float[kOwnBlocks][kFragments][4];

// Which part of a tile's rows of x, and of the weight, a warpgroup has.
__device__ __forceinline__ int row_part(int group) { return BY_ROWS ? group : 0; }
__device__ __forceinline__ int column_part(int group) { return BY_ROWS ? 0 : group; }

// The blocks of 64 rows that a task has.
__device__ __forceinline__ int blocks_of(const Task& task) {
  return (task.count + kBlockRows - 1) / kBlockRows;
}

// Issues the wgmmas of a chunk for the first kBlocks blocks of rows of a warpgroup. `adds` is false
// for the first one of a tile.
template <int kBlocks>
__device__ __forceinline__ void multiply_chunk(Accumulators& acc, unsigned stage, int group,
                                               bool adds) {
  const unsigned x = stage + kWeightBytes + row_part(group) * kBlockBytes;
  const unsigned weight = stage + column_part(group) * kOwnRows * kLineBytes;
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kSteps; ++k) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      Wgmma<T, kFragments>::of_tiles(
          acc[block], tile_at<kLineBytes>(x + block * kRowParts * kBlockBytes + 32 * k, 0),
          tile_at<kLineBytes>(weight + 32 * k, 0), adds || k > 0);
    }
  }
  wgmma_commit();
}

// Accumulates the chunks of a tile, kBlocks blocks of rows of it; with none, only gives its buffers
// back.
template <int kBlocks>
__device__ __forceinline__ void multiply_tile(Accumulators& acc, Shared& shared, Turn& turn,
                                              int chunks, int group) {
  int before = turn.stage;
  for (int chunk = 0; chunk < chunks; ++chunk, turn.next()) {
    wait(&shared.full[turn.stage], turn.parity);
    if constexpr (kBlocks > 0) {
      multiply_chunk<kBlocks>(acc, shared_address(shared.stages[turn.stage]), group, chunk > 0);
      wgmma_wait<1>();
    }
    release(&shared.empty[before], chunk > 0);
    before = turn.stage;
  }
  if constexpr (kBlocks > 0) wgmma_wait<0>();
  release(&shared.empty[before], true);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) pin(acc[block]);
}

// Writes 64 rows, 16 of each warp, and the columns of weight rows from `weight_row` on: a lane has
// 8 adjacent ones.
__device__ __forceinline__ void write_block(T* out, const T* bias, const Task& task,
                                            const float (&acc)[kFragments][4], int row,
                                            int weight_row, int rows) {
  const int lane = threadIdx.x % kWarp, quarter = lane % 4;
  const int columns = GATED ? rows / 2 : rows;
  const int column = (GATED ? weight_row / 2 : weight_row) + 8 * quarter;
  if (bias) bias += static_cast<size_t>(task.expert) * rows + weight_row + 2 * quarter;
  row += threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  out += static_cast<size_t>(task.first + row) * columns + column;
#pragma unroll
  for (int n = 0; n < kResults; n += 4) {
    // As if it were changed here: nothing of later columns is computed earlier, in more registers.
    asm volatile("" : "+r"(row)::"memory");
    unsigned pieces[2][4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int fragment = (n + i) * kPerResult;
      float add[2] = {}, add_up[2] = {};
      if (bias && weight_row + 8 * fragment < rows) {
        load_floats<2>(add, bias + 8 * fragment);
        if (GATED) load_floats<2>(add_up, bias + 8 * fragment + 8);
      }
#pragma unroll
      for (int line = 0; line < 2; ++line) {
        float pair[2];
#pragma unroll
        for (int side = 0; side < 2; ++side) {
          pair[side] = acc[fragment][2 * line + side] + add[side];
          if constexpr (GATED) {
            pair[side] = ACT(pair[side], acc[fragment + 1][2 * line + side] + add_up[side]);
          }
        }
        pieces[line][i] = pack_pair<T>(pair[0], pair[1]);
      }
    }
#pragma unroll
    for (int line = 0; line < 2; ++line) {
      const uint4 vector = vector_of_quad(pieces[line]);
      if (row + 8 * line < task.count && column + 8 * n < columns) {
        *reinterpret_cast<uint4*>(out + static_cast<size_t>(8 * line) * columns + 8 * n) = vector;
      }
    }
  }
}

// A tile: kBlocks blocks of rows are this warpgroup's.
template <int kBlocks>
__device__ __forceinline__ void make_tile(Shared& shared, Turn& turn, T* out, const T* bias,
                                          const Task& task, const Sizes& sizes, int group) {
  Accumulators acc;
  multiply_tile<kBlocks>(acc, shared, turn, sizes.chunks, group);
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const int row = (block * kRowParts + row_part(group)) * kBlockRows;
    const int weight_row = task.tile * ROWS + column_part(group) * kOwnRows;
    write_block(out, bias, task, acc[block], row, weight_row, sizes.rows);
  }
}

// A consumer warpgroup.
__device__ __forceinline__ void multiply(Shared& shared, T* out, const T* bias,
                                         const Sizes& sizes) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  multiply_tasks(shared, sizes, [&](Turn& turn, const Task& task) {
    const int own = (blocks_of(task) - row_part(group) + kRowParts - 1) / kRowParts;
    if (own == kOwnBlocks) {
      make_tile<kOwnBlocks>(shared, turn, out, bias, task, sizes, group);
    } else if (kOwnBlocks > 2 && own == 2) {
      make_tile<kOwnBlocks < 2 ? kOwnBlocks : 2>(shared, turn, out, bias, task, sizes, group);
    } else if (kOwnBlocks > 1 && own == 1) {
      make_tile<1>(shared, turn, out, bias, task, sizes, group);
    } else {
      make_tile<0>(shared, turn, out, bias, task, sizes, group);
    }
  });
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    grouped_prompt(T* out, const __grid_constant__ TensorMap weight,
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
