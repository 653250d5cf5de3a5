// A ring of buffers, each with a full and an empty barrier: a thread's position in it, and how one
// thread fills it.
//
// Needs copy.cuh, overlap.cuh.

// A buffer of the ring, and the parity of its barriers' phase in this round.
template <int kStages>
struct TurnOf {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }

  __device__ __forceinline__ void skip(int turns) {
    stage += turns;
    parity ^= stage / kStages & 1;
    stage %= kStages;
  }
};

// Has the chunks of `range` copied into the ring's buffers, one after the other. No kernel writes
// weights, so the first of them are on their way before the previous kernel has ended.
// `copy_weight(stage, place)` announces the bytes of a chunk, of x too; `copy_x(stage, place)`.
template <int kStages, bool kNextStartsEarly, typename Ring, typename Range, typename CopyWeight,
          typename CopyX>
__device__ __forceinline__ void fill_ring(Ring& ring, const Range& range, CopyWeight copy_weight,
                                          CopyX copy_x) {
  const int count = range.count();
  auto place = range.start();
  for (int n = 0; n < min(kStages, count); ++n, range.advance(place)) copy_weight(n, place);
  if constexpr (kNextStartsEarly) let_next_kernel_start();
  wait_for_kernel_before();
  place = range.start();
  for (int n = 0; n < min(kStages, count); ++n, range.advance(place)) copy_x(n, place);
  TurnOf<kStages> turn;
  for (int n = kStages; n < count; ++n, range.advance(place), turn.next()) {
    wait(&ring.empty[turn.stage], turn.parity);
    copy_weight(turn.stage, place);
    copy_x(turn.stage, place);
  }
  if constexpr (!kNextStartsEarly) let_next_kernel_start();
}
