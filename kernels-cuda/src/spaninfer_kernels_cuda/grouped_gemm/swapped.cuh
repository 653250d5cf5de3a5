// Results whose columns are weight rows along M of the products, tokens along N (mma.cuh): a thread
// has weight rows g and g + 8 of its warp's 16, GATED a gate and its up.
//
// Macros: T, GATED, ACT (of glu.cuh).
//
// Needs types.cuh, reduce.cuh, tasks.cuh.

// Writes the results of a warp: those of 16 weight rows from `row` on. `rows` has the whole weight,
// bias and out have no more.
template <int kColumns>
__device__ __forceinline__ void write_results(T* out, const T* bias, const Task& task,
                                              const float (&acc)[kColumns][4], int row, int rows) {
  const int lane = threadIdx.x % kWarp, g = lane / 4;
  const int columns = GATED ? rows / 2 : rows, column = (GATED ? row / 2 : row) + g;
  const bool has = row + g < rows, has_other = row + g + 8 < rows;
  float add = 0.0f, add_other = 0.0f;
  if (bias) {
    bias += static_cast<size_t>(task.expert) * rows + row + g;
    if (has) add = to_float(bias[0]);
    if (has_other) add_other = to_float(bias[8]);
  }
  out += static_cast<size_t>(task.first) * columns + column;
#pragma unroll
  for (int j = 0; j < kColumns; ++j) {
    if (8 * j >= task.count) break;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int token = 8 * j + lane % 4 * 2 + i;
      if (token >= task.count) continue;
      T* to = out + static_cast<size_t>(token) * columns;
      const float one = acc[j][i] + add, other = acc[j][i + 2] + add_other;
      if constexpr (GATED) {
        if (has) to[0] = from_float<T>(ACT(one, other));
      } else {
        if (has) to[0] = from_float<T>(one);
        if (has_other) to[8] = from_float<T>(other);
      }
    }
  }
}
