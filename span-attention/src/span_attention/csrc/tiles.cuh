// The tiles of a prefill: their rows of a slice, their heads, the keys that they see.
//
// A tile is some rows of one slice times `pack` query heads that share a KV head: its line m is row
// m / pack and head m % pack, so that a block of keys serves all of them.
//
// kRagged: a slice is a whole sequence in contiguous arrays, each row of which sees others up to
// `ahead` positions ahead of it; else attention is over spans, causal, or every row of a tile sees
// the same keys, and `ahead` is 0. A `window` counts what a row sees back from the last of these,
// where all of it is there; 0: everything.

constexpr int kEverywhere = 0x7fffffff;  // a last key behind all that rows see

// The slices of a step; see prefill/plan.cu for `plan`. It may be written while thread blocks that
// read it begin, so it is read from L2.
struct Slices {
  int* plan;
  int num_slices;
  int most_sharers = 0;  // thread blocks that may share tasks

  __device__ __forceinline__ int num_tiles() const { return __ldcg(plan); }
  __device__ __forceinline__ int parts() const { return __ldcg(plan + 1); }
  __device__ __forceinline__ int* counters() const { return plan + 4; }
  __device__ __forceinline__ int4 tile(int number) const {
    const int before = (4 + most_sharers + num_slices + 3) / 4;
    return __ldcg(reinterpret_cast<const int4*>(plan) + before + number);
  }
};

template <bool kRagged>
struct TileOf {
  int slice;      // number of the slice; kRagged: the row of its first key
  int row;        // first row, counted over the whole step
  int num_rows;
  int steps;      // how much further each row sees than the one before: 1, or 0 where not causal
  int position;   // the last that the first row sees, if it is there
  int first_key;  // first_key .. last_key: the keys that any row sees
  int last_key;

  TileOf() = default;
  __device__ __forceinline__ TileOf(const Slices& slices, int number, int window, int ahead) {
    const int4 tile = slices.tile(number);
    slice = tile.x;
    row = tile.y;
    steps = kRagged || tile.z > 0;
    num_rows = abs(tile.z);
    position = kRagged ? row - slice + ahead : tile.w;
    last_key = kRagged ? min(tile.w, last_position()) : last_position();
    first_key = window ? max(0, position - window + 1) : 0;
  }

  // The last position that a row sees, if it is there. Rows past the last one see what it sees, so
  // that no block is empty for them.
  __device__ __forceinline__ int position_of(int row) const {
    return position + steps * min(row, num_rows - 1);
  }
  __device__ __forceinline__ int last_position() const { return position_of(num_rows); }

  // True if every row sees all of the keys first .. first + count - 1.
  __device__ __forceinline__ bool sees_all(int first, int count, int window) const {
    const int seen = kRagged ? min(position, last_key) : position;
    return first + count - 1 <= seen && !(window && first <= last_position() - window);
  }
};

// The task of a block in its round: to and fro over a list that falls in cost, so that the block
// with the longest task of one round gets the shortest of the next.
__device__ __forceinline__ int task_of(int round) {
  const int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return round * gridDim.x + place;
}
