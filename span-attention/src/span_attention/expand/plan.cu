// The plan of an expansion: which spans are expanded, sequence after sequence; made once per step
// for every layer.
//
//   plan     0 num_spans | sources[num_spans]: spans of the KV cache, those with tokens
//   begins   [sequences] the place of each sequence's first span among them
//
// Spans from number `capacity` on are left out: there is no room for them.
//
// One block: a warp copies the table of one sequence after another.

constexpr int kThreads = 1024;

extern "C" __global__ void __launch_bounds__(kThreads, 1)
    expand_plan(int* plan, int* begins, const int* span_tables, const int* table_rows,
                const int* seq_lens, int sequences, int table_stride, int span_len, int capacity) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto spans_of = [&](int sequence) {
    return (seq_lens[sequence] + span_len - 1) / span_len;
  };
  int num_spans = 0;
  for (int first = 0; first < sequences; first += kThreads) {
    const int sequence = first + static_cast<int>(threadIdx.x);
    const int mine = sequence < sequences ? spans_of(sequence) : 0;
    int all;
    const int end = num_spans + running_sum<kThreads>(mine, all);
    if (sequence < sequences) begins[sequence] = end - mine;
    num_spans += all;
  }
  __syncthreads();

  for (int sequence = warp; sequence < sequences; sequence += kThreads / kWarp) {
    const int begin = begins[sequence], count = min(spans_of(sequence), capacity - begin);
    const long long row = table_rows[sequence];
    for (int column = lane; column < count; column += kWarp) {
      plan[1 + begin + column] = span_tables[row * table_stride + column];
    }
  }
  if (threadIdx.x == 0) plan[0] = min(num_spans, capacity);
  // The expansion reads the plan without waiting for this kernel to end; and it may start as soon
  // as one thread of the block lets it, so all of them must have written by then.
  __threadfence();
  __syncthreads();
  let_next_kernel_start();
}
