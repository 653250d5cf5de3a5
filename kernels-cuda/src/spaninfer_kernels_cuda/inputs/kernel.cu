// The inputs of a step (batch metadata), derived on the GPU from a few numbers per slice.
//
//   receive_step    from the host's pinned memory: segments of words to their sequences' addresses,
//                   and the columns of the step's slices
//   derive_inputs   per token: id, position, slots, cosines and sines; per row of logits: the token
//                   it belongs to, its sequence, how much it attends to, and which position is
//                   sampled from it
//   send_words      results to the host's pinned memory
//
// Kernels read and write pinned memory themselves: two copies between steps took 17 us of an H200,
// where these take 6 (2026-11-30).
//
// A slice is positions [start, stop) of the sequence in table_rows[s]; -1 pads. Its tokens of the
// step are [query_start_loc[s], query_start_loc[s + 1]); the last of them, as many as
// logit_start_loc counts, have logits. From the very last one the token at sample_positions[s] is
// sampled; -1: none is. To position embeddings they are position_deltas[s] further on. Tokens after
// the last slice, and logits after its last ones, are padding.
//
// No macros. Demands: query_start_loc and logit_start_loc rise and begin with 0.
// Needs overlap.cuh.

constexpr int kWarp = 32;
constexpr unsigned kAll = 0xffffffffu;
constexpr int kColumns = 7, kLocs = 2;  // the last columns have a word more than slices

// The span table of one cache group, and the output for the slots of the step's tokens.
struct Group {
  const int* table;  // [N M]
  long long stride;  // M
  int* slots;        // [T]
  long long span_len;
};

// Cosines and sines of every position, and the outputs for those of the step's tokens.
struct Rope {
  const float* cosines;  // [positions half]
  const float* sines;
  float* cosine;  // [T half]
  float* sine;
  long long half;
};

// All addresses that never change; num_groups Groups and num_ropes Ropes follow in memory.
struct Inputs {
  // Columns of the step's slices, one after another: table_rows, starts, stops, sample_positions
  // and position_deltas of `capacity` words, query_start_loc and logit_start_loc of one more.
  const int* columns;
  long long capacity;
  const int* tokens;  // [N tokens_stride], by row and position
  long long tokens_stride;
  int* token_ids;          // [T]
  int* positions;          // [T]
  int* logit_indices;      // [W]
  int* logit_rows;         // [W]
  int* logit_seq_lens;     // [W]
  int* sampled_rows;       // [W]
  int* sampled_positions;  // [W]
  long long num_groups;
  long long num_ropes;

  __device__ const int* table_rows() const { return columns; }
  __device__ const int* starts() const { return columns + capacity; }
  __device__ const int* stops() const { return columns + 2 * capacity; }
  __device__ const int* sample_positions() const { return columns + 3 * capacity; }
  __device__ const int* position_deltas() const { return columns + 4 * capacity; }
  __device__ const int* query_start_loc() const { return columns + 5 * capacity; }
  __device__ const int* logit_start_loc() const { return columns + 6 * capacity + 1; }
  __device__ const Group* groups() const { return reinterpret_cast<const Group*>(this + 1); }
  __device__ const Rope* ropes() const {
    return reinterpret_cast<const Rope*>(groups() + num_groups);
  }
};

// The number of the slice that `index` falls into: the last s with bounds[s] <= index. Found by a
// warp, which looks at 32 bounds at once.
__device__ __forceinline__ int slice_of(const int* bounds, int slices, int index) {
  const int lane = threadIdx.x % kWarp;
  int first = 0, count = slices;  // it is one of [first, first + count)
  while (count > 1) {
    const int step = (count + kWarp - 1) / kWarp, at = lane * step;
    const bool reaches = at < count && bounds[first + at] <= index;
    const int last = step * (kWarp - 1 - __clz(__ballot_sync(kAll, reaches)));
    first += last;
    count = min(step, count - last);
  }
  return first;
}

__device__ __forceinline__ int thread() { return blockIdx.x * blockDim.x + threadIdx.x; }
__device__ __forceinline__ int threads() { return gridDim.x * blockDim.x; }

// Copies words, four of a thread under way together: each comes over the bus.
__device__ __forceinline__ void copy_words(int* __restrict__ to, const int* __restrict__ from,
                                           int count) {
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from[i];
}

// A block per segment: words [begins[s], begins[s + 1]) go to the address to[s]; and one for each
// column of `capacity` words: those of so many slices go from `sent` to `columns`.
extern "C" __global__ void receive_step(int* const* to, const int* begins, const int* words,
                                        int segments, int* columns, const int* sent, int capacity,
                                        int slices) {
  const int s = blockIdx.x, column = s - segments;
  if (column < 0) {
    copy_words(to[s], words + begins[s], begins[s + 1] - begins[s]);
  } else {
    const int locs = max(column - (kColumns - kLocs), 0);  // that lie in front of this one
    const int begin = column * capacity + locs;
    copy_words(columns + begin, sent + begin, slices + (column >= kColumns - kLocs));
  }
}

extern "C" __global__ void send_words(int* to, const int* words, int num_words) {
  for (int i = thread(); i < num_words; i += threads()) to[i] = words[i];
}

// The place of a token: the row of its sequence, -1 if it pads, and how far it lies in there.
struct Place {
  int row, at;
  long long position;  // as position embeddings see it
};

__device__ __forceinline__ Place place_of(const Inputs& in, int slices, int t) {
  const int s = slice_of(in.query_start_loc(), slices, t);
  const int row = in.table_rows()[s], start = in.starts()[s], delta = in.position_deltas()[s];
  const int first = in.query_start_loc()[s], tokens = in.query_start_loc()[slices];
  if (row < 0 || t >= tokens) return {-1, 0, 0};
  const int at = start + t - first;
  return {row, at, at + delta};
}

__device__ __forceinline__ void derive_id(const Inputs& in, int slices, int t, int lane) {
  const Place place = place_of(in, slices, t);
  if (lane > 0) return;
  in.token_ids[t] = place.row < 0 ? 0 : in.tokens[place.row * in.tokens_stride + place.at];
  in.positions[t] = static_cast<int>(place.position);
}

__device__ __forceinline__ void derive_slots(const Inputs& in, int slices, int t, int lane) {
  const Place place = place_of(in, slices, t);
  for (int g = lane; g < in.num_groups; g += kWarp) {
    const Group group = in.groups()[g];
    const int span_len = static_cast<int>(group.span_len);
    const int* spans = group.table + place.row * group.stride;
    group.slots[t] =
        place.row < 0 ? -1 : spans[place.at / span_len] * span_len + place.at % span_len;
  }
}

__device__ __forceinline__ void derive_angles(const Inputs& in, int slices, int t, int lane) {
  const Place place = place_of(in, slices, t);
  for (int r = 0; r < in.num_ropes; ++r) {
    const Rope rope = in.ropes()[r];
    for (int i = lane; i < rope.half; i += kWarp) {
      const long long angle = place.position * rope.half + i;
      const float cosine = rope.cosines[angle], sine = rope.sines[angle];
      rope.cosine[t * rope.half + i] = cosine;
      rope.sine[t * rope.half + i] = sine;
    }
  }
}

__device__ __forceinline__ void derive_logit(const Inputs& in, int slices, int w, int lane) {
  const int s = slice_of(in.logit_start_loc(), slices, w);
  if (lane > 0) return;
  const int end = in.logit_start_loc()[s + 1], last = in.query_start_loc()[s + 1];
  const int row = in.table_rows()[s], stop = in.stops()[s], sampled = in.sample_positions()[s];
  const int left = end - w;  // logits of the slice from here on
  const bool is_padding = left <= 0 || row < 0, is_sampled = left == 1 && sampled >= 0;
  in.logit_indices[w] = left > 0 ? last - left : 0;
  in.logit_rows[w] = is_padding ? -1 : row;
  in.logit_seq_lens[w] = is_padding ? 0 : stop - left + 1;
  in.sampled_rows[w] = is_sampled ? row : -1;
  in.sampled_positions[w] = is_sampled ? sampled : 0;
}

// A warp for each of what a token gets, and one per row of logits. Loads that follow one another
// are what this takes: 2.6 us for 8 tokens, 4.7 where a warp had all of a token (H200, 2026-11-30).
extern "C" __global__ void derive_inputs(const Inputs* __restrict__ inputs, int slices, int tokens,
                                         int logits) {
  let_next_kernel_start();
  const int lane = threadIdx.x % kWarp;
  for (int i = thread() / kWarp; i < 3 * tokens + logits; i += threads() / kWarp) {
    if (i < tokens) {
      derive_id(*inputs, slices, i, lane);
    } else if (i < 2 * tokens) {
      derive_slots(*inputs, slices, i - tokens, lane);
    } else if (i < 3 * tokens) {
      derive_angles(*inputs, slices, i - 2 * tokens, lane);
    } else {
      derive_logit(*inputs, slices, i - 3 * tokens, lane);
    }
  }
}
