// Grouped GEMM on Hopper for many rows per expert: out[P C] from rows of x and weight[E N K].
//
// Rows of x are operand A of a wgmma, 64 each; rows of a weight are operand B. Producer warps copy
// chunks of both by TMA into a ring of STAGES buffers, weights with the expert as a coordinate. x
// is sorted, and comes in boxes of 64 rows, or (GATHERS) it holds tokens, and comes row by row
// through `order`. Two consumer warpgroups share a tile: while one writes results, the other
// multiplies, as far as the ring lets them drift apart.
//
// A tile has up to BLOCKS times 64 rows of x. One with fewer, an expert's last one, copies and
// multiplies only the blocks of 64 that it has; so tiles take unequal time. A block of threads
// begins with the task of its own number and then draws the next free one from `ticket`. A
// producer does, ahead of time, and leaves the number beside the first chunk of a task. Tiles of an
// expert that run at the same time share rows of x and weights in the L2 cache.
//
// Macros: T (half, bfloat16), BLOCKS, ROWS (of the weight that a tile has), BY_ROWS (a warpgroup
//         has every other block of x; else all of them, and half of ROWS), GATHERS, STAGES,
//         EXPERTS, GATED (the weight has 8 rows of the gate, 8 of up, and so on), ACT (a function
//         of glu.cuh).
// Demands: K % 8 == 0; columns of out in eights; out and its rows at multiples of 16 bytes; maps
//          whose boxes are kChunk elements of ROWS rows of an expert's weight, and of 64 rows of x
//          or of one; a warpgroup's rows of the weight a size of Wgmma, a multiple of 32, GATED of
//          64; `ticket` 0, as it is again afterwards.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(T);
constexpr int kSteps = kChunk / 16;
constexpr int kGroup = 4 * kWarp;
constexpr int kGroups = 2;                 // of consumers; the producers follow
constexpr int kMultiply = kGroups * kGroup, kThreads = kMultiply + kGroup;
constexpr int kNone = -1;                  // the number of no task: there are no more
constexpr int kBlockRows = 64;             // of x
constexpr int kTokens = BLOCKS * kBlockRows;
constexpr int kRowParts = BY_ROWS ? kGroups : 1, kColumnParts = kGroups / kRowParts;
constexpr int kOwnBlocks = (BLOCKS + kRowParts - 1) / kRowParts;  // that a warpgroup has at most
constexpr int kTogether = 2048 / kTokens;  // tiles of rows that go through the weight side by side

constexpr int kOwnRows = ROWS / kColumnParts;  // of the weight, that a warpgroup has
constexpr int kFragments = kOwnRows / 8;   // of accumulators, side by side
constexpr int kPerResult = GATED ? 2 : 1;  // of those, what makes 8 columns of results
constexpr int kResults = kFragments / kPerResult;
static_assert(kResults % 4 == 0, "four lanes share the results of a row");

constexpr int kCopyWarps = GATHERS ? 4 : 1;         // of producers: many boxes take many
constexpr int kBoxRows = GATHERS ? 1 : kBlockRows;  // of x, that one copy brings

constexpr int kBlockBytes = kBlockRows * kLineBytes;
constexpr int kWeightBytes = ROWS * kLineBytes;
constexpr int kStageBytes = kWeightBytes + kTokens * kLineBytes;

// Registers of a thread: consumers take what the producer group gives up. A block has no more than
// it was launched with: an even share of an SM's, in eights. To ask for more is to wait for ever.
constexpr int kLaunched = 65536 / kThreads / 8 * 8;
constexpr int kLeft = 40, kKept = 232;
static_assert((kGroups * kKept + kLeft) * kGroup <= kLaunched * kThreads, "registers of a block");

using Accumulators = float[kOwnBlocks][kFragments][4];

struct Shared {
  alignas(1024) unsigned char stages[STAGES][kStageBytes];
  Barrier full[STAGES], empty[STAGES];
  int numbers[STAGES];                 // of the task whose first chunk is there
  int current;                         // the number of the task that is copied
  int sources[GATHERS ? kTokens : 1];  // its rows of x
  Experts experts;
};

using Turn = TurnOf<STAGES>;

struct Sizes {
  int rows, across, chunks, tasks;
};

__device__ __forceinline__ Task task_of(const Shared& shared, int number, const Sizes& sizes) {
  return find_task<kTokens, kTogether>(shared.experts, number, sizes.across);
}

// Which part of a tile's rows of x, and of the weight, a warpgroup has.
__device__ __forceinline__ int row_part(int group) { return BY_ROWS ? group : 0; }
__device__ __forceinline__ int column_part(int group) { return BY_ROWS ? 0 : group; }

// The blocks of 64 rows that a task has.
__device__ __forceinline__ int blocks_of(const Task& task) {
  return (task.count + kBlockRows - 1) / kBlockRows;
}

// The number of a block's next task. All draws of a launch are as many as there are tasks, for the
// first ones are not drawn and each block with a task draws one too many: that with the last
// leaves the ticket as it was.
__device__ __forceinline__ int draw_task(unsigned* ticket, int tasks) {
  const int drawn = atomicAdd(ticket, 1u);
  if (drawn == tasks - 1) *ticket = 0;
  return gridDim.x + drawn;
}

// Copies what this warp copies of a chunk: the first one the tile of the weight.
__device__ __forceinline__ void copy_chunk(Shared& shared, int stage, const TensorMap& weight,
                                           const TensorMap& x, const Task& task, int chunk,
                                           int number, int warp) {
  const int lines = GATHERS ? task.count : blocks_of(task) * kBlockRows;
  Barrier* full = &shared.full[stage];
  unsigned char* rows = shared.stages[stage] + kWeightBytes;
  if (warp == 0) {
    if (chunk == 0) shared.numbers[stage] = number;
    arrive_expecting(full, kWeightBytes + lines * kLineBytes);
    copy_box(shared.stages[stage], weight, chunk * kChunk, task.tile * ROWS, task.expert, full);
  }
#pragma unroll 4
  for (int at = warp * kBoxRows; at < lines; at += kCopyWarps * kBoxRows) {
    const int row = GATHERS ? shared.sources[at] : task.first + at;
    copy_box(rows + at * kLineBytes, x, chunk * kChunk, row, 0, full);
  }
}

// All producers.
__device__ __forceinline__ void sync_producers() {
  if constexpr (kCopyWarps > 1) {
    asm volatile("bar.sync 1, %0;" ::"n"(kCopyWarps * kWarp) : "memory");
  }
}

// The producers, kCopyWarps warps. The first one draws, and tells the others.
__device__ __forceinline__ void copy_tasks(Shared& shared, const TensorMap& weight,
                                           const TensorMap& x, const int* order, int chosen,
                                           const Sizes& sizes, unsigned* ticket) {
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x % kGroup / kWarp, 0);
  const bool copies = is_elected();
  Turn turn;
  int number = blockIdx.x;
  while (number < sizes.tasks) {
    const int next = threadIdx.x == kMultiply ? draw_task(ticket, sizes.tasks) : 0;
    const Task task = task_of(shared, number, sizes);
    if constexpr (GATHERS) {
      for (int at = threadIdx.x % kGroup; at < task.count; at += kCopyWarps * kWarp) {
        shared.sources[at] = order[task.first + at] / chosen;
      }
      sync_producers();
    }
    for (int chunk = 0; chunk < sizes.chunks; ++chunk, turn.next()) {
      wait(&shared.empty[turn.stage], turn.parity ^ 1);
      if (copies) copy_chunk(shared, turn.stage, weight, x, task, chunk, number, warp);
    }
    number = __shfl_sync(0xffffffffu, next, 0);
    if constexpr (kCopyWarps > 1) {
      if (warp == 0) shared.current = number;
      sync_producers();
      number = shared.current;
    }
  }
  if (warp > 0) return;
  wait(&shared.empty[turn.stage], turn.parity ^ 1);
  if (!copies) return;
  shared.numbers[turn.stage] = kNone;
  arrive(&shared.full[turn.stage]);
}

// Gives a buffer back to the producers.
__device__ __forceinline__ void release(Barrier* empty, bool releases) {
  arrive_if(releases && threadIdx.x % kWarp == 0, empty);
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
  Turn turn;
  while (true) {
    wait(&shared.full[turn.stage], turn.parity);
    const int number = shared.numbers[turn.stage];
    if (number == kNone) return;
    const Task task = task_of(shared, number, sizes);
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
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    grouped_prompt(T* out, const __grid_constant__ TensorMap weight,
                   const __grid_constant__ TensorMap x, const T* bias, const int* ends,
                   unsigned* ticket, const int* order, int chosen, int experts, int rows,
                   int inner) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  if (threadIdx.x == kMultiply) {
    prefetch_map(weight);
    prefetch_map(x);
    for (int i = 0; i < STAGES; ++i) {
      init_barrier(&shared.full[i], 1);
      init_barrier(&shared.empty[i], kGroups * 4);  // a lane of each warp
    }
    publish_barriers();
  }
  wait_for_kernel_before();
  let_next_kernel_start();
  count_tiles<kTokens, kThreads>(shared.experts, ends, experts);
  const int across = (rows + ROWS - 1) / ROWS;
  const Sizes sizes{rows, across, (inner + kChunk - 1) / kChunk, shared.experts.tiles() * across};
  if (threadIdx.x >= kMultiply) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
    if (threadIdx.x < kMultiply + kCopyWarps * kWarp) {
      copy_tasks(shared, weight, x, order, chosen, sizes, ticket);
    }
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
    multiply(shared, out, bias, sizes);
  }
}
