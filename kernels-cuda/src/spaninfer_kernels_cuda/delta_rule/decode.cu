// The gated delta rule for slices of one token: every state is read once and written once.
//
//   S <- exp(g) S;  S <- S + k (beta (v - S^T k))^T;  o = S^T q / sqrt(KEY)
//
// S^T k and S^T q are summed in one pass over the old state: with delta = beta (v - exp(g) S^T k),
// o = exp(g) S^T q + (k . q) delta. A block takes COLUMNS columns of one head's state, which its
// threads hold in registers meanwhile: kAcross lanes share a row of it.
//
// x[T] = [q | k | v] of all heads, key_heads of q and k, value_heads of v; a[T H] and b[T H] give
// the gates. The state [H KEY VALUE] lies at states + span * span_stride. Padding reads zeros.
//
// Macros: T (element), KEY, VALUE (sizes of a head), COLUMNS, VECTOR (columns of a thread),
//         THREADS.
// Demands: VECTOR divides VALUE and COLUMNS; COLUMNS / VECTOR is a power of two of at most 32.

constexpr int kAcross = COLUMNS / VECTOR;
constexpr int kRows = THREADS / kAcross;  // that are read at once
constexpr int kPasses = (KEY + kRows - 1) / kRows;
constexpr int kWarps = THREADS / kWarp;

extern "C" __global__ void __launch_bounds__(THREADS)
    learn_tokens(T* out, const T* x, const T* a, const T* b, const float* a_log,
                 const float* dt_bias, float* states, const int* table_rows, const int* seq_lens,
                 const int* query_start_loc, const int* tables, long long x_stride,
                 long long a_stride, long long b_stride, long long table_stride,
                 long long span_stride, int span_len, int key_heads, int value_heads) {
  __shared__ float query[KEY], key[KEY], sums[2][kWarps][COLUMNS];
  let_next_kernel_start();
  wait_for_kernel_before();
  constexpr int kParts = (VALUE + COLUMNS - 1) / COLUMNS;
  const int head = blockIdx.x / kParts, key_head = head / (value_heads / key_heads);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int column = blockIdx.x % kParts * COLUMNS + threadIdx.x % kAcross * VECTOR;
  const int row = threadIdx.x / kAcross;
  const bool is_there = column < VALUE;
  const SliceTable slices{table_rows, seq_lens, query_start_loc, tables, table_stride, span_len};
  const Slice slice = slices.at(blockIdx.y);
  const long long token = slice.first;
  T* to = out + (token * value_heads + head) * VALUE + column;
  if (slice.table == nullptr) {
    const float nothing[VECTOR] = {};
    if (row == 0 && is_there) store_floats<VECTOR>(to, nothing);
    return;
  }

  const int source = slice.source();
  const long long place = static_cast<long long>(head) * KEY * VALUE + column;
  float held[kPasses][VECTOR] = {};
  if (source >= 0 && is_there) {
    const float* from = states + source * span_stride + place;
#pragma unroll
    for (int p = 0; p < kPasses; ++p) {
      const int d = p * kRows + row;
      if (d < KEY) load_floats<VECTOR>(held[p], from + d * VALUE);
    }
  }

  x += token * x_stride;
  const T* q = x + key_head * KEY;
  const T* k = q + key_heads * KEY;
  float q_squares = 0.0f, k_squares = 0.0f, products = 0.0f;
  for (int d = lane; d < KEY; d += kWarp) {
    const float of_q = to_float(q[d]), of_k = to_float(k[d]);
    q_squares += square(of_q);
    k_squares += square(of_k);
    products += of_q * of_k;
    if (warp == 0) {
      query[d] = of_q;
      key[d] = of_k;
    }
  }
  const float q_scale = unit_scale(warp_sum(q_squares)) * rsqrtf(KEY);
  const float k_scale = unit_scale(warp_sum(k_squares));
  products = warp_sum(products) * q_scale * k_scale;
  float value[VECTOR] = {};
  if (is_there) load_floats<VECTOR>(value, x + 2 * key_heads * KEY + head * VALUE + column);
  const float decay = expf(
      log_decay(to_float(a[token * a_stride + head]), a_log[head], dt_bias[head]));
  const float beta = sigmoid(to_float(b[token * b_stride + head]));
  __syncthreads();

  float known[VECTOR] = {}, read[VECTOR] = {};
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int d = p * kRows + row;
    if (d >= KEY) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) {
      known[v] += held[p][v] * key[d];
      read[v] += held[p][v] * query[d];
    }
  }
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
#pragma unroll
    for (int step = kAcross; step < kWarp; step *= 2) {
      known[v] += __shfl_xor_sync(0xffffffffu, known[v], step);
      read[v] += __shfl_xor_sync(0xffffffffu, read[v], step);
    }
  }
  if (lane < kAcross) {
    store_floats<VECTOR>(&sums[0][warp][lane * VECTOR], known);
    store_floats<VECTOR>(&sums[1][warp][lane * VECTOR], read);
  }
  __syncthreads();
  float delta[VECTOR];
#pragma unroll
  for (int v = 0; v < VECTOR; ++v) {
    known[v] = read[v] = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      known[v] += sums[0][w][threadIdx.x % kAcross * VECTOR + v];
      read[v] += sums[1][w][threadIdx.x % kAcross * VECTOR + v];
    }
    delta[v] = beta * (value[v] - decay * k_scale * known[v]);
    read[v] = decay * q_scale * read[v] + products * delta[v];
    delta[v] *= k_scale;
  }
  if (!is_there) return;
  if (row == 0) store_floats<VECTOR>(to, read);
  float* left = states + slice.target() * span_stride + place;
#pragma unroll
  for (int p = 0; p < kPasses; ++p) {
    const int d = p * kRows + row;
    if (d >= KEY) continue;
#pragma unroll
    for (int v = 0; v < VECTOR; ++v) held[p][v] = decay * held[p][v] + key[d] * delta[v];
    store_floats<VECTOR>(left + d * VALUE, held[p]);
  }
}
