// Where a thread is in a ring of buffers, each with a barrier for full and one for empty.

// A buffer of the ring, and the parity of its barriers' phase in this round.
template <int kStages>
struct TurnOf {
  int stage = 0, parity = 0;

  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};
