// The tiles of a prefill: which rows of which slice, which heads, which keys they see.
//
// A tile is some rows of one slice times `pack` query heads that share a KV head: its line m is row
// m / pack and head m % pack, so that a block of keys serves all of them.

// What tells of a step where its slices lie; see prefill/plan.cu for `plan`.
struct Slices {
  int* plan;
  const int* bounds;
  const int* lengths;
  int num_slices;

  __device__ __forceinline__ int num_tiles() const { return plan[0]; }
  __device__ __forceinline__ int most_parts() const { return plan[1]; }
  __device__ __forceinline__ int2* tiles() const {
    return reinterpret_cast<int2*>(plan + 4 + num_slices + num_slices % 2);
  }
  __device__ __forceinline__ int* counters() const {
    return reinterpret_cast<int*>(tiles() + num_tiles());
  }
};

struct Tile {
  int slice;      // number of the slice
  int row;        // first row, counted over the whole step
  int num_rows;
  int position;   // of the first row
  int first_key;  // the keys that any row sees: first_key .. last_key
  int last_key;

  Tile() = default;
  __device__ __forceinline__ Tile(const Slices& slices, int number, int tile_rows, int window) {
    const int2 where = slices.tiles()[number];
    slice = where.x;
    const int begin = slices.bounds[slice], end = slices.bounds[slice + 1];
    row = begin + where.y;
    num_rows = min(tile_rows, end - row);
    position = slices.lengths[slice] - (end - row);
    last_key = position + num_rows - 1;
    first_key = window ? max(0, position - window + 1) : 0;
  }

  // Whether every row sees all of the keys first .. first + count - 1.
  __device__ __forceinline__ bool sees_all(int first, int count, int window) const {
    return first + count - 1 <= position && !(window && first <= last_key - window);
  }
};

// The task of a block in its round: to and fro over a list that falls in cost, so that the block
// with the longest task of one round gets the shortest of the next.
__device__ __forceinline__ int task_of(int round) {
  const int place = round % 2 ? gridDim.x - 1 - blockIdx.x : blockIdx.x;
  return round * gridDim.x + place;
}
