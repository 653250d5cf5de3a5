// The inputs of a step, derived on the GPU from a few numbers per slice.
//
//   write_words     segments of words from the step's block to where requests are remembered
//   derive_inputs   per row: token, position, slots, cosines and sines; per wanted row: its row,
//                   whose it is, how much it sees, and whose token is drawn from it, at which
//                   position
//
// A slice is positions [start, stop) of the request that is remembered in `row`; row -1 pads. Its
// rows of the step are [bounds[s], bounds[s + 1]), and its last wanted[s + 1] - wanted[s] rows are
// wanted. Where its token is drawn here, from the very last, that is for position draws[s]; else -1.
// Rows behind the last slice, and wanted rows behind its last one, pad.
//
// No macros. Demands: bounds and wanted rise and begin with 0.

constexpr int kWarp = 32;

// The span table of one cache group, and where the slots of the step's rows go.
struct Group {
  const int* table;  // [N M]
  long long stride;  // M
  int* slots;        // [T]
  long long span_len;
};

// Cosines and sines of every position, and where those of the step's rows go.
struct Rope {
  const float* cosines;  // [positions half]
  const float* sines;
  float* cosine;  // [T half]
  float* sine;
  long long half;
};

// Everything that lies at an address which does not change; num_groups Groups and num_ropes Ropes
// follow it in memory.
struct Places {
  // Columns of the step's slices, one after another: rows, starts, stops and draws of `capacity`
  // words, bounds and wanted of one more.
  const int* columns;
  long long capacity;
  const int* known;  // [N stride]: tokens by row and position
  long long stride;
  int* token_ids;      // [T]
  int* position;       // [T]
  int* wanted;         // [W]
  int* wanted_row;     // [W]
  int* wanted_len;     // [W]
  int* draw_row;       // [W]
  int* draw_position;  // [W]
  long long num_groups;
  long long num_ropes;

  __device__ const int* rows() const { return columns; }
  __device__ const int* starts() const { return columns + capacity; }
  __device__ const int* stops() const { return columns + 2 * capacity; }
  __device__ const int* draws() const { return columns + 3 * capacity; }
  __device__ const int* bounds() const { return columns + 4 * capacity; }
  __device__ const int* wanted_bounds() const { return columns + 5 * capacity + 1; }
  __device__ const Group* groups() const { return reinterpret_cast<const Group*>(this + 1); }
  __device__ const Rope* ropes() const {
    return reinterpret_cast<const Rope*>(groups() + num_groups);
  }
};

// The number of the slice that `index` falls into: the last s with bounds[s] <= index.
__device__ __forceinline__ int slice_of(const int* bounds, int slices, int index) {
  int low = 0, high = slices - 1;
  while (low < high) {
    const int middle = (low + high + 1) / 2;
    if (bounds[middle] <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

__device__ __forceinline__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int threads() { return gridDim.x * blockDim.x; }

// One block per segment: words [begins[s], begins[s + 1]) go to the address to[s].
extern "C" __global__ void write_words(int* const* __restrict__ to, const int* __restrict__ begins,
                                       const int* __restrict__ words) {
  const int begin = begins[blockIdx.x], end = begins[blockIdx.x + 1];
  int* place = to[blockIdx.x];
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) place[i - begin] = words[i];
}

__device__ __forceinline__ void derive_row(const Places& places, int slices, int t, int lane) {
  const int s = slice_of(places.bounds(), slices, t);
  const int row = t < places.bounds()[slices] ? places.rows()[s] : -1;
  const int at = row < 0 ? 0 : places.starts()[s] + t - places.bounds()[s];
  if (lane == 0) {
    places.token_ids[t] = row < 0 ? 0 : places.known[row * places.stride + at];
    places.position[t] = at;
  }
  for (int g = lane; g < places.num_groups; g += kWarp) {
    const Group group = places.groups()[g];
    const int span_len = static_cast<int>(group.span_len);
    const int* spans = group.table + row * group.stride;
    group.slots[t] = row < 0 ? -1 : spans[at / span_len] * span_len + at % span_len;
  }
  for (int r = 0; r < places.num_ropes; ++r) {
    const Rope rope = places.ropes()[r];
    for (int i = lane; i < rope.half; i += kWarp) {
      rope.cosine[t * rope.half + i] = rope.cosines[at * rope.half + i];
      rope.sine[t * rope.half + i] = rope.sines[at * rope.half + i];
    }
  }
}

__device__ __forceinline__ void derive_draw(const Places& places, int slices, int w) {
  const int s = slice_of(places.wanted_bounds(), slices, w);
  const int left = places.wanted_bounds()[s + 1] - w;  // wanted rows of the slice from here on
  const bool is_drawn = left == 1 && places.draws()[s] >= 0;
  const int row = left > 0 ? places.rows()[s] : -1;
  places.wanted[w] = left > 0 ? places.bounds()[s + 1] - left : 0;
  places.wanted_row[w] = row;
  places.wanted_len[w] = row < 0 ? 0 : places.stops()[s] - left + 1;
  places.draw_row[w] = is_drawn ? places.rows()[s] : -1;
  places.draw_position[w] = is_drawn ? places.draws()[s] : 0;
}

// A warp per row of the step; a thread per wanted row.
extern "C" __global__ void derive_inputs(const Places* __restrict__ places, int slices, int rows,
                                         int wanted) {
  for (int t = thread() / kWarp; t < rows; t += threads() / kWarp) {
    derive_row(*places, slices, t, threadIdx.x % kWarp);
  }
  for (int w = thread(); w < wanted; w += threads()) derive_draw(*places, slices, w);
}
