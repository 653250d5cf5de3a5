// The attention of general.cu on Hopper: warpgroup products, and warps that only copy.
//
// CONSUMERS warpgroups hold 64 lines of a tile each. Two warps of a further warpgroup fill rings of
// buffers by the copy engine: one finds tasks and brings their queries, the other brings keys and
// values, a span's tokens of one head with one instruction per ROW_BYTES. A consumer starts the
// scores of the next block and the values of this one together and makes exponentials while they
// run (Shah et al. 2024); consumers take turns in starting, so that one has the tensor cores while
// the other makes exponentials.
//
// Where SPLITS and tasks are few, several thread blocks share the blocks of keys of each (plan.cu),
// so that few rows of a long context use the whole GPU: each leaves its sums in the workspace,
// waits for the others and adds up those of all for its part of the lines. All thread blocks run at
// once, so that none waits for one that has not begun.
//
// What the plan and the tables say is older than the kernel before: it is read without waiting for
// that one.
//
// Blocks of keys begin at multiples of BLOCK. Spans are read to the end of the last block: what
// lies behind the last position is hidden from scores, and zeroed in values, where it may be NaN.
//
// Macros: T (half or bfloat16), KEY_SIZE, VALUE_SIZE, ROW_BYTES (64 or 128), BLOCK, CONSUMERS,
//         STAGES (buffers of keys, and of values), QUERY_STAGES, KEEPS (registers of a consumer),
//         SPLITS (0 or 1).
// Demands: 2 KEY_SIZE and 2 VALUE_SIZE multiples of ROW_BYTES; BLOCK and VALUE_SIZE sizes of a
//          Product; maps whose boxes have rows of ROW_BYTES and `box_tokens` tokens, or for queries
//          pack heads and kLines / pack rows.

constexpr int kGroup = 4 * kWarp;
constexpr int kThreads = kGroup * (1 + CONSUMERS);
constexpr int kLines = 64 * CONSUMERS;
constexpr int kColumns = ROW_BYTES / 2;  // elements of a row in shared memory
constexpr int kKeyTiles = KEY_SIZE / kColumns, kValueTiles = VALUE_SIZE / kColumns;
constexpr int kFragments = BLOCK / 8, kSums = VALUE_SIZE / 8;
constexpr int kLeastBlocks = 2;  // of keys, in a part of a task
constexpr int kQueryTile = kLines * ROW_BYTES, kTile = BLOCK * ROW_BYTES;  // bytes

// A tile, heads of it and blocks of keys: what a consumer must know of its task.
struct Work {
  Tile tile;
  int kv_head, first_head;
  int first_block, last_block;
  int part, num_parts;  // which of how many; parts are those of neighbouring thread blocks
  const int* table;     // spans of its request

  // Leaves part `which` of up to `most` with kLeastBlocks each: none behind the last.
  __device__ __forceinline__ void cut(int which, int most) {
    const int blocks = last_block + 1 - first_block, begin = first_block;
    part = which;
    num_parts = max(min(most, blocks / kLeastBlocks), 1);
    first_block = begin + blocks * part / num_parts;
    last_block = begin + blocks * (part + 1) / num_parts - 1;
  }
};

// Barriers of a ring: buffers that copies have filled, and that every consumer has read.
template <int kStages>
struct Ring {
  Barrier full[kStages], empty[kStages];

  __device__ __forceinline__ void init(int readers) {
    for (int i = 0; i < kStages; ++i) {
      init_barrier(&full[i], 1);
      init_barrier(&empty[i], readers);
    }
  }
};

// A place in a ring, and the parity of its barriers' phase in this round.
template <int kStages>
struct Turn {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

struct Shared {
  alignas(1024) unsigned char query[QUERY_STAGES][kKeyTiles * kQueryTile];
  alignas(1024) unsigned char keys[STAGES][kKeyTiles * kTile];
  alignas(1024) unsigned char values[STAGES][kValueTiles * kTile];
  Ring<QUERY_STAGES> query_ring;
  Ring<STAGES> key_ring, value_ring;
  Barrier posted[QUERY_STAGES];  // the work is there; its queries may still be on their way
  Work work[QUERY_STAGES];       // emptied with the queries; one without parts is the end
};

// The arguments of a launch that both roles need.
struct Launch {
  Slices slices;
  const int* tables;
  const int* rows;
  int table_len, span_shift, heads, pack, kv_heads, box_tokens, window;
  float* workspace;  // of each part sums[kLines VALUE_SIZE], then of each (most, sum)[kLines]

  __device__ __forceinline__ int packs() const { return heads / pack; }

  // A task: a tile and a group of heads.
  __device__ __forceinline__ Work work(int task) const {
    const int which = task % packs();
    const Tile tile(slices, task / packs(), window);
    const int* table = tables + static_cast<long long>(__ldcg(&rows[tile.slice])) * table_len;
    return {tile, which / (packs() / kv_heads), which * pack, tile.first_key / BLOCK,
            tile.last_key / BLOCK, 0, 1, table};
  }

  // A part's own place in the workspace is that of the thread block that computes it.
  __device__ __forceinline__ float* sums(int block, int line) const {
    return workspace + (static_cast<long long>(block) * kLines + line) * VALUE_SIZE;
  }
  __device__ __forceinline__ float2* states(int block, int line) const {
    return reinterpret_cast<float2*>(sums(gridDim.x, 0)) + block * kLines + line;
  }
};

// Brings the keys or values of one block: lane l tile l % kTiles of box l / kTiles.
template <int kTiles>
__device__ __forceinline__ void bring(unsigned char* to, Barrier* full, const TensorMap& map,
                                      const Launch& launch, int kv_head, int span, int token,
                                      int lane) {
  if (lane == 0) arrive_expecting(full, kTiles * kTile);
  __syncwarp();
  const int box = lane / kTiles, tile = lane % kTiles;
  if (box < BLOCK / launch.box_tokens) {
    copy_box(to + tile * kTile + box * launch.box_tokens * ROW_BYTES, map, tile * kColumns,
             token & ((1 << launch.span_shift) - 1), kv_head, span, full);
  }
}

// The warp that finds tasks: it brings their queries, one task ahead of the keys.
__device__ __forceinline__ void bring_tasks(Shared& shared, const Launch& launch,
                                            const TensorMap& query_map) {
  Turn<QUERY_STAGES> turn;
  const auto post = [&](const Work& work) {
    wait(&shared.query_ring.empty[turn.stage], turn.parity ^ 1);
    if (threadIdx.x % kWarp == 0) {
      shared.work[turn.stage] = work;
      arrive(&shared.posted[turn.stage]);
      wait_for_kernel_before();
      Barrier* full = &shared.query_ring.full[turn.stage];
      arrive_expecting(full, kKeyTiles * (kLines / launch.pack) * launch.pack * ROW_BYTES);
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
        copy_box(&shared.query[turn.stage][i * kQueryTile], query_map, i * kColumns,
                 work.first_head, work.tile.row, full);
      }
    }
    turn.next();
  };
  const int tasks = launch.slices.num_tiles() * launch.packs();
  const int parts = SPLITS ? launch.slices.parts() : 1;
  for (int round = 0; round * gridDim.x < tasks * parts; ++round) {
    const int task = task_of(round);
    if (task >= tasks * parts) continue;
    Work work = launch.work(task / parts);
    if (SPLITS) work.cut(task % parts, parts);
    if (work.part < work.num_parts) post(work);
  }
  let_next_kernel_start();  // what it reads before it waits for this one is older
  wait(&shared.query_ring.empty[turn.stage], turn.parity ^ 1);
  if (threadIdx.x % kWarp == 0) {
    shared.work[turn.stage].num_parts = 0;
    arrive(&shared.posted[turn.stage]);
    arrive(&shared.query_ring.full[turn.stage]);
  }
}

// The warp that brings keys and values, in the order in which consumers read them.
__device__ __forceinline__ void bring_keys(Shared& shared, const Launch& launch,
                                           const TensorMap& key_map, const TensorMap& value_map) {
  const int lane = threadIdx.x % kWarp;
  Turn<QUERY_STAGES> task_turn;
  Turn<STAGES> turn;
  while (true) {
    wait(&shared.posted[task_turn.stage], task_turn.parity);
    const Work& work = shared.work[task_turn.stage];
    const int kv_head = work.kv_head, first_block = work.first_block, last_block = work.last_block;
    const int last_box = work.tile.last_key / launch.box_tokens;
    const int* table = work.table;
    if (work.num_parts == 0) return;
    __syncwarp();
    if (lane == 0) arrive(&shared.query_ring.empty[task_turn.stage]);
    task_turn.next();
    wait_for_kernel_before();  // that is over after the first task
    for (int block = last_block; block >= first_block; --block) {
      // Boxes behind the last position bring that one's again: it is there, and finite.
      const auto token_of = [&](int box) {
        return min(block * (BLOCK / launch.box_tokens) + box, last_box) * launch.box_tokens;
      };
      const int key_token = token_of(lane / kKeyTiles), value_token = token_of(lane / kValueTiles);
      const int key_span = table[key_token >> launch.span_shift];
      const int value_span = table[value_token >> launch.span_shift];
      wait(&shared.key_ring.empty[turn.stage], turn.parity ^ 1);
      bring<kKeyTiles>(shared.keys[turn.stage], &shared.key_ring.full[turn.stage], key_map, launch,
                       kv_head, key_span, key_token, lane);
      wait(&shared.value_ring.empty[turn.stage], turn.parity ^ 1);
      bring<kValueTiles>(shared.values[turn.stage], &shared.value_ring.full[turn.stage], value_map,
                         launch, kv_head, value_span, value_token, lane);
      turn.next();
    }
  }
}

// Barriers by number: the turns of the consumers to start products, and each one's own threads.
constexpr int kTurnBarrier = 1, kOwnBarrier = kTurnBarrier + CONSUMERS,
              kAllBarrier = kOwnBarrier + CONSUMERS;

template <int kCount>
__device__ __forceinline__ void meet(int barrier) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}
template <int kCount>
__device__ __forceinline__ void pass_by(int barrier) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "n"(kCount) : "memory");
}

// What another thread block has written with a release, and before it.
__device__ __forceinline__ int load_acquired(const int* from) {
  int number;
  asm volatile("ld.acquire.gpu.s32 %0, [%1];" : "=r"(number) : "l"(from) : "memory");
  return number;
}

// s = the consumer's lines of `query` times `keys`.
__device__ __forceinline__ void start_scores(float (&s)[kFragments][4], unsigned query,
                                             unsigned keys) {
  begin_products();
#pragma unroll
  for (int k = 0; k < KEY_SIZE / 16; ++k) {
    const int tile = 16 * k / kColumns, within = 16 * k % kColumns * 2;
    Product<T, kFragments>::of_tiles(s, tile_at<ROW_BYTES>(query + tile * kQueryTile + within, 16),
                                     tile_at<ROW_BYTES>(keys + tile * kTile + within, 16), k > 0);
  }
  commit_products();
}

// sums += p times `values`.
__device__ __forceinline__ void start_values(float (&sums)[kSums][4],
                                             const unsigned (&p)[kFragments / 2][4],
                                             unsigned values) {
  begin_products();
#pragma unroll
  for (int k = 0; k < BLOCK / 16; ++k) {
    const unsigned rows = values + 16 * k * ROW_BYTES;
    Product<T, kSums>::of_registers(sums, p[k], tile_at<ROW_BYTES>(rows, kTile));
  }
  commit_products();
}

// Zeros in the rows first .. BLOCK - 1 of values. Each consumer writes all that it will read, so
// that it waits for no other.
__device__ __forceinline__ void zero_values(unsigned char* values, int first, int consumer) {
  constexpr int kParts = kValueTiles * ROW_BYTES / 16;
  for (int i = threadIdx.x % kGroup; i < (BLOCK - first) * kParts; i += kGroup) {
    const int row = first + i / kParts, tile = i % kParts / (ROW_BYTES / 16);
    *reinterpret_cast<uint4*>(values + tile * kTile + row * ROW_BYTES + i % (ROW_BYTES / 16) * 16) =
        make_uint4(0u, 0u, 0u, 0u);
  }
  publish_to_async();
  meet<kGroup>(kOwnBarrier + consumer);
}

__device__ __forceinline__ void round_scores(unsigned (&p)[kFragments / 2][4],
                                             const float (&s)[kFragments][4]) {
#pragma unroll
  for (int k = 0; k < kFragments / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &s[2 * k + i / 2][i % 2 * 2];
      p[k][i] = pack_pair<T>(pair[0], pair[1]);
    }
  }
}

// Stores one line of the sums times `share`. Four lanes hold two neighbouring elements of each
// fragment; they exchange them, so that each stores 16 bytes of one fragment.
__device__ __forceinline__ void store_line(T* to, const float (&sums)[kSums][4], int part,
                                           float share, bool is_there) {
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int n = 0; n < kSums; n += 4) {
    unsigned mine[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      mine[i] = pack_pair<T>(sums[n + i][2 * part] * share, sums[n + i][2 * part + 1] * share);
    }
#pragma unroll
    for (int bit = 1; bit < 4; bit *= 2) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (i & bit) continue;
        const unsigned got = __shfl_xor_sync(0xffffffffu, t & bit ? mine[i] : mine[i | bit], bit);
        (t & bit ? mine[i] : mine[i | bit]) = got;
      }
    }
    if (is_there) {
      *reinterpret_cast<uint4*>(to + 8 * (n + t)) = make_uint4(mine[0], mine[1], mine[2], mine[3]);
    }
  }
}

// Leaves the sums of this part of a task in the workspace, waits for those of the others and writes
// the results of every num_parts-th group of lines.
__device__ __forceinline__ void add_parts(const float (&sums)[kSums][4], const Rows& state,
                                          const Launch& launch, const Work& work, int first_line,
                                          float unit, T* out) {
  const int first_block = blockIdx.x - work.part, lines = work.tile.num_rows * launch.pack;
  const int t = threadIdx.x % 4;
#pragma unroll
  for (int which = 0; which < 2; ++which) {
    const int line = first_line + 8 * which;
    const float total = state.total(which);
    if (line >= lines) continue;
    if (t == 0) *launch.states(blockIdx.x, line) = make_float2(state.most[which], total);
    float2* to = reinterpret_cast<float2*>(launch.sums(blockIdx.x, line));
#pragma unroll
    for (int n = 0; n < kSums; ++n) {
      to[4 * n + t] = make_float2(sums[n][2 * which], sums[n][2 * which + 1]);
    }
  }
  __threadfence();
  meet<CONSUMERS * kGroup>(kAllBarrier);
  if (threadIdx.x == kGroup) {
    int* const counter = launch.slices.counters() + first_block;
    atomicAdd(counter, 1);
    while (load_acquired(counter) < work.num_parts) {
    }
    // Whoever waited is counted once more: then the last one knows that nobody waits any longer.
    if (atomicAdd(counter, 1) == 2 * work.num_parts - 1) *counter = 0;
  }
  meet<CONSUMERS * kGroup>(kAllBarrier);

  constexpr int kWarps = 4 * CONSUMERS, kPairs = (VALUE_SIZE / 2 + kWarp - 1) / kWarp;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp - 4;
  for (int line = work.part * kWarps + warp; line < lines; line += work.num_parts * kWarps) {
    float most = hidden(), total = 0.0f;
    for (int part = lane; part < work.num_parts; part += kWarp) {
      most = fmaxf(most, __ldcg(launch.states(first_block + part, line)).x);
    }
    most = lanes_max<kWarp>(most);
    float2 added[kPairs] = {};
    for (int first = 0; first < work.num_parts; first += kWarp) {
      float weight = 0.0f;  // of part first + lane
      if (first + lane < work.num_parts) {
        const float2 of = __ldcg(launch.states(first_block + first + lane, line));
        weight = power_of_2((of.x - most) * unit);
        total += weight * of.y;
      }
      const int count = min(work.num_parts - first, kWarp);
#pragma unroll 8
      for (int part = 0; part < count; ++part) {
        const float share = __shfl_sync(0xffffffffu, weight, part);
        const float2* from =
            reinterpret_cast<const float2*>(launch.sums(first_block + first + part, line));
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          if (lane + i * kWarp >= VALUE_SIZE / 2) continue;
          const float2 pair = __ldcg(&from[lane + i * kWarp]);
          added[i].x += share * pair.x;
          added[i].y += share * pair.y;
        }
      }
    }
    const int row = work.tile.row + line / launch.pack, head = work.first_head + line % launch.pack;
    unsigned* to = reinterpret_cast<unsigned*>(
        out + (static_cast<long long>(row) * launch.heads + head) * VALUE_SIZE);
    const float share = 1.0f / warp_sum(total);
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      if (lane + i * kWarp >= VALUE_SIZE / 2) continue;
      to[lane + i * kWarp] = pack_pair<T>(added[i].x * share, added[i].y * share);
    }
  }
}

// A consumer: 64 lines of each tile.
__device__ __forceinline__ void consume(Shared& shared, const Launch& launch, const Scores& scores,
                                        const float* alibi, const float* sinks, T* out,
                                        int consumer) {
  const int lane = threadIdx.x % kWarp;
  const int first_line = 64 * consumer + threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  const float unit = scores.unit();
  Turn<QUERY_STAGES> query_turn;
  Turn<STAGES> key_turn, value_turn;
  const int pack = launch.pack;
  wait_for_kernel_before();
  if (consumer == CONSUMERS - 1) pass_by<2 * kGroup>(kTurnBarrier);

  while (true) {
    wait(&shared.query_ring.full[query_turn.stage], query_turn.parity);
    const Work work = shared.work[query_turn.stage];
    if (work.num_parts == 0) return;
    const Tile& tile = work.tile;
    const int last_block = work.last_block, first_block = work.first_block;
    const unsigned query =
        shared_address(shared.query[query_turn.stage]) + consumer * 64 * ROW_BYTES;

    float sums[kSums][4] = {}, s[kFragments][4], keep[2];
    unsigned p[kFragments / 2][4];
    Rows state;
    int position[2];
    float slope[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int line = first_line + 8 * part, head = work.first_head + line % pack;
      // Lines behind the last row see what it sees, so that no block is empty for them.
      position[part] = tile.position + min(line / pack, tile.num_rows - 1);
      slope[part] = alibi ? alibi[head] : 0.0f;
      if (sinks && work.part == 0) {
        state.most[part] = sinks[head] * kLog2e / unit;
        state.sum[part] = lane % 4 ? 0.0f : 1.0f;
      }
    }

    const auto with_keys = [&] {
      wait(&shared.key_ring.full[key_turn.stage], key_turn.parity);
      start_scores(s, query, shared_address(shared.keys[key_turn.stage]));
    };
    const auto with_values = [&](int block) {
      wait(&shared.value_ring.full[value_turn.stage], value_turn.parity);
      unsigned char* values = shared.values[value_turn.stage];
      const int there = tile.last_key + 1 - block * BLOCK;
      if (there < BLOCK) zero_values(values, there, consumer);
      start_values(sums, p, shared_address(values));
    };
    const auto finish_scores = [&](int block) {
      pin(s);
      if (lane == 0) arrive(&shared.key_ring.empty[key_turn.stage]);
      key_turn.next();
      const int column = block * BLOCK + lane % 4 * 2;
      scores.shape(s, column, position, slope);
      if (!tile.sees_all(block * BLOCK, BLOCK, scores.window)) scores.hide(s, column, position);
      absorb(s, state, unit, keep);
    };
    const auto finish_values = [&] {
      wait_for_products<0>();
      pin(sums);
      if (lane == 0) arrive(&shared.value_ring.empty[value_turn.stage]);
      value_turn.next();
    };

    with_keys();
    wait_for_products<0>();
    finish_scores(last_block);
    round_scores(p, s);
    for (int block = last_block - 1; block >= first_block; --block) {
      meet<2 * kGroup>(kTurnBarrier + consumer);
      with_keys();
      with_values(block + 1);
      pass_by<2 * kGroup>(kTurnBarrier + (consumer + 1) % CONSUMERS);
      wait_for_products<1>();
      finish_scores(block);
      finish_values();
#pragma unroll
      for (int n = 0; n < kSums; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[n][i] *= keep[i / 2];
      }
      round_scores(p, s);
    }
    if (lane == 0) arrive(&shared.query_ring.empty[query_turn.stage]);
    query_turn.next();
    with_values(first_block);
    finish_values();

    if (SPLITS && work.num_parts > 1) {
      add_parts(sums, state, launch, work, first_line, unit, out);
      continue;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int line = first_line + 8 * part;
      T* to = out + (static_cast<long long>(tile.row + line / pack) * launch.heads +
                     work.first_head + line % pack) * VALUE_SIZE;
      store_line(to, sums, part, 1.0f / state.total(part), line < tile.num_rows * pack);
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    prefill_hopper(T* out, const __grid_constant__ TensorMap query_map,
                   const __grid_constant__ TensorMap key_map,
                   const __grid_constant__ TensorMap value_map, const int* tables, const int* rows,
                   int* plan, float* workspace, int num_slices, int table_len, int span_shift,
                   int heads, int pack, int kv_heads, int box_tokens, float scale, float softcap,
                   int window, const float* alibi, const float* sinks) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Launch launch{{plan, num_slices, SPLITS ? static_cast<int>(gridDim.x) : 0},
                      tables, rows, table_len, span_shift, heads, pack, kv_heads,
                      box_tokens, window, workspace};
  if (threadIdx.x == 0) {
    shared.query_ring.init(4 * CONSUMERS + 1);  // lane 0 of each warp
    for (int i = 0; i < QUERY_STAGES; ++i) init_barrier(&shared.posted[i], 1);
    shared.key_ring.init(4 * CONSUMERS);
    shared.value_ring.init(4 * CONSUMERS);
    publish_barriers();
  }
  __syncthreads();

  const int group = threadIdx.x / kGroup;
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 40;");
    const int warp = threadIdx.x / kWarp;
    if (warp == 0) bring_tasks(shared, launch, query_map);
    if (warp == 1) bring_keys(shared, launch, key_map, value_map);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    consume(shared, launch, {scale, softcap, window, alibi != nullptr}, alibi, sinks, out,
            group - 1);
  }
}
