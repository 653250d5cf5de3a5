// The inputs of a step (batch metadata), derived on the GPU from a few numbers per slice.
//
//   write_words     segments of words from the step's block to their sequences' addresses
//   derive_inputs   per token: id, position, slots, cosines and sines; per row of logits: the token
//                   it belongs to, its sequence, how much it attends to, and which position is
//                   sampled from it
//
// A slice is positions [start, stop) of the sequence in table_rows[s]; -1 pads. Its tokens of the
// step are [query_start_loc[s], query_start_loc[s + 1]); the last of them, as many as
// logit_start_loc counts, have logits. From the very last one the token at sample_positions[s] is
// sampled; -1: none is. To position embeddings they are position_deltas[s] further on. Tokens after
// the last slice, and logits after its last ones, are padding.
//
// No macros. Demands: query_start_loc and logit_start_loc rise and begin with 0.

constexpr int kWarp = 32;

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

__device__ __forceinline__ void derive_token(const Inputs& in, int slices, int t, int lane) {
  const int s = slice_of(in.query_start_loc(), slices, t);
  const int row = t < in.query_start_loc()[slices] ? in.table_rows()[s] : -1;
  const int at = row < 0 ? 0 : in.starts()[s] + t - in.query_start_loc()[s];
  const long long position = row < 0 ? 0 : at + in.position_deltas()[s];
  if (lane == 0) {
    in.token_ids[t] = row < 0 ? 0 : in.tokens[row * in.tokens_stride + at];
    in.positions[t] = static_cast<int>(position);
  }
  for (int g = lane; g < in.num_groups; g += kWarp) {
    const Group group = in.groups()[g];
    const int span_len = static_cast<int>(group.span_len);
    const int* spans = group.table + row * group.stride;
    group.slots[t] = row < 0 ? -1 : spans[at / span_len] * span_len + at % span_len;
  }
  for (int r = 0; r < in.num_ropes; ++r) {
    const Rope rope = in.ropes()[r];
    for (int i = lane; i < rope.half; i += kWarp) {
      rope.cosine[t * rope.half + i] = rope.cosines[position * rope.half + i];
      rope.sine[t * rope.half + i] = rope.sines[position * rope.half + i];
    }
  }
}

__device__ __forceinline__ void derive_logit(const Inputs& in, int slices, int w) {
  const int s = slice_of(in.logit_start_loc(), slices, w);
  const int left = in.logit_start_loc()[s + 1] - w;  // logits of the slice from here on
  const bool is_sampled = left == 1 && in.sample_positions()[s] >= 0;
  const int row = left > 0 ? in.table_rows()[s] : -1;
  in.logit_indices[w] = left > 0 ? in.query_start_loc()[s + 1] - left : 0;
  in.logit_rows[w] = row;
  in.logit_seq_lens[w] = row < 0 ? 0 : in.stops()[s] - left + 1;
  in.sampled_rows[w] = is_sampled ? in.table_rows()[s] : -1;
  in.sampled_positions[w] = is_sampled ? in.sample_positions()[s] : 0;
}

// A warp per token of the step; a thread per row of logits.
extern "C" __global__ void derive_inputs(const Inputs* __restrict__ inputs, int slices, int tokens,
                                         int logits) {
  for (int t = thread() / kWarp; t < tokens; t += threads() / kWarp) {
    derive_token(*inputs, slices, t, threadIdx.x % kWarp);
  }
  for (int w = thread(); w < logits; w += threads()) derive_logit(*inputs, slices, w);
}
