// The consumers of mla/narrow.cu and mla/codes.cu.
//
// Products are transposed, tokens or columns of values along the 64 rows of a wgmma and lines along
// its columns: S^T = K Q^T, O^T = V^T P^T. Each of two warpgroups has a buffer of keys, every
// second block, and a softmax and a result of its own; at the end of a tile the second one's are
// added to the first one's. So one buffer is always being filled.
//
// In each buffer two barriers say that a half is there: tiles 0 .. 3, and tiles 4 .. 7; tile 8
// comes with the half of the other number than the buffer.

constexpr int kThreads = 3 * kGroup;  // two consumer warpgroups, and one with the producer warps
constexpr int kFragments = TILE / 8;
constexpr int kWeightsBytes = TILE * kRowBytes;
constexpr int kRounds = TILE / 16, kTilesOfRound = kValueTiles / kRounds;
constexpr int kOwn = 1;  // and 2: barriers of the consumer warpgroups
constexpr int kWarps = kGroup / kWarp;

struct Buffers {
  alignas(1024) unsigned char keys[2][kKeyTiles * kTile];
  alignas(1024) unsigned char query[kKeyTiles * kQueryTile];
};

struct Barriers {
  Barrier full[2][2], empty[2][2];  // of a buffer's halves
  Barrier query_full, query_empty;
  Barrier given, taken;  // what the second warpgroup hands to the first one

  // A buffer's half is filled by `fillers` arrivals, and read last by four warps, whose threads all
  // arrive where producers' stores fill it. All threads of the block call this.
  __device__ __forceinline__ void init(int fillers) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < 4; ++i) {
        init_barrier(&full[i / 2][i % 2], fillers);
        init_barrier(&empty[i / 2][i % 2], CODES ? kGroup : 4);
      }
      init_barrier(&query_full, 1);
      init_barrier(&query_empty, 8);
      init_barrier(&given, kGroup);
      init_barrier(&taken, kGroup);
      publish_barriers();
    }
    __syncthreads();
  }

  // Four warps call this when they have read a buffer's half: then it may be filled.
  __device__ __forceinline__ void release(int which, int side) {
    publish_to_async();
    __syncwarp();
    arrive_if(CODES || threadIdx.x % kWarp == 0, &empty[which][side]);
  }
};

struct Shared {
  Buffers buffers;
  alignas(1024) unsigned char weights[2][kWeightsBytes];
  float4 given[kTilesOfRound * kFragments][kGroup];
  float of_warp[2][kWarps][TILE];
  float most[TILE], sum[TILE];
  float scales[2][kBlock];  // of tokens, where CODES
  Barriers barriers;
};

// Numbers of the lane's lines: of fragment n the lines 8 n + 2 (lane % 4) and the next.
using OfLines = float[kFragments][2];

template <typename Join>
__device__ __forceinline__ void over_tokens(OfLines& x, float (&of_warp)[kWarps][TILE], int barrier,
                                            Join join) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
#pragma unroll
      for (int step = 4; step < kWarp; step *= 2) {
        x[n][c] = join(x[n][c], __shfl_xor_sync(0xffffffffu, x[n][c], step));
      }
    }
    if (lane < 4) {
      *reinterpret_cast<float2*>(&of_warp[warp][8 * n + 2 * lane]) = make_float2(x[n][0], x[n][1]);
    }
  }
  meet<kGroup>(barrier);
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    float2 all = *reinterpret_cast<const float2*>(&of_warp[0][8 * n + 2 * (lane % 4)]);
#pragma unroll
    for (int w = 1; w < kWarps; ++w) {
      const float2 other = *reinterpret_cast<const float2*>(&of_warp[w][8 * n + 2 * (lane % 4)]);
      all = make_float2(join(all.x, other.x), join(all.y, other.y));
    }
    x[n][0] = all.x, x[n][1] = all.y;
  }
}

// Writes rounded weights s[tokens lines] as rows of lines: a swizzled tile of 64 tokens.
__device__ __forceinline__ void write_weights(unsigned char* weights,
                                              const float (&s)[kFragments][4]) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int line = 8 * n + 2 * (lane % 4) + i % 2, token = 16 * warp + lane / 4 + 8 * (i / 2);
      const int part = token / 8 ^ line % 8;
      *reinterpret_cast<T*>(weights + line * kRowBytes + part * 16 + token % 8 * 2) =
          from_float<T>(s[n][i]);
    }
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

__device__ __forceinline__ void consume(Shared& shared, const Arguments& of, int which) {
  Barriers& barriers = shared.barriers;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x % kGroup / kWarp;
  unsigned char* const keys = shared.buffers.keys[which];
  const unsigned keys_at = shared_address(keys), query = shared_address(shared.buffers.query);
  const unsigned weights = shared_address(shared.weights[which]);
  int query_parity = 0, parity = 0, given_parity = 0;
  wait_for_kernel_before();

  for_each_task(of, [&](const Task& task) {
    float acc[kValueTiles][kFragments][4] = {};
    OfLines most, sum = {};
#pragma unroll
    for (int n = 0; n < kFragments; ++n) most[n][0] = most[n][1] = hidden();
    const bool has_keys = task.first_block < task.end;
    if (has_keys) wait(&barriers.query_full, query_parity), query_parity ^= 1;

    for (int block = task.first_block + which; block < task.end; block += 2) {
      float s[kFragments][4];
      wgmma_fence();
#pragma unroll
      for (int turn = 0; turn < 2; ++turn) {
        const int now = turn ^ which;  // tile 8 comes with the second one
        wait(&barriers.full[which][now], parity);
#pragma unroll
        for (int i = 0; i < kHalf + turn; ++i) {
          const int tile = i == kHalf ? kValueTiles : now * kHalf + i;
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            Wgmma<T, kFragments>::of_tiles(
                s, tile_at<kRowBytes>(keys_at + tile * kTile + 32 * k, 16),
                tile_at<kRowBytes>(query + tile * kQueryTile + 32 * k, 16), turn + i + k > 0);
          }
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      if (block + 2 >= task.end) arrive_if(lane == 0, &barriers.query_empty);
      const float* const scales = shared.scales[which] + 16 * warp + lane / 4;
      if constexpr (CODES) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] *= scales[8 * (i / 2)];
        }
      }
      if (!task.sees_all(block, of.lines_of_position)) {
        const int token = block * kBlock + 16 * warp + lane / 4;
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            const int line = 8 * n + 2 * (lane % 4) + i % 2;
            if (token + 8 * (i / 2) > task.position_of(line, of.lines_of_position))
              s[n][i] = hidden();
          }
        }
      }
      OfLines now, keep;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) now[n][c] = fmaxf(s[n][c], s[n][2 + c]);
      }
      over_tokens(now, shared.of_warp[which], kOwn + which,
                  [](float a, float b) { return fmaxf(a, b); });
      bool is_same = true;
#pragma unroll
      for (int n = 0; n < kFragments; ++n) {
#pragma unroll
        for (int c = 0; c < 2; ++c) {
          const float largest = fmaxf(now[n][c], most[n][c]);
          const float base = largest == hidden() ? 0.0f : __fmul_rn(largest, of.log2_scale);
          keep[n][c] = power_of_2(__fmul_rn(most[n][c], of.log2_scale) - base);
          most[n][c] = largest;
          is_same &= keep[n][c] == 1.0f;
          s[n][c] = power_of_2(s[n][c] * of.log2_scale - base);
          s[n][2 + c] = power_of_2(s[n][2 + c] * of.log2_scale - base);
          sum[n][c] = sum[n][c] * keep[n][c] + (s[n][c] + s[n][2 + c]);
        }
      }
      if constexpr (CODES) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) s[n][i] *= scales[8 * (i / 2)];
        }
      }
      write_weights(shared.weights[which], s);
      const int there = task.last_token + 1 - block * kBlock;
      if (there < kBlock) zero_values<kValueTiles>(keys, there, kOwn + which);
      publish_to_async();
      if (!__all_sync(0xffffffffu, is_same)) {
#pragma unroll
        for (int tile = 0; tile < kValueTiles; ++tile) {
#pragma unroll
          for (int n = 0; n < kFragments; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) acc[tile][n][i] *= keep[n][i % 2];
          }
        }
      }
      meet<kGroup>(kOwn + which);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kBlock / 16; ++k) {
#pragma unroll
        for (int tile = 0; tile < kValueTiles; ++tile) {
          Wgmma<T, kFragments>::of_columns(
              acc[tile], tile_at<kRowBytes>(keys_at + tile * kTile + 16 * k * kRowBytes, kTile),
              tile_at<kRowBytes>(weights + 32 * k, 16));
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int tile = 0; tile < kValueTiles; ++tile) pin(acc[tile]);
      barriers.release(which, 0);
      barriers.release(which, 1);
      parity ^= 1;
    }
    // A warpgroup without a block of this task has read no queries.
    if (has_keys && task.first_block + which >= task.end) {
      arrive_if(lane == 0, &barriers.query_empty);
    }

    over_tokens(sum, shared.of_warp[which], kOwn + which, [](float a, float b) { return a + b; });
    if (which == 1) {
#pragma unroll
      for (int round = 0; round < kRounds; ++round) {
        wait(&barriers.taken, given_parity ^ 1);
        if (round == 0 && warp == 0 && lane < 4) {
#pragma unroll
          for (int n = 0; n < kFragments; ++n) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              shared.most[8 * n + 2 * lane + c] = most[n][c];
              shared.sum[8 * n + 2 * lane + c] = sum[n][c];
            }
          }
        }
#pragma unroll
        for (int i = 0; i < kTilesOfRound; ++i) {
#pragma unroll
          for (int n = 0; n < kFragments; ++n) {
            const float (&from)[4] = acc[round * kTilesOfRound + i][n];
            shared.given[i * kFragments + n][threadIdx.x % kGroup] =
                make_float4(from[0], from[1], from[2], from[3]);
          }
        }
        arrive(&barriers.given);
        given_parity ^= 1;
      }
      meet<kGroup>(kOwn + which);  // before of_warp is written again
      return;
    }
    OfLines mine, others;
#pragma unroll
    for (int round = 0; round < kRounds; ++round) {
      wait(&barriers.given, given_parity);
      given_parity ^= 1;
      if (round == 0) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int c = 0; c < 2; ++c) {
            const int line = 8 * n + 2 * (lane % 4) + c;
            const float most_of_other = shared.most[line];
            const float largest = fmaxf(most[n][c], most_of_other);
            const float base = largest == hidden() ? 0.0f : __fmul_rn(largest, of.log2_scale);
            mine[n][c] = power_of_2(__fmul_rn(most[n][c], of.log2_scale) - base);
            others[n][c] = power_of_2(__fmul_rn(most_of_other, of.log2_scale) - base);
            const float total = mine[n][c] * sum[n][c] + others[n][c] * shared.sum[line];
            const float share = total > 0.0f ? 1.0f / total : 0.0f;
            if (warp == 0 && lane < 4 && line < task.lines) {
              write_exponent(of, task, line, largest * of.log2_scale, total);
            }
            mine[n][c] *= share;
            others[n][c] *= share;
          }
        }
      }
#pragma unroll
      for (int i = 0; i < kTilesOfRound; ++i) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
          float (&to)[4] = acc[round * kTilesOfRound + i][n];
          const float4 from = shared.given[i * kFragments + n][threadIdx.x % kGroup];
          to[0] = to[0] * mine[n][0] + from.x * others[n][0];
          to[1] = to[1] * mine[n][1] + from.y * others[n][1];
          to[2] = to[2] * mine[n][0] + from.z * others[n][0];
          to[3] = to[3] * mine[n][1] + from.w * others[n][1];
        }
      }
      arrive(&barriers.taken);
    }
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int line = 8 * n + 2 * (lane % 4) + i % 2;
        if (line >= task.lines) continue;
        const int column = 16 * warp + lane / 4 + 8 * (i / 2);
        T* const out = of.out + static_cast<long long>(task.line + line) * VALUE_SIZE + column;
        float* const part = outputs_of(of, max(task.slot, 0), line) + column;
#pragma unroll
        for (int tile = 0; tile < kValueTiles; ++tile) {
          if (task.slot >= 0) {
            part[tile * kColumns] = acc[tile][n][i];
          } else {
            out[tile * kColumns] = from_float<T>(acc[tile][n][i]);
          }
        }
      }
    }
    meet<kGroup>(kOwn + which);
  });
}
