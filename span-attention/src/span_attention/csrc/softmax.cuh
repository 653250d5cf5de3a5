// Softmax over keys that come in blocks (Milakov and Gimelshein 2018), for scores in the registers
// of a warp as C fragments (mma.cuh): lane l holds of the rows l / 4 and l / 4 + 8, in fragment n,
// the columns 8 n + 2 (l % 4) and the next.

constexpr float kLog2e = 1.4426950408889634f;

// The score of a masked key.
__device__ __forceinline__ float hidden() { return __int_as_float(0xff800000); }

// 2^x by the instruction alone: 2 units in the last place, results below 2^-126 are 0.
__device__ __forceinline__ float power_of_2(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Running maximum and sum of exponentials of the lane's two rows (online softmax). The sum is that
// of the lane's own columns until `total` adds those of the four lanes of a row.
struct Rows {
  float most[2] = {hidden(), hidden()};
  float sum[2] = {0.0f, 0.0f};

  __device__ __forceinline__ float total(int row) const {
    float x = sum[row];
    x += __shfl_xor_sync(0xffffffffu, x, 1);
    return x + __shfl_xor_sync(0xffffffffu, x, 2);
  }
};

// tanh to about 1e-7, absolutely: the instruction's 5e-4 would move scores of 50 by 0.02.
__device__ __forceinline__ float tanh_exact(float x) {
  return 1.0f - __fdividef(2.0f, power_of_2(2.0f * kLog2e * x) + 1.0f);
}

// Scores as exponents of 2: score -> softcap -> bias, times `log2_scale`.
struct Scores {
  float scale, softcap;
  int window;
  bool biased;

  // The factor of stored scores in the exponent. Without softcap and bias, scores are stored as the
  // raw products of query and key, and scaled in the multiply-add of the exponent.
  __device__ __forceinline__ float log2_scale() const { return plain() ? scale * kLog2e : kLog2e; }
  __device__ __forceinline__ bool plain() const { return softcap == 0.0f && !biased; }

  // Softcap and ALiBi. The bias is slope * (key position - query position).
  template <int kFragments>
  __device__ __forceinline__ void shape(float (&s)[kFragments][4], int column,
                                        const int (&position)[2], const float (&slope)[2]) const {
    if (plain()) return;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = s[n][i] * scale;
        if (softcap != 0.0f) x = softcap * tanh_exact(x / softcap);
        s[n][i] = x + slope[i / 2] * (column + 8 * n + i % 2 - position[i / 2]);
      }
    }
  }

  // Softcap and biases by distance: those of a row's head lie around biases[row], the one of the
  // row's own position there; beyond `reach` on both sides nothing changes. Rows see `ahead`
  // positions ahead of their own.
  template <int kFragments>
  __device__ __forceinline__ void shape(float (&s)[kFragments][4], int column,
                                        const int (&position)[2], const float* const (&biases)[2],
                                        int reach, int ahead) const {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float x = s[n][i] * scale;
        if (softcap != 0.0f) x = softcap * tanh_exact(x / softcap);
        const int distance = column + 8 * n + i % 2 - (position[i / 2] - ahead);
        s[n][i] = x + __ldg(biases[i / 2] + min(max(distance, -reach), reach));
      }
    }
  }

  // Minus infinity where a row does not see a column: after its position, or the `last` that is
  // there, or before its window.
  template <int kFragments>
  __device__ __forceinline__ void hide(float (&s)[kFragments][4], int column,
                                       const int (&position)[2], int last) const {
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = column + 8 * n + i % 2, behind = position[i / 2] - at;
        if (behind < 0 || at > last || (window && behind >= window)) s[n][i] = hidden();
      }
    }
  }
};

// Turns scores into exp2(log2_scale * (score - largest)) and adds them to the rows' sums; `keep` is
// the factor that earlier sums were rescaled by, and earlier results must be.
template <int kFragments>
__device__ __forceinline__ void absorb(float (&s)[kFragments][4], Rows& rows, float log2_scale,
                                       float (&keep)[2]) {
#pragma unroll
  for (int row = 0; row < 2; ++row) {
    float most = rows.most[row];
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
      most = fmaxf(most, fmaxf(s[n][2 * row], s[n][2 * row + 1]));
    }
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
    most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
    // A row that has seen no key yet: any finite number keeps its exponentials at 0.
    const float base = most == hidden() ? 0.0f : __fmul_rn(most, log2_scale);
    // Exactly 1 where nothing changed, as both products are rounded (a fused one is not): then
    // blocks of keys that a row does not see change no bit. A choice instead costs 2 % of prefill.
    keep[row] = power_of_2(__fmul_rn(rows.most[row], log2_scale) - base);
    rows.most[row] = most;
    float sum = 0.0f;
#pragma unroll
    for (int n = 0; n < kFragments; ++n) {
#pragma unroll
      for (int i = 2 * row; i < 2 * row + 2; ++i) {
        s[n][i] = power_of_2(s[n][i] * log2_scale - base);
        sum += s[n][i];
      }
    }
    rows.sum[row] = rows.sum[row] * keep[row] + sum;
  }
}

// The natural logarithm of 2^most * sum.
__device__ __forceinline__ float log_sum(float most, float sum) {
  constexpr float kLn2 = 0.6931471805599453f;
  return kLn2 * (most + __log2f(sum));
}
