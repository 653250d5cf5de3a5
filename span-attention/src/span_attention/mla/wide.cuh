// Latent attention of tiles of 64 lines on Hopper, absorbed: all heads read the latents themselves.
//
// A tile's result is 64 x 512 float32, the registers of two warpgroups: side 0 holds the left half
// of the columns, side 1 the right one. Of each pair of blocks of keys, side 0 computes the scores
// of the first one and side 1 those of the second; each multiplies its own weights with its half of
// the values, gives them to the other side through shared memory, and multiplies the other's. So
// one side's softmax runs while the tensor cores work for the other (FlashMLA's seesaw schedule).
// The largest scores go from side 0 to side 1 and back:
//
//   side 0   s0 = QK0; m' = max(m, s0); p0 = 2^(s0 - m')      O = O 2^(m - m') + p0 V0
//            with m'' from side 1: p0' = p0 2^(m' - m'')      O = O 2^(m' - m'') + p1 V1
//   side 1   s1 = QK1; with m': m'' = max(m', s1); p1 = 2^(s1 - m'')
//                                                             O = O 2^(m - m'') + p1 V1 + p0' V0
//
// Weights are exchanged in the place of the block's last tile of keys, which scores alone read.
//
// Macros: T (half or bfloat16), KEY_SIZE, VALUE_SIZE, TILE (64), LSE (0 or 1), SELECTED (1: threads
//         copy keys, not TMA), KEEPS, LEAVES (registers of a thread of a consumer, of a producer).

constexpr int kFragments = kBlock / 8, kAccumulators = VALUE_SIZE / 2 / 8;
constexpr int kFirstMost = 1, kSecondMost = 2, kFirstWeights = 3, kSums = 4, kOwn = 5;  // barriers
static_assert(TILE == 64, "lines of a warpgroup's products");

struct Shared {
  Buffers buffers;
  Barriers barriers;
  float most[2][TILE];
  float sums[2][2][TILE];  // of tasks in turn
};

using ScoresOf = float[kFragments][4];
using Weights = unsigned[kFragments / 2][4];

// s (+)= the queries times tiles first .. last - 1 of the keys.
template <int kFirst, int kLast>
__device__ __forceinline__ void add_scores(ScoresOf& s, unsigned query, unsigned keys, bool adds) {
#pragma unroll
  for (int k = kFirst * 4; k < kLast * 4; ++k) {
    const int tile = k / 4, within = k % 4 * 32;
    Wgmma<T, kFragments>::of_tiles(s, tile_at<kRowBytes>(query + tile * kQueryTile + within, 16),
                                   tile_at<kRowBytes>(keys + tile * kTile + within, 16),
                                   adds || k > kFirst * 4);
  }
}

// acc += p times the half of the values that begins at `values`.
__device__ __forceinline__ void start_values(float (&acc)[kAccumulators][4], const Weights& p,
                                             unsigned values) {
  wgmma_fence();
#pragma unroll
  for (int k = 0; k < kBlock / 16; ++k) {
    Wgmma<T, kAccumulators>::of_registers(acc, p[k],
                                          tile_at<kRowBytes>(values + 16 * k * kRowBytes, kTile));
  }
  wgmma_commit();
}

__device__ __forceinline__ void rescale(float (&acc)[kAccumulators][4], const float (&keep)[2]) {
  if (__all_sync(0xffffffffu, keep[0] == 1.0f && keep[1] == 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kAccumulators; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n][i] *= keep[i / 2];
  }
}

// The largest score of each of the lane's two lines, over all its columns.
__device__ __forceinline__ void largest(const ScoresOf& s, float (&most)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float x = hidden();
#pragma unroll
    for (int n = 0; n < kFragments; ++n) x = fmaxf(x, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
    x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 1));
    most[row] = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, 2));
  }
}

// 2^(from - to), both times log2_scale: exactly 1 where they are equal.
__device__ __forceinline__ float factor(float from, float to, float log2_scale) {
  const float base = to == hidden() ? 0.0f : __fmul_rn(to, log2_scale);
  return power_of_2(__fmul_rn(from, log2_scale) - base);
}

// Turns scores into weights; adds them to the lane's sums.
__device__ __forceinline__ void weigh(ScoresOf& s, const float (&most)[2], float (&sum)[2],
                                      float log2_scale) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const float base = most[row] == hidden() ? 0.0f : __fmul_rn(most[row], log2_scale);
    float added = 0.0f;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        s[n][i] = power_of_2(s[n][i] * log2_scale - base);
        added += s[n][i];
      }
    }
    sum[row] += added;
  }
}

// Rounded weights, times `share`.
__device__ __forceinline__ void round_weights(Weights& p, const ScoresOf& s,
                                              const float (&share)[2]) {
#pragma unroll
  for (int k = 0; k < kFragments / 2; ++k) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float* pair = &s[2 * k + i / 2][i % 2 * 2];
      p[k][i] = pack_pair<T>(pair[0] * share[i % 2], pair[1] * share[i % 2]);
    }
  }
}

// Both sides hold a line's weights in the same lanes.
__device__ __forceinline__ uint4* place_of(unsigned char* keys) {
  return reinterpret_cast<uint4*>(keys + kValueTiles * kTile) + threadIdx.x % kGroup;
}
__device__ __forceinline__ void give(unsigned char* keys, const Weights& p) {
#pragma unroll
  for (int k = 0; k < kFragments / 2; ++k) {
    place_of(keys)[k * kGroup] = make_uint4(p[k][0], p[k][1], p[k][2], p[k][3]);
  }
}
__device__ __forceinline__ void take(Weights& p, unsigned char* keys) {
#pragma unroll
  for (int k = 0; k < kFragments / 2; ++k) {
    const uint4 got = place_of(keys)[k * kGroup];
    p[k][0] = got.x, p[k][1] = got.y, p[k][2] = got.z, p[k][3] = got.w;
  }
}

// Waits for a half of a block of keys.
__device__ __forceinline__ void wait_for_keys(Barrier* full, int parity) {
  wait(full, parity);
  if (SELECTED) publish_to_async();  // threads wrote them
}

template <int kSide>
__device__ __forceinline__ void consume(Shared& shared, const Arguments& of) {
  Barriers& barriers = shared.barriers;
  const int lane = threadIdx.x % kWarp;
  const int first_line = threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  const unsigned query = shared_address(shared.buffers.query);
  unsigned char* const keys = shared.buffers.keys[kSide];
  unsigned char* const others = shared.buffers.keys[1 - kSide];
  constexpr int kColumn = kSide * kHalf * kTile;  // of this side's half of the values
  const float one[2] = {1.0f, 1.0f};
  int query_parity = 0, parity[2] = {0, 0}, turn = 0;

  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    float acc[kAccumulators][4] = {}, most[2] = {hidden(), hidden()}, sum[2] = {};
    const int position[2] = {task.position_of(first_line, of.lines_of_position),
                             task.position_of(first_line + 8, of.lines_of_position)};
    const auto zero_tail = [&](unsigned char* values, int block) {
      const int there = task.last_token + 1 - block * kBlock;
      if (there < kBlock) zero_values<kHalf>(values + kColumn, there, kOwn + kSide);
    };
    const auto scores = [&](ScoresOf& s, int block) {
      wait_for_keys(&barriers.full[kSide][kSide], parity[kSide]);
      const unsigned at = shared_address(keys);
      wgmma_fence();
      add_scores<kSide * kHalf, kSide * kHalf + kHalf>(s, query, at, false);
      wait_for_keys(&barriers.full[kSide][1 - kSide], parity[kSide]);
      add_scores<(1 - kSide) * kHalf, (1 - kSide) * kHalf + kHalf>(s, query, at, true);
      add_scores<kValueTiles, kKeyTiles>(s, query, at, true);
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      if (task.sees_all(block, of.lines_of_position)) return;
      const int column = block * kBlock + lane % 4 * 2;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (column + 8 * n + i % 2 > position[i / 2]) s[n][i] = hidden();
        }
      }
    };
    const bool has_keys = task.first_block < task.end;
    if (has_keys) wait(&barriers.query_full, query_parity), query_parity ^= 1;

    for (int block = task.first_block; block < task.end; block += 2) {
      const bool has_second = block + 1 < task.end, is_last = block + 2 >= task.end;
      ScoresOf s;
      Weights p, others_p;
      float own[2], keep[2];
      if constexpr (kSide == 0) {
        scores(s, block);
        if (is_last) arrive_if(lane == 0, &barriers.query_empty);
        largest(s, own);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          own[row] = fmaxf(own[row], most[row]);
          keep[row] = factor(most[row], own[row], of.log2_scale);
          sum[row] *= keep[row];
          if (lane % 4 == 0) shared.most[0][first_line + 8 * row] = own[row];
        }
        pass_by<2 * kGroup>(kFirstMost);
        weigh(s, own, sum, of.log2_scale);
        round_weights(p, s, one);
        rescale(acc, keep);
        zero_tail(keys, block);
        start_values(acc, p, shared_address(keys) + kColumn);
        meet<2 * kGroup>(kSecondMost);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          most[row] = shared.most[1][first_line + 8 * row];
          keep[row] = factor(own[row], most[row], of.log2_scale);
          sum[row] *= keep[row];
        }
        round_weights(others_p, s, keep);
        give(keys, others_p);
        pass_by<2 * kGroup>(kFirstWeights);
        if (has_second) take(others_p, others);
        wgmma_wait<0>();
        pin(acc);
        barriers.release(0, kSide);
        rescale(acc, keep);
        if (has_second) {
          wait_for_keys(&barriers.full[1][0], parity[1]);
          zero_tail(others, block + 1);
          start_values(acc, others_p, shared_address(others) + kColumn);
          wgmma_wait<0>();
          pin(acc);
          barriers.release(1, kSide);
        }
      } else {
        own[0] = own[1] = hidden();
        if (has_second) {
          scores(s, block + 1);
          largest(s, own);
        }
        if (is_last) arrive_if(lane == 0, &barriers.query_empty);
        meet<2 * kGroup>(kFirstMost);
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          own[row] = fmaxf(own[row], shared.most[0][first_line + 8 * row]);
          keep[row] = factor(most[row], own[row], of.log2_scale);
          most[row] = own[row];
          sum[row] *= keep[row];
          if (lane % 4 == 0) shared.most[1][first_line + 8 * row] = own[row];
        }
        if (has_second) {
          weigh(s, own, sum, of.log2_scale);
          round_weights(p, s, one);
          give(keys, p);
        }
        pass_by<2 * kGroup>(kSecondMost);
        rescale(acc, keep);
        if (has_second) {
          zero_tail(keys, block + 1);
          start_values(acc, p, shared_address(keys) + kColumn);
        }
        wait_for_keys(&barriers.full[0][1], parity[0]);
        zero_tail(others, block);
        meet<2 * kGroup>(kFirstWeights);
        take(others_p, others);
        start_values(acc, others_p, shared_address(others) + kColumn);
        if (has_second) {
          wgmma_wait<1>();
          barriers.release(1, kSide);
        }
        wgmma_wait<0>();
        pin(acc);
        barriers.release(0, kSide);
      }
      parity[0] ^= 1;
      if (has_second) parity[1] ^= 1;
    }

    float (&sums)[2][TILE] = shared.sums[turn];
    turn ^= 1;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 1);
      sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 2);
      if (lane % 4 == 0) sums[kSide][first_line + 8 * row] = sum[row];
    }
    meet<2 * kGroup>(kSums);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int line = first_line + 8 * row;
      if (line >= task.lines) continue;
      const float total = sums[0][line] + sums[1][line], share = total > 0.0f ? 1.0f / total : 0.0f;
      if (kSide == 0 && lane % 4 == 0) {
        write_exponent(of, task, line, most[row] * of.log2_scale, total);
      }
      const int column = kSide * VALUE_SIZE / 2 + lane % 4 * 2;
      T* const out = of.out + static_cast<long long>(task.line + line) * VALUE_SIZE + column;
      float* const part = outputs_of(of, max(task.slot, 0), line) + column;
#pragma unroll
      for (int n = 0; n < kAccumulators; ++n) {
        const float x = acc[n][2 * row] * share, y = acc[n][2 * row + 1] * share;
        if (task.slot >= 0) {
          *reinterpret_cast<float2*>(part + 8 * n) = make_float2(x, y);
        } else {
          *reinterpret_cast<unsigned*>(out + 8 * n) = pack_pair<T>(x, y);
        }
      }
    }
  });
}

// What a thread block does, whose first warpgroup calls `produce`.
template <typename Produce>
__device__ __forceinline__ void run(Shared& shared, const Arguments& of, Produce produce) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEAVES));
    produce();
  } else if (group == 1) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    consume<0>(shared, of);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    consume<1>(shared, of);
  }
  let_next_kernel_start();
}
