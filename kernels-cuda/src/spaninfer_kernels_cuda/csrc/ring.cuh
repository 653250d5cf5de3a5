// A thread's position in a ring of buffers, each with a full and an empty barrier.

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
