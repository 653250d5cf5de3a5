// A warpgroup's chunks of codes times chunks of x by wgmma: fragments are made from codes while the
// tensor cores multiply those before.
//
// A warpgroup has BLOCKS blocks of 64 weight rows, which share each chunk of x.
//
// Macros: those of multiply.cuh and codes.cuh; BATCH (steps, of 32 bytes of x, whose wgmmas are
//         issued together), STAGES.
//
// Needs wgmma.cuh, ring.cuh, multiply.cuh, results.cuh.

// Where codes have few bits, weights are products of pairs: scales rounded to T, then products,
// which are rounded again. Through float they are rounded once, by twice the instructions.
constexpr bool kScalesPairs = !kFolds && GROUP && !kIsHalf<T> && (BITS == 4 || E4M3) && SHIFT != 2;

// Codes times their scales.
__device__ __forceinline__ void multiply_pairs(unsigned (&a)[4], const GroupNumbers& numbers) {
  using Pair = PairOf<T>::Type;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const unsigned scales = pack_pair<T>(numbers.scale[i % 2], numbers.scale[i % 2]);
    const Pair product = __hmul2(*reinterpret_cast<const Pair*>(&a[i]),
                                 *reinterpret_cast<const Pair*>(&scales));
    a[i] = *reinterpret_cast<const unsigned*>(&product);
  }
}

// Steps whose wgmmas are issued together, while fragments of the next are made: of a chunk an even
// number of times, as fragments alternate between two places.
constexpr int kMostBatch = kSteps * BLOCKS / 2 < BATCH ? kSteps * BLOCKS / 2 : BATCH;
constexpr int kBatch = kSumSteps < kMostBatch ? kSumSteps : kMostBatch;
constexpr int kBatches = kSumSteps / kBatch;
// A block's sums of a group of columns: those of all blocks take turns.
constexpr int kUnits = kSteps / kSumSteps * BLOCKS;  // of a chunk
// Where sums of a group are folded, they have registers of their own; where there is room those of
// two groups, and one is folded while the other is summed.
constexpr bool kHasRoom = TOKENS <= 64 && BLOCKS <= 2 &&
                          (GROUPS / BLOCKS < 3 || (GROUP == kChunk && SHIFT == 0));
constexpr int kParts = kFolds && kHasRoom ? 2 : 1;

// A warpgroup's registers, and what is under way in them.
struct Pipeline {
  unsigned fragments[2][kBatch][4];
  Sums parts[kParts];
  float2 scale;  // of the unit before, which is not folded yet
  int before;    // the stage of the chunk before, which may still be read
};

// acc += scale * part, by instructions that stay behind the wait for the part: a `pin` of it would
// count as a change of registers while other wgmmas run, and ptxas would run one after the other.
template <int kFragments>
__device__ __forceinline__ void fold_part(float (&acc)[kFragments][4],
                                          const float (&part)[kFragments][4], float2 scale) {
#pragma unroll
  for (int j = 0; j < kFragments; ++j) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      asm volatile("fma.rn.f32 %0, %1, %2, %0;"
                   : "+f"(acc[j][i])
                   : "f"(i < 2 ? scale.x : scale.y), "f"(part[j][i]));
    }
  }
}

// Multiplies a chunk. kFirst: its first unit's part; kIsFirst: no chunk is under way.
template <int kFirst, bool kIsFirst, typename Ring>
__device__ __forceinline__ void multiply_chunk(Accumulators<Kernel>& acc, Pipeline& line,
                                               Ring& ring, int stage, const Lane& own,
                                               const float2 (&factors)[BLOCKS]) {
  const unsigned char* records = ring.stages[stage] + kXBytes + own.group * BLOCKS * kRecordBytes;
  const unsigned x = shared_address(ring.stages[stage]);
  unsigned words[BLOCKS][4];
#pragma unroll
  for (int unit = 0; unit < kUnits; ++unit) {
    const int group = unit / BLOCKS, block = unit % BLOCKS, current = (kFirst + unit) % kParts;
    const unsigned char* record = records + block * kRecordBytes;
    GroupNumbers numbers = GroupNumbers::of(record, group, own.row(), factors[block]);
#pragma unroll
    for (int batch = 0; batch < kBatches; ++batch) {
      unsigned (&a)[kBatch][4] = line.fragments[(unit * kBatches + batch) % 2];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int step = group * kSumSteps + batch * kBatch + n;
        if (step % kLoadSteps == 0) load_words(words[block], record, own.warp, step / kLoadSteps);
        if (!kFolds && GROUP && step > 0 && step % kGroupSteps == 0) {
          numbers = GroupNumbers::of(record, step / kGroupSteps, own.row(), factors[block]);
        }
        const unsigned* codes = words[block] + step % kLoadSteps * kStepWords;
        if constexpr (kScalesPairs) {
          centre(a[n], codes, numbers);
          multiply_pairs(a[n], numbers);
        } else {
          make_fragment(a[n], codes, numbers);
        }
      }
      wgmma_fence();
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int step = group * kSumSteps + batch * kBatch + n;
        const unsigned columns = x + step / kLineSteps * kHalfBytes + step % kLineSteps * 32;
        Wgmma<OPERAND, ::kColumns>::of_rows(
            kFolds ? line.parts[current] : sums_of(acc, block), a[n],
            tile_at<kLineBytes>(columns, 0), !kFolds || batch + n > 0);
      }
      wgmma_commit();
      if (kFolds && kParts == 1 && batch + 1 == kBatches) {
        wgmma_wait<0>();
      } else {
        wgmma_wait<1>();
      }
      const bool is_under_way = unit > 0 || !kIsFirst;
      if (kParts == 2 && batch == 0 && is_under_way) {
        fold_part(sums_of(acc, (unit + BLOCKS - 1) % BLOCKS), line.parts[1 - current], line.scale);
      }
      if (unit == 0 && batch == 0 && !kIsFirst) {
        arrive_if(own.lane == 0, &ring.empty[line.before]);
      }
    }
    line.scale = make_float2(numbers.scale[0], numbers.scale[1]);
    if (kFolds && kParts == 1) fold_part(sums_of(acc, block), line.parts[0], line.scale);
  }
  line.before = stage;
}

// Accumulates `chunks` chunks, one after the other: the first stands alone, because sums are made
// before it, and none while wgmmas are in flight; then two by two, so that parts alternate.
template <typename Ring>
__device__ __forceinline__ void multiply_tile(Accumulators<Kernel>& acc, Ring& ring,
                                              TurnOf<STAGES>& turn, int chunks, const Lane& own,
                                              const float2 (&factors)[BLOCKS]) {
  constexpr int kNext = kUnits % kParts;  // the part of the second chunk
  Pipeline line;
  wait(&ring.full[turn.stage], turn.parity);
  multiply_chunk<0, true>(acc, line, ring, turn.stage, own, factors);
  turn.next();
  int left = chunks - 1;
  for (; left >= 2; left -= 2) {
    wait(&ring.full[turn.stage], turn.parity);
    multiply_chunk<kNext, false>(acc, line, ring, turn.stage, own, factors);
    turn.next();
    wait(&ring.full[turn.stage], turn.parity);
    multiply_chunk<0, false>(acc, line, ring, turn.stage, own, factors);
    turn.next();
  }
  constexpr int kLast = (kUnits + 1) % 2;  // the part of an odd chunk's last unit
  Sums& last = sums_of(acc, BLOCKS - 1);
  if (left > 0) {
    wait(&ring.full[turn.stage], turn.parity);
    multiply_chunk<kNext, false>(acc, line, ring, turn.stage, own, factors);
    turn.next();
    wgmma_wait<0>();
    if (kParts == 2) fold_part(last, line.parts[(kNext + kLast) % kParts], line.scale);
  } else {
    wgmma_wait<0>();
    if (kParts == 2) fold_part(last, line.parts[kLast % kParts], line.scale);
  }
  arrive_if(own.lane == 0, &ring.empty[line.before]);
  if (!kFolds) pin(acc);
}
