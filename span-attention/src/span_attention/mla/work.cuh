// What the kernels of latent attention share: sizes, tiles, and how results are written.
//
// Keys lie in shared memory as kKeyTiles tiles side by side of 64 elements (128 bytes, swizzled) of
// kBlock tokens; their first kValueTiles tiles are the values, too.
//
// Warpgroups hand shared memory over through mbarriers, to the next one and back. Where loads and
// stores of both use it, the lanes that have read or written arrive themselves. One lane for its
// warp, behind __syncwarp, orders the same by PTX's memory model and takes as long, but
// compute-sanitizer's racecheck counts for an arrival only what the arriving lane has read and
// written. It does not watch TMA and wgmma: where one of them is a side, a lane arrives for its
// warp.

constexpr int kGroup = 4 * kWarp;
constexpr int kRowBytes = 128, kColumns = 64;
constexpr int kKeyTiles = KEY_SIZE / kColumns, kValueTiles = VALUE_SIZE / kColumns;
constexpr int kTile = kBlock * kRowBytes, kQueryTile = TILE * kRowBytes;  // bytes
constexpr int kHalf = kValueTiles / 2;                                    // tiles
static_assert(kKeyTiles == 9 && kValueTiles == 8, "latents of 512 and 64 elements");

template <int kCount>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

struct Arguments {
  T* out;
  float* lse;
  float* parts;  // of each slot outputs[TILE VALUE_SIZE], then of each log2-sum-exps[TILE]
  Plan plan;
  const int* span_tables;
  long long table_stride;
  int span_shift, box_tokens, lines_of_position, lanes;
  float log2_scale;
};

// The piece of a tile that a thread block computes.
struct Task {
  Group group;
  int line, lines;       // counted over the whole step
  int offset;            // of `line` from the slice's first
  int first_block, end;  // blocks of keys
  int last_token;        // that any line sees
  int slot;              // of a part; -1: the result is whole

  __device__ __forceinline__ int position_of(int line, int lines_of_position) const {
    return group.position + (offset + min(line, lines - 1)) / lines_of_position;
  }
  // Whether every line sees all tokens of a block.
  __device__ __forceinline__ bool sees_all(int block, int lines_of_position) const {
    return block * kBlock + kBlock - 1 <= position_of(0, lines_of_position);
  }
};

// Calls `work` with each task of this thread block.
template <typename Work>
__device__ __forceinline__ void for_each_task(const Arguments& of, Work work) {
  const int part = blockIdx.x / of.lanes, lane = blockIdx.x % of.lanes;
  const Range range = of.plan.range(part);
  for (int number = range.group; number <= range.last_group; ++number) {
    const bool is_last = number == range.last_group;
    if (is_last && range.last_block == 0) break;
    Task task{of.plan.group(number)};
    const Group& group = task.group;
    const int skipped = lane * TILE;
    task.lines = min(group.lines - skipped, TILE);
    if (task.lines <= 0) continue;
    task.line = group.line + skipped;
    task.offset = group.offset + skipped;
    task.last_token = task.position_of(task.lines - 1, of.lines_of_position);
    task.first_block = number == range.group ? range.block : 0;
    const int end = is_last ? range.last_block : group.blocks;
    task.end = group.blocks > 0 ? min(end, task.last_token / kBlock + 1) : 0;
    const bool is_whole = task.first_block == 0 && end == group.blocks;
    task.slot = is_whole ? -1 : (2 * part + (task.first_block == 0)) * of.lanes + lane;
    work(task);
  }
}

// Zeros in the tokens first .. kBlock - 1 of kTiles tiles of values, which may hold NaN: they are
// multiplied by weights of 0.
template <int kTiles>
__device__ __forceinline__ void zero_values(unsigned char* values, int first, int barrier) {
  constexpr int kParts = kTiles * kRowBytes / 16;
  for (int i = threadIdx.x % kGroup; i < (kBlock - first) * kParts; i += kGroup) {
    const int row = first + i / kParts, tile = i % kParts / (kRowBytes / 16);
    *reinterpret_cast<uint4*>(values + tile * kTile + row * kRowBytes + i % (kRowBytes / 16) * 16) =
        make_uint4(0u, 0u, 0u, 0u);
  }
  publish_to_async();
  meet<kGroup>(barrier);
}

__device__ __forceinline__ float* outputs_of(const Arguments& of, int slot, int line) {
  return of.parts + (static_cast<long long>(slot) * TILE + line) * VALUE_SIZE;
}
// Behind the outputs of all slots.
__device__ __forceinline__ float* exponent_of(const Arguments& of, int slot, int line) {
  return outputs_of(of, 2 * of.plan.parts * of.lanes, 0) + slot * TILE + line;
}

// Writes the log-sum-exp of a line: its largest score times log2_scale, its sum of weights.
__device__ __forceinline__ void write_exponent(const Arguments& of, const Task& task, int line,
                                               float most, float sum) {
  if (task.slot >= 0) {
    *exponent_of(of, task.slot, line) = sum > 0.0f ? most + __log2f(sum) : hidden();
  } else if (LSE) {
    of.lse[task.line + line] = sum > 0.0f ? log_sum(most, sum) : hidden();
  }
}
