// Grouped GEMM on Hopper for many rows per expert: its tasks, and the producers that copy them.
//
// Producer warps copy chunks of x and of a weight by TMA into a ring of STAGES buffers, weights
// with the expert as a coordinate. x is sorted, and comes in boxes of BOX_ROWS rows, or (GATHERS)
// it holds tokens, and comes row by row through `order`. Two consumer warpgroups share a tile:
// while one writes results, the other multiplies, as far as the ring lets them drift apart.
//
// A tile has up to kTokens rows of x; only those that it has are copied, in whole boxes. So tiles
// take unequal time. A block of threads begins with the task of its own number and then draws the
// next free one from `ticket`. A producer does, ahead of time, and leaves the number beside the
// first chunk of a task. Tiles of an expert that run at the same time share rows of x and weights
// in the L2 cache.
//
// Macros: T (half, bfloat16), BLOCKS (of 64 rows of x that a tile has), ROWS (of the weight),
//         SHARE (tiles of an expert have equal shares of its rows, in multiples of that many; 0:
//         all but the last one are full), BOX_ROWS, GATHERS (then BOX_ROWS is 1), STAGES, EXPERTS.
// Demands: K % 8 == 0; maps whose boxes are kChunk elements of ROWS rows of an expert's weight, and
//          of BOX_ROWS rows of x; `ticket` 0, as it is again afterwards.
// Needs reduce.cuh, copy.cuh, overlap.cuh, ring.cuh, tasks.cuh.

constexpr int kLineBytes = 128;  // the swizzle width of the TMA
constexpr int kChunk = kLineBytes / sizeof(T);
constexpr int kSteps = kChunk / 16;
constexpr int kGroup = 4 * kWarp;
constexpr int kGroups = 2;                 // of consumers; the producers follow
constexpr int kMultiply = kGroups * kGroup, kThreads = kMultiply + kGroup;
constexpr int kNone = -1;                  // the number of no task: there are no more
constexpr int kBlockRows = 64;             // of operand A
constexpr int kTokens = BLOCKS * 64;
constexpr int kTogether = 2048 / kTokens;  // tiles of rows that go through the weight side by side
constexpr int kCopyWarps = GATHERS ? 4 : 1;  // of producers: many boxes take many

constexpr int kBlockBytes = kBlockRows * kLineBytes;
constexpr int kWeightBytes = ROWS * kLineBytes;
constexpr int kStageBytes = kWeightBytes + kTokens * kLineBytes;

// Registers of a thread: consumers take what the producer group gives up. A block has no more than
// it was launched with: an even share of an SM's, in eights. To ask for more is to wait for ever.
constexpr int kLaunched = 65536 / kThreads / 8 * 8;
constexpr int kLeft = 40, kKept = 232;
static_assert((kGroups * kKept + kLeft) * kGroup <= kLaunched * kThreads, "registers of a block");

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
  return find_task<kTokens, kTogether, SHARE>(shared.experts, number, sizes.across);
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
  const int lines = (task.count + BOX_ROWS - 1) / BOX_ROWS * BOX_ROWS;
  Barrier* full = &shared.full[stage];
  unsigned char* rows = shared.stages[stage] + kWeightBytes;
  if (warp == 0) {
    if (chunk == 0) shared.numbers[stage] = number;
    arrive_expecting(full, kWeightBytes + lines * kLineBytes);
    copy_box(shared.stages[stage], weight, chunk * kChunk, task.tile * ROWS, task.expert, full);
  }
#pragma unroll 4
  for (int at = warp * BOX_ROWS; at < lines; at += kCopyWarps * BOX_ROWS) {
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

// A consumer warpgroup: calls `make_tile(turn, task)` for each task, which awaits and gives back
// the buffers of its chunks.
template <typename MakeTile>
__device__ __forceinline__ void multiply_tasks(Shared& shared, const Sizes& sizes,
                                               MakeTile make_tile) {
  Turn turn;
  while (true) {
    wait(&shared.full[turn.stage], turn.parity);
    const int number = shared.numbers[turn.stage];
    if (number == kNone) return;
    make_tile(turn, task_of(shared, number, sizes));
  }
}

// Makes the block's barriers, waits for the previous kernel, and counts the tasks.
__device__ __forceinline__ Sizes begin_tasks(Shared& shared, const TensorMap& weight,
                                             const TensorMap& x, const int* ends, int experts,
                                             int rows, int inner) {
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
  return {rows, across, (inner + kChunk - 1) / kChunk, shared.experts.tiles() * across};
}

__device__ __forceinline__ void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kKept));
}

__device__ __forceinline__ void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kLeft));
}
