// Keys of 64 bits: an element's value above, its complemented index below. No two keys of a row are
// equal, "larger key" means more likely, of equally likely the smaller id.

__device__ __forceinline__ unsigned order_of(float x) {
  const unsigned bits = __float_as_uint(x + 0.0f);  // -0 becomes +0
  return bits ^ (static_cast<unsigned>(static_cast<int>(bits) >> 31) | 0x80000000u);
}

__device__ __forceinline__ Key key_of(float x, int id) {
  return static_cast<Key>(order_of(x)) << 32 | ~static_cast<unsigned>(id);
}

// The largest key of a value.
__device__ __forceinline__ Key highest_of(float x) {
  return static_cast<Key>(order_of(x)) << 32 | 0xffffffffu;
}

__device__ __forceinline__ float value_of(Key key) {
  const unsigned ordered = static_cast<unsigned>(key >> 32);
  return __uint_as_float(ordered & 0x80000000u ? ordered ^ 0x80000000u : ~ordered);
}

__device__ __forceinline__ int id_of(Key key) {
  return static_cast<int>(~static_cast<unsigned>(key));
}

// A bound as floats are compared with it: larger values reach it, equal ones up to id `last`.
struct Floor {
  float value;
  int last;

  __device__ __forceinline__ explicit Floor(Key bound)
      : value(value_of(bound)),
        last(static_cast<int>(min(~static_cast<unsigned>(bound), 0x7fffffffu))) {}
  __device__ __forceinline__ bool admits(float x, int id) const {
    return x > value || (x == value && id <= last);
  }
};
