// What both kernels of latent attention share: sizes, shared memory's parts, tiles, the producers,
// and how results are written.
//
// Keys lie in shared memory as kKeyTiles tiles side by side of 64 elements (128 bytes, swizzled) of
// kBlock tokens; their first kValueTiles tiles are the values, too. There are two buffers of them,
// in each of which two barriers tell that a half is there: tiles 0 .. 3, and tiles 4 .. 7; tile 8
// comes with the half of the other number than the buffer.

constexpr int kGroup = 4 * kWarp;
constexpr int kThreads = 3 * kGroup;  // two consumer warpgroups, and one with the producer warps
constexpr int kRowBytes = 128, kColumns = 64;
constexpr int kKeyTiles = KEY_SIZE / kColumns, kValueTiles = VALUE_SIZE / kColumns;
constexpr int kTile = kBlock * kRowBytes, kQueryTile = TILE * kRowBytes;  // bytes
constexpr int kHalf = kValueTiles / 2;                                    // tiles
static_assert(kKeyTiles == 9 && kValueTiles == 8, "latents of 512 and 64 elements");

template <int kCount>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void pass_by(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

struct Buffers {
  alignas(1024) unsigned char keys[2][kKeyTiles * kTile];
  alignas(1024) unsigned char query[kKeyTiles * kQueryTile];
};

struct Barriers {
  Barrier full[2][2], empty[2][2];  // of a buffer's halves
  Barrier query_full, query_empty;

  // A buffer's half is filled by `fillers` arrivals, and read last by four warps. All threads of
  // the block call this.
  __device__ __forceinline__ void init(int fillers) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 4; ++i) {
        init_barrier(&full[i / 2][i % 2], fillers);
        init_barrier(&empty[i / 2][i % 2], 4);
      }
      init_barrier(&query_full, 1);
      init_barrier(&query_empty, 8);
      publish_barriers();
    }
    __syncthreads();
  }

  // Four warps call this when they have read a buffer's half: then it may be filled.
  __device__ __forceinline__ void release(int which, int side) {
    publish_to_async();
    __syncwarp();
    arrive_if(threadIdx.x % kWarp == 0, &empty[which][side]);
  }
};

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

// The warp that copies keys. In each pair of blocks, halves in the order in which they become free.
__device__ __forceinline__ void bring_keys(unsigned char (&keys)[2][kKeyTiles * kTile],
                                           Barriers& barriers, const Arguments& of,
                                           const TensorMap& map) {
  const int lane = threadIdx.x % kWarp;
  const int boxes = kBlock / of.box_tokens;
  int parity[2] = {1, 1};
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    const int* const table = of.span_tables + task.group.table_row * of.table_stride;
    // Boxes past the last position copy that one's again: it is there, and finite.
    const int last_box = task.last_token / of.box_tokens;
    const auto token_of = [&](int block, int box) {
      return min(block * boxes + box, last_box) * of.box_tokens;
    };
    const auto spans_of = [&](int block) {
      return __ldcg(table + (token_of(block, lane % boxes) >> of.span_shift));
    };
    const auto bring = [&](int which, int side, int block, int spans) {
      const int tiles = kHalf + (which != side);
      Barrier* const full = &barriers.full[which][side];
      wait(&barriers.empty[which][side], parity[which]);
      if (lane == 0) arrive_expecting(full, tiles * kTile);
      __syncwarp();
      for (int i = lane; i - lane < tiles * boxes; i += kWarp) {
        const int box = i / tiles % boxes, within = i % tiles;
        const int tile = within == kHalf ? kValueTiles : side * kHalf + within;
        const int span = __shfl_sync(0xffffffffu, spans, box);
        if (i >= tiles * boxes) continue;
        const int token = token_of(block, box) & ((1 << of.span_shift) - 1);
        unsigned char* to = keys[which] + tile * kTile + box * of.box_tokens * kRowBytes;
        copy_box(to, map, tile * kColumns, token, span, full);
      }
    };
    if (task.first_block >= task.end) return;
    int spans[2] = {spans_of(task.first_block), spans_of(task.first_block + 1)};
    for (int block = task.first_block; block < task.end; block += 2) {
      const bool has_second = block + 1 < task.end;
      const int next[2] = {spans_of(block + 2), spans_of(block + 3)};
      bring(0, 0, block, spans[0]);
      if (has_second) bring(1, 1, block + 1, spans[1]);
      bring(0, 1, block, spans[0]);
      if (has_second) bring(1, 0, block + 1, spans[1]);
      parity[0] ^= 1;
      if (has_second) parity[1] ^= 1;
      spans[0] = next[0], spans[1] = next[1];
    }
  });
}

// Copies the queries of a task.
__device__ __forceinline__ void bring_query(unsigned char* query, Barriers& barriers,
                                            const TensorMap& map, const Task& task) {
  arrive_expecting(&barriers.query_full, kKeyTiles * kQueryTile);
  for (int i = 0; i < kKeyTiles; ++i) {
    copy_box(query + i * kQueryTile, map, i * kColumns, task.line, 0, &barriers.query_full);
  }
}

// The warp that copies queries.
__device__ __forceinline__ void bring_queries(unsigned char* query, Barriers& barriers,
                                              const Arguments& of, const TensorMap& map) {
  int parity = 1;
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    if (task.first_block >= task.end) return;
    wait(&barriers.query_empty, parity);
    parity ^= 1;
    if (threadIdx.x % kWarp == 0) bring_query(query, barriers, map, task);
    __syncwarp();
  });
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
