// Causal convolution over the last TAPS inputs of each channel, then SiLU:
//
//   out[t c] = silu(sum over n of weight[c n] * input[t - (TAPS - 1) + n, c])
//
// Inputs in front of a slice are those that its state keeps, float32 [TAPS - 1, channels] at
// inputs + span * span_stride; the last ones of the slice, and of its snapshots, are left there.
//
// A block takes up to TOKENS tokens of one slice and THREADS * VECTOR channels. The block with the
// first tokens of a slice also leaves the states: only its threads have read the one in front,
// which may lie in the same span.
//
// Macros: T (element), TAPS, VECTOR (channels of a thread), TOKENS, THREADS.
// Demands: VECTOR divides channels; x and out begin at multiples of VECTOR elements.

constexpr int kKept = TAPS - 1;

// What block number `block` of the slices takes: a part of a slice, from its token `begin` on.
struct Part {
  Slice slice;
  int begin;
  bool is_there;
};

__device__ __forceinline__ Part part_of(const SliceTable& slices, int num_slices, int num_decodes,
                                        int block) {
  if (block < num_decodes) return {slices.at(block), 0, true};
  block -= num_decodes;
  for (int s = num_decodes; s < num_slices; ++s) {
    const int count = slices.query_start_loc[s + 1] - slices.query_start_loc[s];
    const int blocks = (count + TOKENS - 1) / TOKENS;
    if (block < blocks) return {slices.at(s), block * TOKENS, true};
    block -= blocks;
  }
  return {{}, 0, false};
}

// Leaves the last inputs in front of token `count` of the slice in a span; `front`[kKept] are those
// in front of the slice.
__device__ __forceinline__ void leave(float* inputs, const T* x, long long x_stride, int channels,
                                      const float (&front)[kKept][VECTOR], int count) {
  float kept[kKept][VECTOR];
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) kept[n][v] = front[n][v];
  }
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int token = count - kKept + n;
    if (token < 0) continue;
#pragma unroll
    for (int m = 1; m < kKept; ++m) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) kept[m - 1][v] = kept[m][v];
    }
    load_floats<VECTOR>(kept[kKept - 1], x + token * x_stride);
  }
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    store_floats<VECTOR>(inputs + static_cast<long long>(n) * channels, kept[n]);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    convolve(T* out, const T* x, const T* weight, float* inputs, const int* table_rows,
             const int* seq_lens, const int* query_start_loc, const int* tables,
             long long x_stride, long long table_stride, long long span_stride, int span_len,
             int channels, int num_slices, int num_decodes) {
  let_next_kernel_start();
  wait_for_kernel_before();
  const SliceTable slices{table_rows, seq_lens, query_start_loc, tables, table_stride, span_len};
  const Part part = part_of(slices, num_slices, num_decodes, blockIdx.y);
  const int channel = (blockIdx.x * THREADS + threadIdx.x) * VECTOR;
  if (!part.is_there || channel >= channels) return;
  const Slice slice = part.slice;
  const int end = min(part.begin + TOKENS, slice.count);
  T* to = out + static_cast<long long>(slice.first) * channels + channel;
  if (slice.table == nullptr) {
    const float nothing[VECTOR] = {};
    for (int t = part.begin; t < end; ++t) {
      store_floats<VECTOR>(to + static_cast<long long>(t) * channels, nothing);
    }
    return;
  }
  x += slice.first * x_stride + channel;
  inputs += channel;

  const int source = slice.source();
  float front[kKept][VECTOR], window[TAPS][VECTOR], taps[VECTOR * TAPS];
  load_floats<VECTOR * TAPS>(taps, weight + channel * TAPS);
#pragma unroll
  for (int n = 0; n < kKept; ++n) {
    const int token = part.begin - kKept + n;
    if (token >= 0) {
      load_floats<VECTOR>(front[n], x + token * x_stride);
    } else if (source >= 0) {
      const long long row = token + kKept;
      load_floats<VECTOR>(front[n], inputs + source * span_stride + row * channels);
    } else {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) front[n][v] = 0.0f;
    }
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) window[n + 1][v] = front[n][v];
  }
  for (int t = part.begin; t < end; ++t) {
#pragma unroll
    for (int n = 0; n < kKept; ++n) {
#pragma unroll
      for (int v = 0; v < VECTOR; ++v) window[n][v] = window[n + 1][v];
    }
    load_floats<VECTOR>(window[kKept], x + t * x_stride);
    float sums[VECTOR] = {};
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
#pragma unroll
      for (int n = 0; n < TAPS; ++n) sums[v] += window[n][v] * taps[v * TAPS + n];
      sums[v] = sums[v] / (1.0f + __expf(-sums[v]));
    }
    store_floats<VECTOR>(to + static_cast<long long>(t) * channels, sums);
  }

  if (part.begin > 0) return;
  for (int index = slice.start / span_len; index < slice.last_index(); ++index) {
    const int span = slice.snapshot(index);
    if (span < 0) continue;
    const int count = (index + 1) * span_len - slice.start;
    leave(inputs + span * span_stride, x, x_stride, channels, front, count);
  }
  leave(inputs + slice.target() * span_stride, x, x_stride, channels, front, slice.count);
}
