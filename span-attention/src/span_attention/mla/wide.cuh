// Latent attention of tiles of 64 lines on Hopper, absorbed: all heads read the latents themselves.
//
// Three warpgroups work on each block of keys in turn. The first turns keys into weights. The
// other two, the sides, hold half of the columns of the result each, 64 x 256 float32, and add the
// weights times their half of the values. So scores of a block are computed beside the values of
// the one before it, and no accumulator waits for a softmax. Weights go to the sides in the place
// of the block's last tile of keys, which scores alone read.
//
// Keys come in halves, tiles 0 .. 3 and 4 .. 7, through a ring of five slots, and the last tiles
// through one of three: each side gives its half back as soon as it has read it. There is room for
// five because the first half of a task's queries, which comes through the ring as well, stays in
// registers. Products of registers and keys also read half as much shared memory as those of tiles:
// a pair of blocks moves 552 KB, 4300 cycles, beside products of 4350.
//
// Beside a block's softmax the tensor cores have the right side's products of the block before it,
// which wait for the block's scores: 2 to 5 % faster than where both sides begin at once.
//
// The largest score that weights are relative to grows only where they would exceed 2^kSlack; else
// results are not rescaled.
//
// Macros: T (half or bfloat16), KEY_SIZE, VALUE_SIZE, TILE (64), LSE (0 or 1), SELECTED (1: threads
//         copy keys, not TMA), SCORES, KEEPS, LEAVES (registers of a thread that computes scores,
//         of a side, of a producer).

constexpr int kThreads = 4 * kGroup;
constexpr int kHalves = 5, kLasts = 3;  // slots
constexpr int kFragments = kBlock / 8;
constexpr int kParts = 2, kAccumulators = VALUE_SIZE / 2 / kParts / 8;  // of a side's columns
constexpr int kOwn = 1;  // barrier of the warpgroup that computes scores
constexpr float kSlack = 8.0f;
static_assert(TILE == 64, "lines of a warpgroup's products");
static_assert(kTile == kQueryTile, "queries come as keys do");

// What comes to the sides with weights; with those of a task's last keys, where its results go.
enum { kKeys, kLastKeys, kDone };
struct News {
  int what, line, lines, slot;
};

struct Shared {
  alignas(1024) unsigned char halves[kHalves][kHalf * kTile];
  alignas(1024) unsigned char lasts[kLasts][kTile];
  alignas(1024) unsigned char query[kKeyTiles - kHalf][kQueryTile];
  float keep[kLasts][TILE];   // what results before the block are multiplied by
  float share[kLasts][TILE];  // what they are multiplied by after a task's last block
  News news[kLasts];
  Barrier half_full[kHalves], half_empty[kHalves];
  Barrier last_full[kLasts], scored[kLasts], weighed[kLasts], last_empty[kLasts];
  Barrier query_full, query_empty;

  // Slots are filled by `fillers` arrivals. All threads call this.
  __device__ __forceinline__ void init(int fillers) {
    if (threadIdx.x == 0) {
      for (int i = 0; i < kHalves; ++i) {
        init_barrier(&half_full[i], fillers);
        init_barrier(&half_empty[i], 4);
      }
      for (int i = 0; i < kLasts; ++i) {
        init_barrier(&last_full[i], fillers);
        init_barrier(&scored[i], 4);
        init_barrier(&weighed[i], kGroup / 4);
        init_barrier(&last_empty[i], 2 * kGroup);
      }
      init_barrier(&query_full, 1);
      init_barrier(&query_empty, 4);
      publish_barriers();
    }
    __syncthreads();
  }
};

// A place in a ring of slots.
template <int kSlots>
struct Turn {
  int slot = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++slot == kSlots) slot = 0, parity ^= 1;
  }
};

// Waits for keys or queries.
__device__ __forceinline__ void wait_for_keys(Barrier* full, int parity) {
  wait(full, parity);
  if (SELECTED) publish_to_async();  // threads wrote them
}

// The first half of queries[64 lines], as fragments of A.
using Queries = unsigned[kHalf * 4][4];

// The lane's 16 bytes of the k-th 16 columns of a swizzled tile of 64 lines, as four matrices.
__device__ __forceinline__ unsigned matrices_at(unsigned tile, int k) {
  const int lane = threadIdx.x % kWarp;
  const int line = threadIdx.x % kGroup / kWarp * 16 + lane % 16;
  return tile + line * kRowBytes + (2 * k + lane / 16 ^ line % 8) * 16;
}

// s (+)= the queries' tiles in shared memory times as many tiles of keys.
template <int kTiles>
__device__ __forceinline__ void add_scores(float (&s)[kFragments][4], unsigned query,
                                           unsigned keys) {
#pragma unroll
  for (int i = 0; i < kTiles * 4; ++i) {
    const int at = i / 4 * kTile + i % 4 * 32;
    Wgmma<T, kFragments>::of_tiles(s, tile_at<kRowBytes>(query + at, 16),
                                   tile_at<kRowBytes>(keys + at, 16), 1);
  }
}

// The largest score of one of the lane's two lines, over all its columns.
__device__ __forceinline__ float largest(const float (&s)[kFragments][4], int row) {
  float most = hidden();
#pragma unroll
  for (int n = 0; n < kFragments; ++n) {
    most = fmaxf(most, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
  }
  most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
  return fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
}

// The results of a task without keys.
__device__ __forceinline__ void write_nothing(const Arguments& of, const Task& task) {
  for (int i = threadIdx.x % kGroup; i < task.lines * VALUE_SIZE; i += kGroup) {
    if (task.slot >= 0) {
      outputs_of(of, task.slot, 0)[i] = 0.0f;
    } else {
      of.out[static_cast<long long>(task.line) * VALUE_SIZE + i] = from_float<T>(0.0f);
    }
  }
  for (int line = threadIdx.x % kGroup; line < task.lines; line += kGroup) {
    write_exponent(of, task, line, hidden(), 0.0f);
  }
}

// The weights of each task's blocks.
__device__ __forceinline__ void weigh_keys(Shared& shared, const Arguments& of) {
  const int lane = threadIdx.x % kWarp;
  const int first_line = threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  const float log2_scale = of.log2_scale;
  const unsigned query = shared_address(shared.query);
  Turn<kHalves> halves;
  Turn<kLasts> last;
  int query_parity = 0;
  const auto tell = [&](const News& news) {
    if (threadIdx.x % kGroup == 0) shared.news[last.slot] = news;
    publish_to_async();
    __syncwarp();
    arrive_if(lane % 4 == 0, &shared.weighed[last.slot]);
  };
  wait_for_kernel_before();
  for_each_task(of, [&](const Task& task) {
    if (task.first_block >= task.end) return write_nothing(of, task);
    float most[2] = {hidden(), hidden()}, sum[2] = {};
    const int seen[2] = {task.position_of(first_line, of.lines_of_position) - lane % 4 * 2,
                         task.position_of(first_line + 8, of.lines_of_position) - lane % 4 * 2};
    const int all_see = (task.position_of(0, of.lines_of_position) + 1) / kBlock;  // blocks
    Queries q;
    wait_for_keys(&shared.half_full[halves.slot], halves.parity);
    const unsigned from = shared_address(shared.halves[halves.slot]);
#pragma unroll
    for (int i = 0; i < kHalf * 4; ++i) {
      load_matrices(q[i], matrices_at(from + i / 4 * kQueryTile, i % 4));
    }
    __syncwarp();
    arrive_if(lane == 0, &shared.half_empty[halves.slot]);
    halves.next();
    wait(&shared.query_full, query_parity);
    query_parity ^= 1;
    for (int block = task.first_block; block < task.end; ++block) {
      const bool is_last = block + 1 == task.end;
      float s[kFragments][4];
      unsigned char* const left = shared.halves[halves.slot];
      wait_for_keys(&shared.half_full[halves.slot], halves.parity);
      halves.next();
      wgmma_fence();
#pragma unroll
      for (int i = 0; i < kHalf * 4; ++i) {
        const unsigned at = shared_address(left) + i / 4 * kTile + i % 4 * 32;
        Wgmma<T, kFragments>::of_rows(s, q[i], tile_at<kRowBytes>(at, 16), i > 0);
      }
      unsigned char* const right = shared.halves[halves.slot];
      wait_for_keys(&shared.half_full[halves.slot], halves.parity);
      halves.next();
      add_scores<kHalf>(s, query, shared_address(right));
      unsigned char* const weights = shared.lasts[last.slot];
      wait_for_keys(&shared.last_full[last.slot], last.parity);
      add_scores<1>(s, query + kHalf * kQueryTile, shared_address(weights));
      wgmma_commit();
      wgmma_wait<0>();
      pin(s);
      arrive_if(lane == 0, &shared.scored[last.slot]);
      if (is_last) arrive_if(lane == 0, &shared.query_empty);
      if (block >= all_see) {
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            if (block * kBlock + 8 * n + i % 2 > seen[i / 2]) s[n][i] = hidden();
          }
        }
      }
#pragma unroll
      for (int row = 0; row < 2; ++row) {
        const float now = largest(s, row), before = most[row];
        if ((now - before) * log2_scale > kSlack) most[row] = now;
        const float base = most[row] == hidden() ? 0.0f : __fmul_rn(most[row], log2_scale);
        // Exactly 1 where nothing changed, as both products are rounded.
        const float keep = power_of_2(__fmul_rn(before, log2_scale) - base);
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kFragments; ++n) {
#pragma unroll
          for (int i = 2 * row; i < 2 * row + 2; ++i) {
            s[n][i] = power_of_2(s[n][i] * log2_scale - base);
            added += s[n][i];
          }
        }
        sum[row] = sum[row] * keep + added;
        if (lane % 4 == 0) shared.keep[last.slot][first_line + 8 * row] = keep;
      }
      meet<kGroup>(kOwn);  // all warps have read the block's last tile
#pragma unroll
      for (int k = 0; k < kFragments / 2; ++k) {
        const auto rounded = [&](int i) {
          const float* pair = &s[2 * k + i / 2][i % 2 * 2];
          return pack_pair<T>(pair[0], pair[1]);
        };
        const unsigned p[4] = {rounded(0), rounded(1), rounded(2), rounded(3)};
        store_matrices(matrices_at(shared_address(weights), k), p);
      }
      if (is_last) {
        const int there = task.last_token + 1 - block * kBlock;
        if (there < kBlock) {
          zero_values<kHalf>(left, there, kOwn);
          zero_values<kHalf>(right, there, kOwn);
        }
#pragma unroll
        for (int row = 0; row < 2; ++row) {
          sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 1);
          sum[row] += __shfl_xor_sync(0xffffffffu, sum[row], 2);
          const float share = sum[row] > 0.0f ? 1.0f / sum[row] : 0.0f;
          if (lane % 4 == 0) shared.share[last.slot][first_line + 8 * row] = share;
        }
      }
      tell({is_last ? kLastKeys : kKeys, task.line, task.lines, task.slot});
      last.next();
    }
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const int line = first_line + 8 * row;
      if (lane % 4 == 0 && line < task.lines) {
        write_exponent(of, task, line, most[row] * log2_scale, sum[row]);
      }
    }
  });
  wait(&shared.last_empty[last.slot], last.parity ^ 1);
  tell({kDone});
}

using Sums = float[kParts][kAccumulators][4];

__device__ __forceinline__ void rescale(Sums& acc, const float (&keep)[2]) {
  if (__all_sync(0xffffffffu, keep[0] == 1.0f && keep[1] == 1.0f)) return;
#pragma unroll
  for (int n = 0; n < kParts * kAccumulators; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) acc[n / kAccumulators][n % kAccumulators][i] *= keep[i / 2];
  }
}

// The lane's results of a task.
__device__ __forceinline__ void write_results(const Sums& acc, const float (&share)[2],
                                              const Arguments& of, const News& news, int side) {
  const int lane = threadIdx.x % kWarp, column = side * VALUE_SIZE / 2 + lane % 4 * 2;
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    const int line = threadIdx.x % kGroup / kWarp * 16 + lane / 4 + 8 * row;
    if (line >= news.lines) continue;
    T* const out = of.out + static_cast<long long>(news.line + line) * VALUE_SIZE + column;
    float* const part = outputs_of(of, max(news.slot, 0), line) + column;
#pragma unroll
    for (int n = 0; n < kParts * kAccumulators; ++n) {
      const float(&from)[4] = acc[n / kAccumulators][n % kAccumulators];
      const float x = from[2 * row] * share[row], y = from[2 * row + 1] * share[row];
      if (news.slot >= 0) {
        *reinterpret_cast<float2*>(part + 8 * n) = make_float2(x, y);
      } else {
        *reinterpret_cast<unsigned*>(out + 8 * n) = pack_pair<T>(x, y);
      }
    }
  }
}

// Each task's weights times a half of the values.
__device__ __forceinline__ void add_values(Shared& shared, const Arguments& of, int side) {
  const int lane = threadIdx.x % kWarp;
  const int first_line = threadIdx.x % kGroup / kWarp * 16 + lane / 4;
  Turn<kHalves> halves;
  Turn<kLasts> last;
  if (side == 1) halves.next();
  wait_for_kernel_before();
  for (;;) {
    wait(&shared.weighed[last.slot], last.parity);
    if (shared.news[last.slot].what == kDone) break;
    halves.next();  // queries
    Sums acc = {};
    News news;
    float share[2];
    do {
      wait(&shared.weighed[last.slot], last.parity);
      wait_for_keys(&shared.half_full[halves.slot], halves.parity);
      const float keep[2] = {shared.keep[last.slot][first_line],
                             shared.keep[last.slot][first_line + 8]};
      rescale(acc, keep);
      if (side == 1 && shared.news[last.slot].what == kKeys) {
        Turn<kLasts> next = last;
        next.next();
        wait(&shared.scored[next.slot], next.parity);
      }
      const unsigned weights = shared_address(shared.lasts[last.slot]);
      const unsigned values = shared_address(shared.halves[halves.slot]);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < kBlock / 16; ++k) {
#pragma unroll
        for (int i = 0; i < kParts; ++i) {
          Wgmma<T, kAccumulators>::of_tile_and_columns(
              acc[i], tile_at<kRowBytes>(weights + k * 32, 16),
              tile_at<kRowBytes>(values + i * kHalf / kParts * kTile + 16 * k * kRowBytes, kTile));
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int i = 0; i < kParts; ++i) pin(acc[i]);
      news = shared.news[last.slot];
      share[0] = shared.share[last.slot][first_line];
      share[1] = shared.share[last.slot][first_line + 8];
      __syncwarp();
      arrive_if(lane == 0, &shared.half_empty[halves.slot]);
      arrive(&shared.last_empty[last.slot]);
      last.next();
      halves.next(), halves.next();
    } while (news.what == kKeys);
    write_results(acc, share, of, news, side);
  }
}

// Copies the queries of a task: all producers call this.
__device__ __forceinline__ void bring_query(Shared& shared, Turn<kHalves>& halves,
                                            int& query_parity, const TensorMap& map,
                                            const Task& task) {
  const auto bring = [&](unsigned char* to, int first, int tiles, Barrier* full) {
    arrive_expecting(full, tiles * kQueryTile);
    for (int i = 0; i < tiles; ++i) {
      copy_box(to + i * kQueryTile, map, (first + i) * kColumns, task.line, 0, full);
    }
  };
  wait(&shared.half_empty[halves.slot], halves.parity ^ 1);
  wait(&shared.query_empty, query_parity);
  if (threadIdx.x > 0) {
    if (SELECTED) arrive(&shared.half_full[halves.slot]);
  } else {
    bring(shared.halves[halves.slot], 0, kHalf, &shared.half_full[halves.slot]);
    bring(shared.query[0], kHalf, kKeyTiles - kHalf, &shared.query_full);
  }
  __syncwarp();
  halves.next();
  query_parity ^= 1;
}

// What a thread block does, whose first warpgroup calls `produce`.
template <typename Produce>
__device__ __forceinline__ void run(Shared& shared, const Arguments& of, Produce produce) {
  const int group = __shfl_sync(0xffffffffu, threadIdx.x / kGroup, 0);
  if (group == 0) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(LEAVES));
    produce();
  } else if (group == 1) {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(SCORES));
    weigh_keys(shared, of);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(KEEPS));
    add_values(shared, of, group - 2);
  }
  let_next_kernel_start();
}
