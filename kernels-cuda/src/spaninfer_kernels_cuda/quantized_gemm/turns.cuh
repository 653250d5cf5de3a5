// A tile's chunks by warpgroups that take turns at the tensor cores: while the products of one are
// under way, the other folds its sums and makes fragments.
//
// Left alone, warpgroups go in step from the barrier of a chunk on: all make fragments, all
// multiply, all fold. For x in e4m3, where the sums of a group of columns, which are folded into a
// tile's, have registers for kPartTokens at a time; fragments are made once for all tokens. The
// chip runs at its limit of power here: fewer instructions count, not only those waited for.
//
// Macros: those of pipeline.cuh.
//
// Needs pipeline.cuh.

constexpr bool kTakesTurns = kInCodes && TOKENS > 64;
constexpr int kTurns = GROUPS / BLOCKS;  // warpgroups
constexpr int kFirstTurn = 2;            // of the named barriers, one for each of them
constexpr int kPasses = TOKENS > 192 ? 2 : 1;  // over a group's fragments
constexpr int kPartTokens = TOKENS / kPasses;
constexpr int kPartColumns = kPartTokens / 8;
constexpr int kGroupsOfChunk = kSteps / kSumSteps;

// Waits for the turn of warpgroup `number`.
__device__ __forceinline__ void take_turn(int number) {
  asm volatile("bar.sync %0, 256;" ::"r"(kFirstTurn + number) : "memory");
}

// Gives warpgroup `number` its turn.
__device__ __forceinline__ void give_turn(int number) {
  asm volatile("bar.arrive %0, 256;" ::"r"(kFirstTurn + number) : "memory");
}

using Fragments = unsigned[kSumSteps][4];  // of a group of columns
using Words = unsigned[kSumSteps][kStepWords];
using Part = float[kPartColumns][4];

// Reads the codes of a group of columns.
__device__ __forceinline__ void read_group(Words& to, const unsigned char* record, const Lane& own,
                                           int group) {
#pragma unroll
  for (int n = 0; n < kSumSteps; n += kLoadSteps) {
    const int step = group * kSumSteps + n;
    unsigned words[4];
    load_words(words, record, own.warp, step / kLoadSteps);
#pragma unroll
    for (int i = 0; i < min(kSumSteps, kLoadSteps) * kStepWords; ++i) {
      to[n + i / kStepWords][i % kStepWords] = words[step % kLoadSteps * kStepWords + i];
    }
  }
}

__device__ __forceinline__ void make_fragments(Fragments& fragments, const Words& words) {
#pragma unroll
  for (int n = 0; n < kSumSteps; ++n) centre(fragments[n], words[n], GroupNumbers{});
}

// The tile's sums of the tokens of pass `pass`.
__device__ __forceinline__ Part& sums_of_pass(Accumulators<Kernel>& acc, int pass) {
  return *reinterpret_cast<Part*>(&acc[pass * kPartColumns]);
}

// Codes are read behind the wait for the products before: ptxas gives the registers of fragments
// under way to what is made from codes that were read earlier.
template <typename Ring>
__device__ __forceinline__ void multiply_in_turns(Accumulators<Kernel>& acc, Ring& ring,
                                                  TurnOf<STAGES>& turn, int chunks, const Lane& own,
                                                  float2 factors) {
  static_assert(BLOCKS == 1 && kTurns == 2, "fragments of one block, turns of two warpgroups");
  const int offset = kXBytes + own.group * kRecordBytes;
  Fragments fragments;
  Words words;
  Part part;
  if (own.group == 1) give_turn(0);
  wait(&ring.full[turn.stage], turn.parity);
  read_group(words, ring.stages[turn.stage] + offset, own, 0);
  make_fragments(fragments, words);
  for (int left = chunks; left > 0; --left) {
    const int stage = turn.stage;
    const unsigned char* record = ring.stages[stage] + offset;
    const unsigned x = shared_address(ring.stages[stage]);
    turn.next();
#pragma unroll
    for (int group = 0; group < kGroupsOfChunk; ++group) {
      const bool ends_chunk = group + 1 == kGroupsOfChunk;
      const GroupNumbers numbers = GroupNumbers::of(record, group, own.row(), factors);
      const float2 scale = make_float2(numbers.scale[0], numbers.scale[1]);
#pragma unroll
      for (int pass = 0; pass < kPasses; ++pass) {
        const bool ends_group = pass + 1 == kPasses;
        take_turn(own.group);
        wgmma_fence();
#pragma unroll
        for (int n = 0; n < kSumSteps; ++n) {
          const int step = group * kSumSteps + n;
          const unsigned at = x + step / kLineSteps * kHalfBytes + step % kLineSteps * 32 +
                              pass * kPartTokens * kLineBytes;
          Wgmma<OPERAND, kPartColumns>::of_rows(part, fragments[n], tile_at<kLineBytes>(at, 0),
                                                n > 0);
        }
        wgmma_commit();
        give_turn(1 - own.group);
        if (ends_group && ends_chunk && left > 1) wait(&ring.full[turn.stage], turn.parity);
        wgmma_wait<0>();
        if (ends_group && ends_chunk) {
          read_group(words, ring.stages[turn.stage] + offset, own, 0);  // any, behind the last
        } else if (ends_group) {
          read_group(words, record, own, group + 1);
        }
        fold_part(sums_of_pass(acc, pass), part, scale);
        if (ends_group) make_fragments(fragments, words);
      }
    }
    arrive_if(own.lane == 0, &ring.empty[stage]);
  }
  if (own.group == 0) take_turn(0);
}

// Accumulates `chunks` chunks.
template <typename Ring>
__device__ __forceinline__ void sum_tile(Accumulators<Kernel>& acc, Ring& ring,
                                         TurnOf<STAGES>& turn, int chunks, const Lane& own,
                                         const float2 (&factors)[BLOCKS]) {
  if constexpr (kTakesTurns) {
    multiply_in_turns(acc, ring, turn, chunks, own, factors[0]);
  } else {
    multiply_tile(acc, ring, turn, chunks, own, factors);
  }
}
