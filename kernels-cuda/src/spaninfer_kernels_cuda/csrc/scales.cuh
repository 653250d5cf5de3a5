// Scales of a product of 8-bit codes: what turns its sums into results.
//
//   rows     y[m n] = x_scales[m] * weight_scales[n] * sum over k of x[m k] * w[n k]
//   blocks   y[m n] = sum over b of x_scales[b m] * weight_scales[n/128 b] * (the same sum, of
//            the 128 elements of K of block b)
//
// The accumulators of tensor cores hold 14 bits of a sum of e4m3 products; `blocks` scales and adds
// each block's sum in float32.
//
// Needs mma.cuh.

enum class Scaling { none, rows, blocks };

constexpr int kScaleBlock = 128;  // elements of K, and rows of the weight

// The scales in memory. Of a gated weight, up rows begin with a block of their own.
template <Scaling kKind, bool kGated>
struct Scales {
  const float *x, *weight;
  int tokens, columns, blocks;  // M, C, blocks of K

  static __device__ __forceinline__ Scales of(const float* x, const float* weight, int tokens,
                                              int rows, int inner) {
    return {x, weight, tokens, kGated ? rows / 2 : rows, (inner + kScaleBlock - 1) / kScaleBlock};
  }

  // Of a token; of one beyond the last, any.
  __device__ __forceinline__ float of_x(int token, int block) const {
    const int at = min(token, tokens - 1);
    return kKind == Scaling::rows ? x[at] : x[static_cast<size_t>(block) * tokens + at];
  }

  // Of the weight's row for a column of the result, of its gate or of its up row.
  __device__ __forceinline__ float of_weight(int column, bool is_up, int block) const {
    const int at = min(column, columns - 1);
    if (kKind == Scaling::rows) return weight[at + (is_up ? columns : 0)];
    const int first = is_up ? (columns + kScaleBlock - 1) / kScaleBlock : 0;
    return weight[(first + at / kScaleBlock) * blocks + block];
  }

  // Where those of rows lie, of a token and of the weight's row for a column.
  __device__ __forceinline__ const float* at_token(int token) const {
    return x + min(token, tokens - 1);
  }
  __device__ __forceinline__ const float* at_weight(int column, bool is_up) const {
    return weight + min(column, columns - 1) + (is_up ? columns : 0);
  }
};

// Where a warp has 16 weight rows by columns of 8 tokens (epilogue.cuh): the scales of a thread's
// rows and tokens.
template <typename Kernel>
struct OwnScales {
  float weight[2], x[Kernel::kColumns][2];

  template <Scaling kKind>
  static __device__ __forceinline__ OwnScales at(const Scales<kKind, Kernel::kGated>& all,
                                                 int column, int token, int block) {
    OwnScales own;
    own.weight[0] = all.of_weight(column, false, block);
    own.weight[1] = all.of_weight(Kernel::kGated ? column : column + 8, Kernel::kGated, block);
#pragma unroll
    for (int j = 0; j < Kernel::kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 2; ++i) own.x[j][i] = all.of_x(token + 8 * j + i, block);
    }
    return own;
  }

  // acc += sums, scaled.
  template <typename Sum>
  __device__ __forceinline__ void add(float (&acc)[Kernel::kColumns][4],
                                      const Sum (&sums)[Kernel::kColumns][4]) const {
#pragma unroll
    for (int j = 0; j < Kernel::kColumns; ++j) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        acc[j][i] = fmaf(static_cast<float>(sums[j][i]), weight[i / 2] * x[j][i % 2], acc[j][i]);
      }
    }
  }
};
