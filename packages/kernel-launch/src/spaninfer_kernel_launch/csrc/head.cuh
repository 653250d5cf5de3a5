// A head of a row in float32 over adjacent lanes: loaded, normalised, rotated, stored.
//
// A lane holds units of two vectors, each of which is one load: the two sides of kVector pairs, so
// that no lane needs another's elements to rotate its own. A pair is elements (i, i + kRotary/2),
// or (2i, 2i + 1) where kInterleaved, of the first kRotary ones. Python's side is head.py.
//
// Needs types.cuh, math.cuh, reduce.cuh. 2 kVector divides kSize and kRotary.

template <typename Element, int kSize, int kVector, int kRotary, int kLanes, bool kInterleaved>
struct Head {
  static constexpr int kUnit = 2 * kVector, kUnits = kSize / kUnit, kTurned = kRotary / kUnit;
  static constexpr int kPerLane = (kUnits + kLanes - 1) / kLanes;

  float x[kPerLane][kUnit];

  // The number of this lane's unit k, which may lie beyond the last one.
  static __device__ __forceinline__ int unit(int k) { return threadIdx.x % kLanes + k * kLanes; }

  // The first elements of the two vectors of a unit.
  static __device__ __forceinline__ int2 begins(int unit) {
    if (kInterleaved || unit >= kTurned) return make_int2(unit * kUnit, unit * kUnit + kVector);
    return make_int2(unit * kVector, unit * kVector + kRotary / 2);
  }

  __device__ __forceinline__ void load(const Element* from) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (unit(k) < kUnits) {
        const int2 begin = begins(unit(k));
        load_floats<kVector>(x[k], from + begin.x);
        load_floats<kVector>(x[k] + kVector, from + begin.y);
      } else {
#pragma unroll
        for (int n = 0; n < kUnit; ++n) x[k][n] = 0.0f;  // without effect on sum and extremes
      }
    }
  }

  __device__ __forceinline__ void store(Element* to) const {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (unit(k) >= kUnits) continue;
      const int2 begin = begins(unit(k));
      store_floats<kVector>(to + begin.x, x[k]);
      store_floats<kVector>(to + begin.y, x[k] + kVector);
    }
  }

  __device__ __forceinline__ void norm(const Element* weight, float weight_offset, float eps) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
#pragma unroll
      for (int n = 0; n < kUnit; ++n) squares += square(x[k][n]);
    }
    const float scale = rsqrtf(lanes_sum<kLanes>(squares) / kSize + eps);
    Head weights;
    weights.load(weight);
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
#pragma unroll
      for (int n = 0; n < kUnit; ++n) x[k][n] *= scale * (weights.x[k][n] + weight_offset);
    }
  }

  __device__ __forceinline__ void rope(const float* cosine, const float* sine) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (unit(k) >= kTurned) continue;
      float cosines[kVector], sines[kVector];
      load_floats<kVector>(cosines, cosine + unit(k) * kVector);
      load_floats<kVector>(sines, sine + unit(k) * kVector);
#pragma unroll
      for (int v = 0; v < kVector; ++v) {
        float& one = x[k][kInterleaved ? 2 * v : v];
        float& other = x[k][kInterleaved ? 2 * v + 1 : v + kVector];
        const float2 rotated = rotate(make_float2(one, other), cosines[v], sines[v]);
        one = rotated.x;
        other = rotated.y;
      }
    }
  }
};
