// The attention of general.cu on Hopper: wgmma consumers, and TMA producer warps.
//
// CONSUMERS warpgroups hold 64 lines of a tile each. Two warps of a further warpgroup fill rings of
// buffers by TMA: one finds tasks and copies their queries, the other copies keys and values, a
// span's tokens of one head with one instruction per ROW_BYTES. A consumer starts the scores of the
// next block and the values of this one together and makes exponentials while they run (Shah et al.
// 2024); consumers take turns in starting, so that one has the tensor cores while the other makes
// exponentials.
//
// Where SPLITS and tasks are few, several thread blocks share the blocks of keys of each (plan.cu),
// so that few rows of a long context use the whole GPU: each leaves its partials in the workspace,
// waits for the others and adds those of all for its part of the lines. All thread blocks run at
// once, so that none waits for one that has not begun.
//
// The plan and the tables are older than the previous kernel: they are read without waiting for it.
//
// Blocks of keys begin at multiples of BLOCK. Spans are read to the end of the last block: what
// lies past the last position is masked in scores, and zeroed in values, where it may be NaN.
//
// Macros: T (half or bfloat16), KEY_SIZE, VALUE_SIZE, ROW_BYTES (64 or 128), BLOCK, CONSUMERS,
//         STAGES (buffers of keys, and of values), QUERY_STAGES, KEEPS (registers of a consumer),
//         LEAVES (of a producer), SPLITS (0 or 1), LSE (0 or 1: log-sum-exps of scores are written
//         to lse[rows heads]), RAGGED (csrc/tiles.cuh), WIDTH (RAGGED: the elements of a head in
//         memory; sizes are those that are multiplied, zeros behind them), BIASED (RAGGED, 0 or 1:
//         scores get biases[heads 2 * reach + 1] by how far a key is ahead, `reach` at the most).
// Demands: 2 KEY_SIZE and 2 VALUE_SIZE multiples of ROW_BYTES unless RAGGED; BLOCK and VALUE_SIZE
//          sizes of a Wgmma; maps whose boxes have rows of ROW_BYTES and `box_tokens` tokens, or
//          for queries pack heads and kLines / pack rows.

// A consumer: 64 lines of each tile.
__device__ __forceinline__ void consume(Shared& shared, const Launch& launch, const Scores& scores,
                                        const float* alibi_slopes, const float* sinks,
                                        const float* biases, int reach, T* out, float* lse,
                                        int consumer) {
  const int lane = threadIdx.x % kWarp;
  const int first_line = 64 * consumer + threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  const float log2_scale = scores.log2_scale();
  Turn<QUERY_STAGES> query_turn;
  Turn<STAGES> key_turn, value_turn;
  const int pack = launch.pack;
  wait_for_kernel_before();
  if (consumer == CONSUMERS - 1) pass_by<2 * kGroup>(kTurnBarrier);

  while (true) {
    wait(&shared.query_ring.full[query_turn.stage], query_turn.parity);
    const Task task = shared.task[query_turn.stage];
    if (task.num_parts == 0) return;
    const Tile& tile = task.tile;
    // Broadcast, so that the compiler knows the stages below to be warp-uniform: the matrix
    // descriptors of keys and queries then stay in uniform registers; before, each wgmma waited for
    // four moves.
    const int last_block = __shfl_sync(0xffffffffu, task.last_block, 0);
    const int first_block = __shfl_sync(0xffffffffu, task.first_block, 0);
    const unsigned query =
        shared_address(shared.query[query_turn.stage]) + consumer * 64 * ROW_BYTES;

    float acc[kAccumulators][4] = {}, s[kFragments][4], keep[2];
    unsigned p[kFragments / 2][4];
    Rows state;
    int position[2];
    float slope[2];
    const float* bias[2];
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int line = first_line + 8 * part, head = task.first_head + line % pack;
      position[part] = tile.position_of(line / pack);
      bias[part] = BIASED ? biases + head * (2 * reach + 1) + reach : nullptr;
      slope[part] = alibi_slopes ? alibi_slopes[head] : 0.0f;
      if (sinks && task.part == 0) {
        state.most[part] = sinks[head] * kLog2e / log2_scale;
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
      start_values(acc, p, shared_address(values));
    };
    const auto finish_scores = [&](int block) {
      pin(s);
      if (lane == 0) arrive(&shared.key_ring.empty[key_turn.stage]);
      key_turn.next();
      const int column = block * BLOCK + lane % 4 * 2;
      if constexpr (BIASED) {
        scores.shape(s, column, position, bias, reach, launch.ahead);
      } else {
        scores.shape(s, column, position, slope);
      }
      if (!tile.sees_all(block * BLOCK, BLOCK, scores.window)) {
        scores.hide(s, column, position, RAGGED ? tile.last_key : kEverywhere);
      }
      absorb(s, state, log2_scale, keep);
    };
    const auto finish_values = [&] {
      wgmma_wait<0>();
      pin(acc);
      if (lane == 0) arrive(&shared.value_ring.empty[value_turn.stage]);
      value_turn.next();
    };

    with_keys();
    wgmma_wait<0>();
    finish_scores(last_block);
    round_scores(p, s);
    for (int block = last_block - 1; block >= first_block; --block) {
      meet<2 * kGroup>(kTurnBarrier + consumer);
      with_keys();
      with_values(block + 1);
      pass_by<2 * kGroup>(kTurnBarrier + (consumer + 1) % CONSUMERS);
      wgmma_wait<1>();
      finish_scores(block);
      finish_values();
#pragma unroll
      for (int n = 0; n < kAccumulators; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) acc[n][i] *= keep[i / 2];
      }
      round_scores(p, s);
    }
    if (lane == 0) arrive(&shared.query_ring.empty[query_turn.stage]);
    query_turn.next();
    with_values(first_block);
    finish_values();

    if (SPLITS && task.num_parts > 1) {
      add_parts(acc, state, launch, task, first_line, log2_scale, out, lse);
      continue;
    }
#pragma unroll
    for (int part = 0; part < 2; ++part) {
      const int line = first_line + 8 * part;
      T* to = out + (static_cast<long long>(tile.row + line / pack) * launch.heads +
                     task.first_head + line % pack) *
                        kWidth;
      store_line(to, acc, part, 1.0f / state.total(part), line < tile.num_rows * pack);
      if constexpr (LSE) {
        const float total = state.total(part);
        if (line >= tile.num_rows * pack || lane % 4 > 0) continue;
        lse[(to - out) / kWidth] = log_sum(state.most[part] * log2_scale, total);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    prefill_hopper(T* out, const __grid_constant__ TensorMap query_map,
                   const __grid_constant__ TensorMap key_map,
                   const __grid_constant__ TensorMap value_map, const int* span_tables,
                   const int* table_rows, int* plan, float* workspace, int num_slices,
                   int table_stride, int span_shift, int heads, int pack, int kv_heads,
                   int box_tokens, float softmax_scale, float softcap, int window,
                   const float* alibi_slopes, const float* sinks, float* lse, int ahead,
                   const float* biases, int reach) {
  extern __shared__ __align__(1024) unsigned char memory[];
  Shared& shared = *reinterpret_cast<Shared*>(memory);
  const Launch launch{{plan, num_slices, SPLITS ? static_cast<int>(gridDim.x) : 0},
                      span_tables,
                      table_rows,
                      table_stride,
                      span_shift,
                      heads,
                      pack,
                      kv_heads,
                      box_tokens,
                      window,
                      ahead,
                      workspace};
  if (threadIdx.x == 0) {
    shared.query_ring.init(4 * CONSUMERS + 1);  // lane 0 of each warp
    for (int i = 0; i < QUERY_STAGES; ++i) init_barrier(&shared.posted[i], 1);
    shared.key_ring.init(4 * CONSUMERS);
    shared.value_ring.init(4 * CONSUMERS);
    publish_barriers();
  }
  __syncthreads();

  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);  // see consume
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEAVES));
    const int warp = threadIdx.x / kWarp;
    if (warp == 0) bring_tasks(shared, launch, query_map);
    if (warp == 1) bring_keys(shared, launch, key_map, value_map);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    const Scores scores{softmax_scale, softcap, window, BIASED || alibi_slopes};
    consume(shared, launch, scores, alibi_slopes, sinks, biases, reach, out, lse, group - 1);
  }
}
