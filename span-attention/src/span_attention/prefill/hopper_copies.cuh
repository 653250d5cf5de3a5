// The two producer warps of hopper.cu: one finds tasks, the other copies keys and values.

// Copies the keys or values of one block: lane l tile l % kTiles of box l / kTiles.
template <int kTiles>
__device__ __forceinline__ void bring(unsigned char* to, Barrier* full, const TensorMap& map,
                                      const Launch& launch, int kv_head, int span, int token,
                                      int lane) {
  if (lane == 0) arrive_expecting(full, kTiles * kTile);
  __syncwarp();
  const int box = lane / kTiles, tile = lane % kTiles;
  if (box < BLOCK / launch.box_tokens) {
    copy_box(to + tile * kTile + box * launch.box_tokens * ROW_BYTES, map, tile * kColumns,
             RAGGED ? token : token & ((1 << launch.span_shift) - 1), kv_head, span, full);
  }
}

// The warp that finds tasks: it copies their queries, one task ahead of the keys.
__device__ __forceinline__ void bring_tasks(Shared& shared, const Launch& launch,
                                            const TensorMap& query_map) {
  Turn<QUERY_STAGES> turn;
  const auto post = [&](const Task& task) {
    wait(&shared.query_ring.empty[turn.stage], turn.parity ^ 1);
    if (threadIdx.x % kWarp == 0) {
      shared.task[turn.stage] = task;
      arrive(&shared.posted[turn.stage]);
      wait_for_kernel_before();
      Barrier* full = &shared.query_ring.full[turn.stage];
      arrive_expecting(full, kKeyTiles * (kLines / launch.pack) * launch.pack * ROW_BYTES);
#pragma unroll
      for (int i = 0; i < kKeyTiles; ++i) {
        copy_box(&shared.query[turn.stage][i * kQueryTile], query_map, i * kColumns,
                 task.first_head, task.tile.row, full);
      }
    }
    turn.next();
  };
  const int tasks = launch.slices.num_tiles() * launch.packs();
  const int parts = SPLITS ? launch.slices.parts() : 1;
  for (int round = 0; round * gridDim.x < tasks * parts; ++round) {
    const int number = task_of(round);
    if (number >= tasks * parts) continue;
    Task task = launch.task(number / parts);
    if (SPLITS) task.split(number % parts, parts);
    if (task.part < task.num_parts) post(task);
  }
  let_next_kernel_start();  // what the next reads before it waits for this one is older
  wait(&shared.query_ring.empty[turn.stage], turn.parity ^ 1);
  if (threadIdx.x % kWarp == 0) {
    shared.task[turn.stage].num_parts = 0;
    arrive(&shared.posted[turn.stage]);
    arrive(&shared.query_ring.full[turn.stage]);
  }
}

// The warp that copies keys and values, in the order in which consumers read them.
__device__ __forceinline__ void bring_keys(Shared& shared, const Launch& launch,
                                           const TensorMap& key_map, const TensorMap& value_map) {
  const int lane = threadIdx.x % kWarp;
  Turn<QUERY_STAGES> task_turn;
  Turn<STAGES> turn;
  while (true) {
    wait(&shared.posted[task_turn.stage], task_turn.parity);
    const Task& task = shared.task[task_turn.stage];
    const int kv_head = task.kv_head, first_block = task.first_block, last_block = task.last_block;
    const int last_box = task.tile.last_key / launch.box_tokens;
    const int first_box = task.tile.first_key / launch.box_tokens;
    const int* table = task.table;
    const int first_row = task.tile.slice;  // RAGGED
    if (task.num_parts == 0) return;
    __syncwarp();
    if (lane == 0) arrive(&shared.query_ring.empty[task_turn.stage]);
    task_turn.next();
    wait_for_kernel_before();  // returns at once after the first task
    for (int block = last_block; block >= first_block; --block) {
      // Boxes past the last position copy that one's again, those in front of a window its first:
      // they are there, and finite, where others may be of no span that was ever written.
      const auto token_of = [&](int box) {
        if constexpr (RAGGED) return first_row + block * BLOCK;
        const int at = block * (BLOCK / launch.box_tokens) + box;
        return min(max(at, first_box), last_box) * launch.box_tokens;
      };
      const auto span_of = [&](int token) {
        return RAGGED ? 0 : table[token >> launch.span_shift];
      };
      const int key_token = token_of(lane / kKeyTiles), value_token = token_of(lane / kValueTiles);
      const int key_span = span_of(key_token), value_span = span_of(value_token);
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
